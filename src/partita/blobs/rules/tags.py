"""Tags of blobs, the expressions of `x-ms-if-tags` on them, and searches by tags. Pure.

    expression   term { OR term }
    term         factor { AND factor }
    factor       NOT factor | "(" expression ")" | "key" operator 'value'
    operator     = | <> | < | <= | > | >=

Keys are bare or in double quotes, values in single quotes (doubled inside). Values compare as
texts; every comparison with a missing tag is false.

A search is simpler: comparisons other than <>, joined with AND; `@container = 'name'` limits it.
"""

import operator
import re
from collections.abc import Callable, Mapping

import msgspec

from partita.blobs.rules import limits
from partita.errors import InvalidRequestError, LimitExceededError
from partita.refusals import invalid_header, invalid_parameter

EXPRESSION_CHARACTERS_MAX = 8 * 1024
EXPRESSION_DEPTH_MAX = 32

_TAG = re.compile(r"[A-Za-z0-9 +\-./:=_]*")
_TOKEN = re.compile(
    r"""\s*(?:(?P<punctuation><>|<=|>=|[=<>()])
    |(?P<key>"(?:[^"]|"")*")|(?P<value>'(?:[^']|'')*')|(?P<word>[A-Za-z_@][A-Za-z0-9_]*))""",
    re.VERBOSE,
)
_OPERATORS: dict[str, Callable[[str, str], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_SEARCH_OPERATORS = frozenset(_OPERATORS) - {"<>"}
CONTAINER_KEY = "@container"


def check_tags(tags: Mapping[str, str]) -> Mapping[str, str]:
    """Check tags and return them."""
    if len(tags) > limits.TAGS_MAX:
        raise too_many_tags()
    for key, value in tags.items():
        if not key:
            raise InvalidRequestError(
                "EmptyTagName", "The name of one of the tag key-value pairs is empty."
            )
        is_short = (
            len(key) <= limits.TAG_KEY_CHARACTERS_MAX
            and len(value) <= limits.TAG_VALUE_CHARACTERS_MAX
        )
        if not is_short or not _TAG.fullmatch(key) or not _TAG.fullmatch(value):
            raise InvalidRequestError(
                "InvalidTag",
                "The tags specified are invalid. They contain characters that are not permitted, "
                "or are too long.",
                facts={"tag": key[: limits.TAG_KEY_CHARACTERS_MAX]},
                hint="Use only letters, digits, blanks and + - . / : = _.",
            )
    return tags


def matches(expression: str, tags: Mapping[str, str]) -> bool:
    """Return whether tags satisfy an expression; InvalidHeaderValue if it is invalid."""
    return _Reader(expression, tags).read()


class _Reader:
    """Parses and evaluates an expression in one pass."""

    def __init__(self, expression: str, tags: Mapping[str, str]) -> None:
        if len(expression) > EXPRESSION_CHARACTERS_MAX:
            raise _invalid(expression)
        self._expression = expression
        self._tags = tags
        tokens = _tokens(expression)
        if tokens is None:
            raise _invalid(expression)
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def read(self) -> bool:
        result = self._expression_()
        if self._next != len(self._tokens):
            raise _invalid(self._expression)
        return result

    def _expression_(self) -> bool:
        self._depth += 1
        if self._depth > EXPRESSION_DEPTH_MAX:
            raise _invalid(self._expression)
        result = self._term()
        while self._takes_word("OR"):
            result |= self._term()
        self._depth -= 1
        return result

    def _term(self) -> bool:
        result = self._factor()
        while self._takes_word("AND"):
            result &= self._factor()
        return result

    def _factor(self) -> bool:
        is_negated = False
        while self._takes_word("NOT"):
            is_negated = not is_negated
        if self._takes("punctuation", "("):
            result = self._expression_()
            if not self._takes("punctuation", ")"):
                raise _invalid(self._expression)
        else:
            result = self._comparison()
        return result is not is_negated

    def _comparison(self) -> bool:
        key_kind, key = self._take()
        _, sign = self._take()
        value_kind, value = self._take()
        if key_kind not in ("key", "word") or value_kind != "value" or sign not in _OPERATORS:
            raise _invalid(self._expression)
        found = self._tags.get(_name(key))
        if found is None:
            return sign == "<>"
        return _OPERATORS[sign](found, _text(value))

    def _take(self) -> tuple[str, str]:
        if self._next == len(self._tokens):
            raise _invalid(self._expression)
        self._next += 1
        return self._tokens[self._next - 1]

    def _takes(self, kind: str, text: str) -> bool:
        is_next = self._next < len(self._tokens) and self._tokens[self._next] == (kind, text)
        self._next += is_next
        return is_next

    def _takes_word(self, word: str) -> bool:
        if self._next == len(self._tokens):
            return False
        kind, text = self._tokens[self._next]
        is_next = kind == "word" and text.upper() == word
        self._next += is_next
        return is_next


class Search(msgspec.Struct, frozen=True):
    """What a search by tags looks for."""

    comparisons: tuple[tuple[str, str, str], ...]
    """Key, operator and value of each."""
    container: str | None = None

    def matches(self, tags: Mapping[str, str]) -> bool:
        """Return whether all comparisons are true.

        >>> parse_search("age >= '3' AND age < '5'").matches({"age": "4"})
        True
        """
        return all(
            key in tags and _OPERATORS[sign](tags[key], value)
            for key, sign, value in self.comparisons
        )

    def named(self, tags: Mapping[str, str]) -> dict[str, str]:
        """Return the tags that the search names."""
        return {key: tags[key] for key, _, _ in self.comparisons}


def parse_search(expression: str) -> Search:
    """Parse the expression of a search; InvalidQueryParameterValue if it is invalid."""
    tokens = _tokens(expression) if len(expression) <= limits.SEARCH_CHARACTERS_MAX else None
    if not tokens or len(tokens) % 4 != 3:
        raise _invalid_search(expression)
    comparisons: list[tuple[str, str, str]] = []
    containers: set[str] = set()
    for place in range(0, len(tokens), 4):
        (key_kind, key), (_, sign), (value_kind, value), *following = tokens[place : place + 4]
        is_joined = not following or (following[0][0], following[0][1].upper()) == ("word", "AND")
        is_comparison = key_kind in ("key", "word") and value_kind == "value"
        if not (is_joined and is_comparison and sign in _SEARCH_OPERATORS):
            raise _invalid_search(expression)
        if _name(key).lower() != CONTAINER_KEY:
            comparisons.append((_name(key), sign, _text(value)))
        elif sign == "=":
            containers.add(_text(value))
        else:
            raise _invalid_search(expression)
    if not comparisons or len(containers) > 1:
        raise _invalid_search(expression)
    return Search(tuple(comparisons), next(iter(containers), None))


def _name(key: str) -> str:
    """Return the key of a token, without its quotes."""
    return key[1:-1].replace('""', '"') if key.startswith('"') else key


def _text(value: str) -> str:
    return value[1:-1].replace("''", "'")


def _tokens(expression: str) -> list[tuple[str, str]] | None:
    """Return the kinds and texts of the tokens; None if there is anything else."""
    tokens: list[tuple[str, str]] = []
    place, text = 0, expression.rstrip()
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            return None
        assert found.lastgroup is not None
        tokens.append((found.lastgroup, found[found.lastgroup]))
        place = found.end()
    return tokens


def _invalid(expression: str) -> InvalidRequestError:
    return invalid_header(
        "x-ms-if-tags",
        expression[:256],
        "Use comparisons such as \"key\" = 'value', joined with AND, OR and NOT.",
    )


def _invalid_search(expression: str) -> InvalidRequestError:
    return invalid_parameter(
        "where",
        expression,
        "Join at most 2,048 characters of comparisons with AND: \"key\" = 'value', also with >,"
        " >=, < or <=; @container = 'name' limits the search.",
    )


def too_many_tags() -> LimitExceededError:
    return LimitExceededError(
        "TagsTooLarge",
        "The tags specified exceed the maximum size permitted.",
        hint=f"Use at most {limits.TAGS_MAX} tags for a blob.",
    )


def duplicate_tag() -> InvalidRequestError:
    return InvalidRequestError("DuplicateTagNames", "Tag keys must be unique.")
