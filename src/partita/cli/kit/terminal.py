"""What can be done with the streams of this process: questions and colours."""

import os
import sys
from typing import TextIO


def is_interactive() -> bool:
    """Return whether a question can be asked: input and errors are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def has_colours(file: TextIO) -> bool:
    """Return whether a stream takes colours: a terminal, and NO_COLOR is not set."""
    return file.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
