"""Parsing and checking of key templates, piece by piece.

Read from the left, the end of every part must be recognizable. Then two entities never get the
same key, and ordered parts stay ordered after equal prefixes.
"""

from collections import Counter
from collections.abc import Mapping
from string import Formatter

import msgspec

from partita.errors import DefinitionError
from partita.patterns.keys.format_specs import PartContext, Role, UnfitPartError, part_for
from partita.patterns.keys.key_parts import Choice, KeyPart
from partita.patterns.keys.key_text import RESERVED, WIDE_SUFFIX_CHARACTERS_MAX, fits, is_legal
from partita.tables import edm, limits


class Placeholder(msgspec.Struct, frozen=True):
    """A field in a template, as it is written there."""

    field: str
    spec: str

    def __str__(self) -> str:
        return f"{{{self.field}:{self.spec}}}" if self.spec else f"{{{self.field}}}"


class TemplateText(msgspec.Struct, frozen=True):
    """A template that has not been checked yet."""

    text: str
    role: Role
    owner: str
    is_optional: bool = False
    is_wide: bool = False

    def prove(self, annotations: Mapping[str, object]) -> tuple[str | KeyPart, ...]:
        """Return literals and parts, or raise; no two literals are adjacent."""
        split = self._split()
        self._check_fields(split, annotations)
        pieces: list[str | KeyPart] = []
        instead: list[str] = []
        problems: list[UnfitPartError] = []
        for index, item in enumerate(split):
            if isinstance(item, str):
                self._check_literal(item)
                pieces.append(item)
                instead.append(_quoted(item))
                continue
            try:
                pieces.append(self._part(item, split[index + 1 :], annotations[item.field]))
                instead.append(str(item))
            except UnfitPartError as error:
                problems.append(error)
                instead.append(error.instead or str(item))
        if problems:
            first = problems[0]
            hint = first.hint or f"Write {''.join(instead)!r}."
            raise self._refusal(first.code, first.message, hint) from first
        self._check_length(pieces)
        self._check_start(pieces)
        return tuple(pieces)

    def _split(self) -> list[str | Placeholder]:
        split: list[str | Placeholder] = []
        literal = ""
        try:
            for text, field, spec, conversion in Formatter().parse(self.text):
                literal += text
                if field is None:
                    continue
                if conversion or not field.isidentifier():
                    raise ValueError(field)  # noqa: TRY301 - handled like errors of the formatter
                split += [literal, Placeholder(field, spec or "")]
                literal = ""
        except ValueError as error:
            raise self._refusal(
                "TemplateSyntax",
                "It does not consist of literal text and {field} or {field:spec}.",
                "Write {{ and }} for literal braces.",
            ) from error
        return [item for item in (*split, literal) if item != ""]

    def _check_fields(
        self, split: list[str | Placeholder], annotations: Mapping[str, object]
    ) -> None:
        fields = [item for item in split if isinstance(item, Placeholder)]
        unknown = next(
            (item.field for item in fields if item.field not in annotations),
            None,
        )
        if unknown is not None:
            raise self._refusal(
                "TemplateField",
                f"There is no field {unknown!r}.",
                f"The fields are {', '.join(annotations) or 'none'}.",
            )
        full = Counter(item.field for item in fields if not item.spec.startswith(("hash", "%")))
        hashed = [item for item in fields if item.spec.startswith("hash")]
        periods = Counter(item.field for item in fields if item.spec.startswith("%"))
        counts = (*full.values(), *periods.values(), len(hashed))
        if any(count > 1 for count in counts):
            raise self._refusal(
                "TemplateField",
                "A field is written twice, or more than one is hashed.",
                "Write each field once; one of them may be hashed in addition.",
            )

    def _check_literal(self, literal: str) -> None:
        if not fits(literal):
            raise self._too_long(edm.utf16_length(literal), limits.KEY_CHARACTERS_MAX)
        if not is_legal(literal):
            raise self._refusal(
                "TemplateCharacter",
                f"The literal {literal!r} has a character that is not allowed in keys: / \\ # ? "
                "or a control character.",
                "Separate parts with _ instead.",
            )
        if self.is_wide and RESERVED in literal:
            raise self._refusal(
                "TemplateReserved",
                f"{RESERVED} is reserved for the suffixes of the keys of this template.",
                "Separate parts with _ instead.",
            )

    def _part(
        self, item: Placeholder, rest: list[str | Placeholder], annotation: object
    ) -> KeyPart:
        following = rest[0] if rest and isinstance(rest[0], str) else ""
        context = PartContext(self.role, following, not rest, self.is_wide, self.is_optional)
        part = part_for(item.field, item.spec, annotation, context)
        if rest and not part.is_delimited_by(following):
            raise UnfitPartError(
                "TemplateNotInjective",
                f"The end of {item.field!r} is ambiguous: two entities could get the same key.",
                instead=part.delimited(following),
            )
        return part

    def _check_length(self, pieces: list[str | KeyPart]) -> None:
        limit = limits.KEY_CHARACTERS_MAX - (WIDE_SUFFIX_CHARACTERS_MAX if self.is_wide else 0)
        least = sum(
            edm.utf16_length(piece) if isinstance(piece, str) else piece.length_min
            for piece in pieces
        )
        if least > limit:
            raise self._too_long(least, limit)

    def _check_start(self, pieces: list[str | KeyPart]) -> None:
        first = pieces[0] if pieces else ""
        starts = [first] if isinstance(first, str) else []
        if isinstance(first, Choice):
            starts = list(first.forms.values())
        if any(start.startswith(RESERVED) for start in starts) or (self.is_wide and not pieces):
            raise self._refusal(
                "TemplateReserved",
                f"Keys that begin with {RESERVED} are reserved for hidden rows.",
                "Begin with another literal.",
            )

    def _too_long(self, least: int, limit: int) -> DefinitionError:
        return self._refusal(
            "TemplateTooLong",
            f"Its keys have {least} UTF-16 code units or more; the limit is {limit}.",
            "Remove parts, or use fewer digits.",
        )

    def _refusal(self, code: str, message: str, hint: str) -> DefinitionError:
        return DefinitionError(
            code,
            f"{self.owner}, {self.role} key {self.text!r}: {message}",
            facts={"owner": self.owner, "template": self.text},
            hint=hint,
        )


def _quoted(literal: str) -> str:
    return literal.replace("{", "{{").replace("}", "}}")
