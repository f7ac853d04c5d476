"""Versions of a value type and the steps between them, on plain maps.

A step that only adds fields with defaults needs no function. Any other step has an upcast, and a
downcast as long as the older version is still written.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from partita.errors import DamageError, SchemaError
from partita.reliable.values.value_shape import encode_plain

PlainFields = dict[str, Any]
"""A struct as a decoded MessagePack map."""
Step = Callable[[PlainFields], PlainFields]
StepT = TypeVar("StepT", bound=Step)

VERSION_MAX = 0x7FFF
_MARK = "__partita_step__"
_plain = msgspec.msgpack.Decoder()


class Schema(msgspec.Struct, frozen=True):
    """The highest version that is read, and the version that is written (None: the same).

    Two-phase upgrade: deploy Schema(version=2, write=1) everywhere, then promote to 2.
    """

    version: int = 1
    write: int | None = None

    @property
    def written(self) -> int:
        """The version in which rows are written before a promotion."""
        return self.version if self.write is None else self.write


def upcast(*, from_: int, to: int) -> Callable[[StepT], StepT]:
    """Mark a function that converts the plain map of one version to that of the next.

    Change the map or a copy of it: fields that the function does not know must be kept.
    """
    return _marked("upcast", from_, to, to - from_)


def downcast(*, from_: int, to: int) -> Callable[[StepT], StepT]:
    """Mark the function that reverses an upcast while the older version is still written."""
    return _marked("downcast", from_, to, from_ - to)


def _marked(kind: str, from_: int, to: int, distance: int) -> Callable[[StepT], StepT]:
    if distance != 1 or min(from_, to) < 1:
        problem = f"A {kind} from version {from_} to {to} is not a single step."
        raise _wrong_step(problem)

    def mark(function: StepT) -> StepT:
        setattr(function, _MARK, (kind, min(from_, to)))
        return function

    return mark


class Steps:
    """The upcasts and downcasts of one type, by the lower version of their step."""

    def __init__(self, schema: Schema, functions: Sequence[Step]) -> None:
        numbers: tuple[object, ...] = (schema.written, schema.version)
        are_integers = all(isinstance(one, int) and not isinstance(one, bool) for one in numbers)
        if not are_integers or not 1 <= schema.written <= schema.version <= VERSION_MAX:
            raise SchemaError(
                "InvalidSchema",
                f"Schema(version={schema.version!r}, write={schema.written!r}) is not valid.",
                facts={"version": schema.version, "write": schema.written},
                hint=f"Use versions from 1 to {VERSION_MAX}, and write= at most version=.",
            )
        self.version = schema.version
        self._ups: dict[int, Step] = {}
        self._downs: dict[int, Step] = {}
        for function in functions:
            self._add(function)
        for step in self._downs:
            if step not in self._ups:
                problem = f"The downcast from version {step + 1} has no corresponding upcast."
                raise _wrong_step(problem)
        self._downcasts(schema.written)  # raises now if one is missing

    def _add(self, function: Step) -> None:
        kind, step = getattr(function, _MARK, ("", 0))
        found = self._ups if kind == "upcast" else self._downs
        problem = ""
        if not kind:
            problem = "A step has neither @upcast nor @downcast."
        elif step in found:
            problem = f"There are two {kind}s between versions {step} and {step + 1}."
        elif step >= self.version:
            problem = f"A {kind} is for a version above {self.version}."
        if problem:
            raise _wrong_step(problem)
        found[step] = function

    def has_upcast(self, version: int) -> bool:
        """Return whether rows of a version must be converted before they are decoded."""
        return bool(self._upcasts(version))

    def up(self, payload: bytes, version: int) -> bytes:
        """Convert a payload of an older version to the newest."""
        functions = self._upcasts(version)
        return _run(functions, payload, "upcast") if functions else payload

    def down(self, payload: bytes, version: int) -> bytes:
        """Convert a payload of the newest version to an older one."""
        functions = self._downcasts(version)
        return _run(functions, payload, "downcast") if functions else payload

    def _upcasts(self, version: int) -> list[Step]:
        if not 1 <= version <= self.version:
            raise self._too_new(version)
        return [self._ups[step] for step in range(version, self.version) if step in self._ups]

    def _downcasts(self, version: int) -> list[Step]:
        if not 1 <= version <= self.version:
            raise self._too_new(version)
        steps = [step for step in range(self.version - 1, version - 1, -1) if step in self._ups]
        for step in steps:
            if step not in self._downs:
                raise SchemaError(
                    "MissingDowncast",
                    f"Version {version} cannot be written: no downcast from {step + 1}.",
                    facts={"version": version, "step": step},
                    hint="Add a @downcast for each @upcast, or write the newest version.",
                )
        return [self._downs[step] for step in steps]

    def _too_new(self, version: int) -> SchemaError:
        return SchemaError(
            "SchemaTooNew",
            f"Version {version} is unknown; this code knows versions 1 to {self.version}.",
            facts={"version": version, "version_max": self.version},
            hint="Deploy the code that reads a version on every replica before it is written.",
        )


def _run(functions: list[Step], payload: bytes, kind: str) -> bytes:
    try:
        plain = _plain.decode(payload)
    except Exception as error:
        raise DamageError("ValueUnreadable", "A stored value is not valid MessagePack.") from error
    try:
        for function in functions:
            plain = function(plain)
        return encode_plain(plain)
    except Exception as error:
        raise SchemaError(
            "StepFailed",
            f"A {kind} failed on a value: {type(error).__name__}.",
            facts={"step": kind},
            hint="Make the step accept every map that was ever written in its version.",
        ) from error


def _wrong_step(problem: str) -> SchemaError:
    return SchemaError(
        "InvalidStep",
        problem,
        hint="Mark one function per step: @upcast(from_=1, to=2), and @downcast(from_=2, to=1) "
        "while version 1 is still written.",
    )
