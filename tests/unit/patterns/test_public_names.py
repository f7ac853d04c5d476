"""The names that `partita.patterns` offers, however they are reached."""

import pkgutil

import partita.patterns


def test_no_public_name_is_that_of_a_module() -> None:
    modules = {module.name for module in pkgutil.iter_modules(partita.patterns.__path__)}

    # An import of the module would put it in the place of the name.
    assert modules & set(partita.patterns.__all__) == set()


def test_every_public_name_is_there() -> None:
    for name in partita.patterns.__all__:
        assert getattr(partita.patterns, name) is not None
