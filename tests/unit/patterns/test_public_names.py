"""The names that `partita.patterns` offers, however they are reached."""

import ast
import inspect
import pkgutil

import partita.patterns


def test_no_public_name_is_that_of_a_module() -> None:
    modules = {module.name for module in pkgutil.iter_modules(partita.patterns.__path__)}

    # An import of the module would put it in the place of the name.
    assert modules & set(partita.patterns.__all__) == set()


def test_every_public_name_is_there() -> None:
    for name in partita.patterns.__all__:
        assert getattr(partita.patterns, name) is not None


def test_type_checkers_and_the_lazy_import_see_the_same_names() -> None:
    tree = ast.parse(inspect.getsource(partita.patterns))
    imported = {
        alias.asname: each.module
        for each in ast.walk(tree)
        if isinstance(each, ast.ImportFrom) and each.module != "typing"
        for alias in each.names
    }

    assert imported == partita.patterns._MODULES
