"""The text of a key template: taken apart, and proven piece by piece.

Read from the left, every part must end where a reader can see it: then two entities never get
the same key, and parts that are ordered stay so behind equal beginnings.
"""

from collections import Counter
from collections.abc import Mapping
from string import Formatter

import msgspec

from partita.errors import DefinitionError
from partita.patterns.keys.format_specs import Place, Role, UnfitPartError, part_for
from partita.patterns.keys.key_parts import Choice, KeyPart
from partita.patterns.keys.key_text import RESERVED, WIDE_SUFFIX_CHARACTERS_MAX, fits, is_legal
from partita.tables import edm, limits


class Hole(msgspec.Struct, frozen=True):
    """A field in a template, as it is written there."""

    field: str
    spec: str

    def __str__(self) -> str:
        return f"{{{self.field}:{self.spec}}}" if self.spec else f"{{{self.field}}}"


class TemplateText(msgspec.Struct, frozen=True):
    """A template that is not proven yet."""

    text: str
    role: Role
    owner: str
    is_optional: bool = False
    is_wide: bool = False

    def prove(self, annotations: Mapping[str, object]) -> tuple[str | KeyPart, ...]:
        """Return literals and parts; no two literals follow each other."""
        holes = self._split()
        self._check_fields(holes, annotations)
        pieces: list[str | KeyPart] = []
        instead: list[str] = []
        problems: list[UnfitPartError] = []
        for index, hole in enumerate(holes):
            if isinstance(hole, str):
                self._check_literal(hole)
                pieces.append(hole)
                instead.append(_quoted(hole))
                continue
            try:
                pieces.append(self._part(hole, holes[index + 1 :], annotations[hole.field]))
                instead.append(str(hole))
            except UnfitPartError as error:
                problems.append(error)
                instead.append(error.instead or str(hole))
        if problems:
            first = problems[0]
            hint = first.hint or f"Write {''.join(instead)!r}."
            raise self._refusal(first.code, first.message, hint) from first
        self._check_length(pieces)
        self._check_start(pieces)
        return tuple(pieces)

    def _split(self) -> list[str | Hole]:
        holes: list[str | Hole] = []
        literal = ""
        try:
            for text, field, spec, conversion in Formatter().parse(self.text):
                literal += text
                if field is None:
                    continue
                if conversion or not field.isidentifier():
                    raise ValueError(field)  # noqa: TRY301 - as the formatter refuses the rest
                holes += [literal, Hole(field, spec or "")]
                literal = ""
        except ValueError as error:
            raise self._refusal(
                "TemplateSyntax",
                "It is not made of literal text and {field} or {field:spec}.",
                "Write {{ and }} for braces in the key.",
            ) from error
        return [hole for hole in (*holes, literal) if hole != ""]

    def _check_fields(self, holes: list[str | Hole], annotations: Mapping[str, object]) -> None:
        fields = [hole for hole in holes if isinstance(hole, Hole)]
        unknown = next((hole.field for hole in fields if hole.field not in annotations), None)
        if unknown is not None:
            raise self._refusal(
                "TemplateField",
                f"There is no field {unknown!r}.",
                f"The fields are {', '.join(annotations) or 'none'}.",
            )
        full = Counter(hole.field for hole in fields if not hole.spec.startswith("hash"))
        if any(count > 1 for count in full.values()) or len(fields) > full.total() + 1:
            raise self._refusal(
                "TemplateField",
                "A field comes twice, or more than one is hashed.",
                "Write each field once; one of them may be hashed as well.",
            )

    def _check_literal(self, literal: str) -> None:
        if not fits(literal):
            raise self._too_long(edm.utf16_length(literal), limits.KEY_CHARACTERS_MAX)
        if not is_legal(literal):
            raise self._refusal(
                "TemplateCharacter",
                f"The literal {literal!r} holds / \\ # ? or a control character, which keys "
                "cannot hold.",
                "Separate parts with _ instead.",
            )
        if self.is_wide and RESERVED in literal:
            raise self._refusal(
                "TemplateReserved",
                f"{RESERVED} stands before what is put behind the keys of this template.",
                "Separate parts with _ instead.",
            )

    def _part(self, hole: Hole, rest: list[str | Hole], annotation: object) -> KeyPart:
        following = rest[0] if rest and isinstance(rest[0], str) else ""
        place = Place(self.role, following, not rest, self.is_wide, self.is_optional)
        part = part_for(hole.field, hole.spec, annotation, place)
        if rest and not part.is_delimited_by(following):
            raise UnfitPartError(
                "TemplateNotInjective",
                f"Where {hole.field!r} ends cannot be seen, so that two entities could get the "
                "same key.",
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
                f"Keys that begin with {RESERVED} are those of hidden rows.",
                "Begin with another literal.",
            )

    def _too_long(self, least: int, limit: int) -> DefinitionError:
        return self._refusal(
            "TemplateTooLong",
            f"Its keys have {least} UTF-16 code units or more; the limit is {limit}.",
            "Leave out parts, or digits.",
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
