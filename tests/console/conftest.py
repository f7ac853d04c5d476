from collections.abc import Iterator

import pytest

from support.browser import axe, browser, watch
from support.live import LiveServer

__all__ = ["axe", "browser", "console", "watch"]


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server of the development account with its console."""
    folder = tmp_path_factory.mktemp("console")
    server = LiveServer(folder, "--in-memory", "--console", "--console-port", "0")
    yield server
    server.stop()
