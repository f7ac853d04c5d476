import importlib
import sys
import warnings

import pytest

from partita.moved_modules import MOVED


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_an_old_path_imports_the_module_at_its_new_path_and_warns(old: str, new: str) -> None:
    sys.modules.pop(old, None)
    module = importlib.import_module(new)
    spec = module.__spec__

    with pytest.warns(DeprecationWarning, match=f"{old} has moved: import {new} instead"):
        assert importlib.import_module(old) is module
    assert module.__spec__ is spec


def test_a_new_path_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        importlib.import_module("partita.patterns.encryption.keyring")
