"""`partita top`: once as text or JSON, or live by Textual."""

import os
import time
from collections.abc import Iterator

import msgspec

from partita.cli.kit.commands import Given
from partita.cli.kit.facts import Facts, Line, Table, show
from partita.cli.top.commands import TOKEN_VARIABLE
from partita.cli.top.endpoint import Endpoint, find_token
from partita.cli.top.readings import Reading
from partita.cli.top.tables import (
    HOT_HEADINGS,
    OPERATION_HEADINGS,
    SLOW_HEADINGS,
    headline,
    hot_rows,
    operation_rows,
    slow_rows,
    store_line,
)
from partita.errors import ConfigurationError


class Shown(Facts, Reading, frozen=True):
    """One reading, as facts."""

    def lines(self) -> Iterator[Line]:
        yield headline(self)
        yield store_line(self)
        yield ""
        yield Table(OPERATION_HEADINGS, operation_rows(self))
        if self.hot:
            yield ""
            yield Table(HOT_HEADINGS, hot_rows(self))
        if self.slow:
            yield ""
            yield Table(SLOW_HEADINGS, slow_rows(self))


def run(given: Given) -> int:
    """Show a server once, or until the user quits."""
    token = find_token(given.token or os.environ.get(TOKEN_VARIABLE), given.token_file, given.path)
    endpoint = Endpoint(given.metrics, token)
    if given.json and not given.once:
        raise ConfigurationError(
            "Configuration", "--json prints one reading.", hint="Give --once together with --json."
        )
    endpoint.start()
    if given.once:
        time.sleep(given.interval)
        shown = Shown(**msgspec.structs.asdict(endpoint.read()))
        show(shown, is_json=given.json)
        return 0
    try:
        from partita.cli.top.app import TopApp  # noqa: PLC0415 - it needs an extra
    except ImportError as error:
        raise ConfigurationError(
            "Configuration",
            "The live view needs a package that is not installed.",
            facts={"package": error.name or ""},
            hint="Run: pip install './partita[ops]', or give --once.",
        ) from error
    TopApp(endpoint, given.interval).run()
    return 0
