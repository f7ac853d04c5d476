"""The file that lets a bulk verb continue after its process was killed.

It is JSON, replaced atomically, with what the verb was asked to do and how far it is:

    {"version": 1, "task": {...}, "state": {...}}

A task that differs is refused: its progress is not that of this command.
"""

import contextlib
import os
from pathlib import Path
from typing import Any

import msgspec

from partita.bulk.files import writing
from partita.errors import ConfigurationError

VERSION = 1
SUFFIX = ".partita-progress"


class _Content(msgspec.Struct):
    version: int
    task: dict[str, Any]
    state: dict[str, Any]


class Checkpoint:
    """The progress of one task. Nothing is written before the first `save`."""

    def __init__(self, path: Path, task: dict[str, Any]) -> None:
        self.path = path
        self._task = msgspec.json.decode(msgspec.json.encode(task))

    def load(self, *, restart: bool = False) -> dict[str, Any] | None:
        """Return the state that was saved for this task; None if there is none."""
        if restart:
            self.remove()
        try:
            content = msgspec.json.decode(self.path.read_bytes(), type=_Content)
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._unusable("is not a progress file") from error
        if content.version != VERSION:
            raise self._unusable("was written by another version of Partita")
        differing = sorted(
            name
            for name in {*content.task, *self._task}
            if content.task.get(name) != self._task.get(name)
        )
        if differing:
            names = ", ".join(differing)
            raise self._unusable("belongs to another command: " + names + " differs")
        return content.state

    def save(self, state: dict[str, Any]) -> None:
        """Replace the saved state, durably."""
        temporary = self.path.with_name(self.path.name + ".new")
        with writing(str(self.path)):
            with temporary.open("wb") as file:
                file.write(msgspec.json.encode(_Content(VERSION, self._task, state)))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)

    def remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    def _unusable(self, why: str) -> ConfigurationError:
        return ConfigurationError(
            "ProgressUnusable",
            f"The file {self.path} {why}.",
            facts={"file": str(self.path)},
            hint="Repeat the command that wrote it, or give --restart to begin again.",
        )
