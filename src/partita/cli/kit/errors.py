"""Errors in one line: in the words of the command line and without secrets."""

import contextlib
from collections.abc import Callable, Iterator, Mapping

from partita.cli.kit.commands import Given, given_texts
from partita.cli.kit.secrets import clear
from partita.errors import ConfigurationError, PartitaError

Translate = Callable[[Exception], PartitaError | None]


@contextlib.contextmanager
def in_one_line(given: Given, hints: Mapping[str, str], translate: Translate) -> Iterator[None]:
    """Replace hints that speak of a program, translate other errors, remove secrets.

    An error that `translate` does not know is raised as it is: it is a defect.
    """
    try:
        yield
    except PartitaError as error:
        error.hint = hints.get(error.code, error.hint)
        clear(error, given_texts(given))
        raise
    except Exception as error:
        translated = translate(error)
        if translated is None:
            raise
        raise clear(translated, given_texts(given)) from error


def not_installed(error: ModuleNotFoundError, hint: str) -> ConfigurationError:
    return ConfigurationError(
        "NotInstalled", f"The package {error.name} is not installed.", hint=hint
    )
