"""`$filter`: text to tree, tree to text, tree to a closure over the members of a document.

Logic is two-valued: a comparison with a missing property is false for every operator, and a
property is less than every literal of another type. The one rule: the parser does not recurse,
and `limits.FILTER_DEPTH_MAX` bounds the trees, so that recursion over them is safe. The module
is long because tokens, tree and truth table must be read together.
"""

import binascii
import math
import operator
import string
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from functools import partial
from typing import Any, NamedTuple, assert_never

import msgspec

from partita.errors import FilterSyntaxError, UsageError
from partita.refusals import invalid_input, not_implemented
from partita.tables import edm, limits
from partita.tables.entity import check_property_name, printable
from partita.ticks import TICKS_PER_DAY

PARTITION_KEY, ROW_KEY, TIMESTAMP = "PartitionKey", "RowKey", "Timestamp"
SYSTEM_TYPES = {PARTITION_KEY: edm.STRING, ROW_KEY: edm.STRING, TIMESTAMP: edm.DATETIME}
"""Properties with a fixed type."""


class Literal(msgspec.Struct, frozen=True, gc=False):
    """A constant. DateTime is ticks, Guid lower-case text, Binary bytes."""

    type: str
    value: str | int | float | bool | bytes


class Comparison(msgspec.Struct, frozen=True):
    """Property on the left; `operator` is one of eq, ne, lt, le, gt, ge."""

    name: str
    operator: str
    literal: Literal


class Truth(msgspec.Struct, frozen=True):
    """A property without an operator: true if it is the Boolean true."""

    name: str


class Constant(msgspec.Struct, frozen=True):
    value: bool


class Not(msgspec.Struct, frozen=True):
    child: "Filter"


class And(msgspec.Struct, frozen=True):
    """Two or more children, none of them an And: build it with `all_of`."""

    children: "tuple[Filter, ...]"


class Or(msgspec.Struct, frozen=True):
    """Two or more children, none of them an Or: build it with `any_of`."""

    children: "tuple[Filter, ...]"


Filter = Comparison | Truth | Constant | Not | And | Or
Predicate = Callable[[Mapping[str, object]], bool]


def all_of(filters: list[Filter]) -> Filter:
    """Join one or more filters with `and`, in one flat chain."""
    flat: list[Filter] = []
    for each in filters:
        flat.extend(each.children if isinstance(each, And) else (each,))
    return flat[0] if len(flat) == 1 else And(tuple(flat))


def any_of(filters: list[Filter]) -> Filter:
    """Join one or more filters with `or`, in one flat chain."""
    flat: list[Filter] = []
    for each in filters:
        flat.extend(each.children if isinstance(each, Or) else (each,))
    return flat[0] if len(flat) == 1 else Or(tuple(flat))


# ---------------------------------------------------------------------------------------------
# Errors, with the messages of the service


def _syntax_error(text: str, position: int) -> FilterSyntaxError:
    return FilterSyntaxError(
        "InvalidInput", f"Syntax error at position {position} in '{printable(text)}'."
    )


def _not_int32(text: str, position: int, digits: str) -> FilterSyntaxError:
    shown = digits[: limits.NUMBER_DIGITS_MAX]
    return FilterSyntaxError(
        "InvalidInput",
        f"Unrecognized 'Edm.Int32' literal '{shown}' at '{position}' in '{printable(text)}'.",
        hint=f"Write {shown}L: a whole number without L is an Int32.",
    )


def _not_valid(hint: str) -> FilterSyntaxError:
    return invalid_input(FilterSyntaxError, hint)


# ---------------------------------------------------------------------------------------------
# Tokens

_BLANKS = " \t\r\n"
_DIGITS = string.digits
_WORD_CHARACTERS = frozenset(string.ascii_letters + string.digits + "_")
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_KEYWORDS = _COMPARISONS | {"and", "or", "not"}
_ARITHMETIC = frozenset({"add", "sub", "mul", "div", "mod"})
_FUNCTIONS = frozenset(
    {"substringof", "endswith", "startswith", "length", "indexof", "replace", "substring"}
    | {"tolower", "toupper", "trim", "concat", "contains", "any", "all", "isof", "cast"}
    | {"day", "hour", "minute", "month", "second", "year", "round", "floor", "ceiling"}
)
_TRUE, _FALSE = Literal(edm.BOOLEAN, value=True), Literal(edm.BOOLEAN, value=False)
_WORDS = {
    "true": _TRUE,
    "false": _FALSE,
    # Not part of the protocol, but clients that print a Python or .NET boolean send them.
    "True": _TRUE,
    "False": _FALSE,
    "NaN": Literal(edm.DOUBLE, math.nan),
    "INF": Literal(edm.DOUBLE, math.inf),
    "Infinity": Literal(edm.DOUBLE, math.inf),
    "-INF": Literal(edm.DOUBLE, -math.inf),
    "-Infinity": Literal(edm.DOUBLE, -math.inf),
}
RESERVED_WORDS = _KEYWORDS | _WORDS.keys() | {"null"}
"""Words that are not names of properties."""
_TICKS_FIRST = (date.min.toordinal() - date(1970, 1, 1).toordinal()) * TICKS_PER_DAY


class _Name(NamedTuple):
    text: str


class _Token(NamedTuple):
    """`kind` is `(`, `)`, `end`, `operand`, or the keyword itself; `end` is its end offset."""

    kind: str
    end: int
    operand: _Name | Literal | None = None


def _tokens(text: str) -> Iterator[_Token]:
    position, length = 0, len(text)
    while position < length:
        character = text[position]
        if character in _BLANKS:
            position += 1
            continue
        if character in "()":
            token = _Token(character, position + 1)
        elif character == "'":
            value, end = _quoted(text, position)
            token = _Token("operand", end, Literal(edm.STRING, value))
        elif character in _DIGITS or character in "-.":
            token = _number(text, position)
        elif character in _WORD_CHARACTERS or character > "\x7f":
            token = _word(text, position)
        else:
            raise _syntax_error(text, position + 1)
        yield token
        position = token.end
    yield _Token("end", length)


def _quoted(text: str, start: int) -> tuple[str, int]:
    """Return the text between quotes, and its end; `''` is one quote."""
    end = text.find("'", start + 1)
    while end >= 0 and text.startswith("'", end + 1):
        end = text.find("'", end + 2)
    if end < 0:
        raise _syntax_error(text, len(text))
    return text[start + 1 : end].replace("''", "'"), end + 1


def _word(text: str, start: int) -> _Token:
    end = _end_of_word(text, start)
    word = text[start:end]
    if text.startswith("'", end) and word in _PREFIXES:
        quoted, end = _quoted(text, end)
        literal = _PREFIXES[word](quoted)
        if literal is None:
            raise _syntax_error(text, end)
        return _Token("operand", end, literal)
    if word in _KEYWORDS:
        return _Token(word, end)
    if word == "null":
        raise _not_valid("Do not compare with null: a missing property never matches.")
    if word in _WORDS:
        return _Token("operand", end, _WORDS[word])
    try:
        return _Token("operand", end, _Name(check_property_name(word)))
    except UsageError:
        raise _syntax_error(text, end) from None


def _end_of_word(text: str, start: int) -> int:
    end, length = start, len(text)
    # Beyond ASCII this accepts too much; `check_property_name` decides.
    while end < length and ((character := text[end]) in _WORD_CHARACTERS or character > "\x7f"):
        end += 1
    return end


def _end_of_digits(text: str, start: int) -> int:
    end = start
    while end < len(text) and text[end] in _DIGITS:
        end += 1
    return end


def _number(text: str, start: int) -> _Token:
    first = start + (text[start] == "-")
    end = _end_of_digits(text, first)
    is_whole = True
    if text.startswith(".", end) and _end_of_digits(text, end + 1) > end + 1:
        end, is_whole = _end_of_digits(text, end + 1), False
    if end == first:
        return _minus_infinity(text, start)
    exponent = end + 1 + (text[end + 1 : end + 2] in ("+", "-"))
    if text[end : end + 1] in ("e", "E") and _end_of_digits(text, exponent) > exponent:
        end, is_whole = _end_of_digits(text, exponent), False
    suffix = text[end : end + 1]
    digits = text[start:end]
    if suffix in ("L", "l") and is_whole:
        literal, end = _whole(digits, is_long=True), end + 1
    elif suffix in ("D", "d"):
        literal, end = _double(digits), end + 1
    elif is_whole:
        literal = _whole(digits, is_long=False)
        if literal is None:
            raise _not_int32(text, start, digits)
    else:
        literal = _double(digits)
    if literal is None:
        raise _syntax_error(text, end)
    return _Token("operand", end, literal)


def _minus_infinity(text: str, start: int) -> _Token:
    end = _end_of_word(text, start + 1)
    literal = _WORDS.get(text[start:end])
    if literal is None or literal.type != edm.DOUBLE:
        raise _syntax_error(text, end)
    return _Token("operand", end, literal)


def _whole(digits: str, *, is_long: bool) -> Literal | None:
    if len(digits) > limits.NUMBER_DIGITS_MAX:
        return None
    value = int(digits)
    if is_long:
        return Literal(edm.INT64, value) if edm.INT64_MIN <= value <= edm.INT64_MAX else None
    return Literal(edm.INT32, value) if edm.INT32_MIN <= value <= edm.INT32_MAX else None


def _double(digits: str) -> Literal | None:
    value = float(digits)
    return Literal(edm.DOUBLE, value or 0.0) if math.isfinite(value) else None


def _datetime(text: str) -> Literal | None:
    ticks = edm.ticks_of(text)
    # An offset can move the first and last day out of the printable range.
    if ticks is None or not _TICKS_FIRST <= ticks <= edm.TICKS_MAX:
        return None
    return Literal(edm.DATETIME, ticks)


def _guid(text: str) -> Literal | None:
    try:
        return Literal(edm.GUID, edm.canonical("", text, edm.GUID)[1])
    except UsageError:
        return None


def _binary(text: str) -> Literal | None:
    try:
        return Literal(edm.BINARY, binascii.unhexlify(text))
    except ValueError:
        return None


_PREFIXES: dict[str, Callable[[str], Literal | None]] = {
    "datetime": _datetime,
    "guid": _guid,
    "X": _binary,
    "binary": _binary,
}


# ---------------------------------------------------------------------------------------------
# Text to tree

_Operand = _Name | Literal | Filter


def parse(text: str) -> Filter | None:
    """Parse a filter; a blank one is None.

    Raises FilterSyntaxError for invalid text and NotSupportedError for parts of the protocol
    that the service does not implement: functions, arithmetic, comparisons without a property
    or without a constant.
    """
    if len(text) > limits.FILTER_CHARACTERS_MAX:
        raise _not_valid("Use a shorter filter.")
    if not text.strip(_BLANKS):
        return None
    return _Parser(text).run()


class _Level:
    """The state since one opening parenthesis.

    `left` and `comparison` wait for the right side; `nots` apply to the comparison that is
    being read; `conjuncts` are joined by `and`, `alternatives` by `or`.
    """

    __slots__ = ("alternatives", "comparison", "conjuncts", "left", "nots")

    def __init__(self) -> None:
        self.alternatives: list[_Operand] = []
        self.conjuncts: list[_Operand] = []
        self.nots = 0
        self.left: _Operand | None = None
        self.comparison: str | None = None

    def end_conjunct(self, operand: _Operand) -> None:
        if self.comparison is not None and self.left is not None:
            operand = _compare(self.left, self.comparison, operand)
            self.left = self.comparison = None
        for _ in range(self.nots):
            operand = Not(_condition_of_not(operand))
        self.nots = 0
        self.conjuncts.append(operand)

    def end_alternative(self, operand: _Operand) -> None:
        self.end_conjunct(operand)
        self.alternatives.append(_join(self.conjuncts, "And", all_of))
        self.conjuncts = []

    def end(self, operand: _Operand) -> _Operand:
        self.end_alternative(operand)
        return _join(self.alternatives, "Or", any_of)


class _Parser:
    """Parses the tokens in one pass, with a stack of levels instead of recursion."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._levels = [_Level()]
        self._depth = 0
        """Open parentheses and pending nots."""

    def run(self) -> Filter:
        operand: _Operand | None = None
        for token in _tokens(self._text):
            operand = self._begin(token) if operand is None else self._go_on(operand, token)
        assert operand is not None, "the end token is refused while an operand is missing"
        condition = _as_condition(operand)
        if condition is None:
            raise FilterSyntaxError(
                "InvalidInput", "The $filter expression must evaluate to a single boolean value."
            )
        return condition

    def _begin(self, token: _Token) -> _Operand | None:
        """Handle a token where an operand must start."""
        level = self._levels[-1]
        if token.operand is not None:
            return token.operand
        if token.kind == "(":
            self._levels.append(_Level())
            self._deepen()
            return None
        if token.kind == "not" and level.comparison is None:
            level.nots += 1
            self._deepen()
            return None
        raise _syntax_error(self._text, token.end)

    def _go_on(self, operand: _Operand, token: _Token) -> _Operand | None:
        """Handle a token after a complete operand."""
        level = self._levels[-1]
        kind = token.kind
        if kind in _COMPARISONS and level.comparison is None:
            level.left, level.comparison = operand, kind
            return None
        self._depth -= level.nots
        if kind == "and":
            level.end_conjunct(operand)
            return None
        if kind == "or":
            level.end_alternative(operand)
            return None
        if kind == ")" and len(self._levels) > 1:
            self._depth -= 1
            return self._levels.pop().end(operand)
        if kind == "end" and len(self._levels) == 1:
            return level.end(operand)
        self._refuse_functions(operand, token)
        raise _syntax_error(self._text, token.end)

    def _refuse_functions(self, operand: _Operand, token: _Token) -> None:
        if token.kind == "(" and isinstance(operand, _Name) and operand.text in _FUNCTIONS:
            raise not_implemented("Do not use functions in a filter.")
        if isinstance(token.operand, _Name) and token.operand.text in _ARITHMETIC:
            raise not_implemented("Do not use arithmetic in a filter.")

    def _deepen(self) -> None:
        self._depth += 1
        if self._depth > limits.FILTER_DEPTH_MAX:
            raise _not_valid("Use fewer levels of parentheses and not in a filter.")


_TURNED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def _compare(left: _Operand, comparison: str, right: _Operand) -> Comparison:
    if isinstance(left, _Name) and isinstance(right, Literal):
        return Comparison(left.text, comparison, right)
    if isinstance(left, Literal) and isinstance(right, _Name):
        return Comparison(right.text, _TURNED[comparison], left)
    raise not_implemented("Compare a property with a constant.")


def _as_condition(operand: _Operand) -> Filter | None:
    """Return an operand as a condition; None if its type is not Boolean."""
    if isinstance(operand, _Name):
        return None if operand.text in SYSTEM_TYPES else Truth(operand.text)
    if isinstance(operand, Literal):
        return Constant(operand.value is True) if operand.type == edm.BOOLEAN else None
    return operand


def _type_name(operand: _Operand) -> str:
    if isinstance(operand, _Name):
        return SYSTEM_TYPES.get(operand.text, edm.BOOLEAN)
    return operand.type if isinstance(operand, Literal) else edm.BOOLEAN


def _condition_of_not(operand: _Operand) -> Filter:
    condition = _as_condition(operand)
    if condition is None:
        raise FilterSyntaxError(
            "InvalidInput",
            "A unary operator with an incompatible type was detected."
            f" Found operand type '{_type_name(operand)}' for operator kind 'Not'.",
        )
    return condition


def _join(operands: list[_Operand], kind: str, join: Callable[[list[Filter]], Filter]) -> _Operand:
    if len(operands) == 1:
        return operands[0]
    conditions: list[Filter] = []
    for index, operand in enumerate(operands):
        condition = _as_condition(operand)
        if condition is None:
            # Everything before is one Boolean operand on the left.
            left = edm.BOOLEAN if index else _type_name(operand)
            right = _type_name(operands[index or 1])
            raise FilterSyntaxError(
                "InvalidInput",
                "A binary operator with incompatible types was detected."
                f" Found operand types '{left}' and '{right}' for operator kind '{kind}'.",
            )
        conditions.append(condition)
    return join(conditions)


# ---------------------------------------------------------------------------------------------
# Tree to text


def to_text(node: Filter) -> str:
    """Print a filter so that `parse` returns the same tree."""
    match node:
        case Comparison():
            return f"{node.name} {node.operator} {literal_text(node.literal)}"
        case Truth():
            return node.name
        case Constant():
            return "true" if node.value else "false"
        case Not():
            bare = isinstance(node.child, Not | Truth | Constant)
            return f"not {to_text(node.child)}" if bare else f"not ({to_text(node.child)})"
        case And():
            return " and ".join(
                [f"({to_text(c)})" if isinstance(c, Or) else to_text(c) for c in node.children]
            )
        case Or():
            return " or ".join([to_text(child) for child in node.children])
        case _:
            assert_never(node)


def literal_text(literal: Literal) -> str:
    """Print a constant in the syntax of filters."""
    return _PRINTERS[literal.type](literal.value)


def _double_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value).replace("e+", "e")


_PRINTERS: dict[str, Callable[[Any], str]] = {
    edm.STRING: lambda value: "'" + value.replace("'", "''") + "'",
    edm.INT32: str,
    edm.INT64: lambda value: f"{value}L",
    edm.DOUBLE: _double_text,
    edm.BOOLEAN: lambda value: "true" if value else "false",
    edm.DATETIME: lambda value: f"datetime'{edm.text_of(value)}'",
    edm.GUID: lambda value: f"guid'{value}'",
    edm.BINARY: lambda value: f"X'{value.hex()}'",
}


# ---------------------------------------------------------------------------------------------
# Tree to closure

_Test = Callable[[Any], bool]
"""For an existing value that fits the literal."""

# The literal is bound as the first argument, so that most tests run without a Python frame:
# `property lt literal` is `literal > property`.
_TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.gt,
    "le": operator.ge,
    "gt": operator.lt,
    "ge": operator.le,
}
OPPOSITES = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}
"""For an existing property that is not NaN, exactly one of the two is true."""
TRUE_ON_MISMATCH = frozenset({"ne", "lt", "le"})
"""A property is less than every literal of another type."""


def names_in(node: Filter) -> frozenset[str]:
    """Return the names of all properties in a filter."""
    if isinstance(node, Comparison | Truth):
        return frozenset({node.name})
    if isinstance(node, Not):
        return names_in(node.child)
    if isinstance(node, And | Or):
        return frozenset().union(*map(names_in, node.children))
    return frozenset()


def compile_filter(node: Filter) -> Predicate:
    """Return a function that evaluates the filter on the decoded members of a document.

    NaN follows IEEE 754, on either side: `ne` is true, every other operator false.
    """
    match node:
        case Comparison():
            return _compile_comparison(node)
        case Truth():
            return _compile_truth(node.name)
        case Constant():
            value = node.value
            return lambda _: value
        case Not():
            child = compile_filter(node.child)
            return lambda members: not child(members)
        case And():
            return _compile_and([compile_filter(child) for child in node.children])
        case Or():
            return _compile_or([compile_filter(child) for child in node.children])
        case _:
            assert_never(node)


def _compile_truth(name: str) -> Predicate:
    return lambda members: members.get(name) is True


def _compile_and(predicates: list[Predicate]) -> Predicate:
    if len(predicates) == 2:
        first, second = predicates
        return lambda members: first(members) and second(members)

    def every(members: Mapping[str, object]) -> bool:
        for predicate in predicates:  # noqa: SIM110 - all() would cost a generator an entity
            if not predicate(members):
                return False
        return True

    return every


def _compile_or(predicates: list[Predicate]) -> Predicate:
    if len(predicates) == 2:
        first, second = predicates
        return lambda members: first(members) or second(members)

    def some(members: Mapping[str, object]) -> bool:
        for predicate in predicates:  # noqa: SIM110 - any() would cost a generator an entity
            if predicate(members):
                return True
        return False

    return some


def _compile_comparison(node: Comparison) -> Predicate:
    name, annotation = node.name, node.name + edm.TYPE_SUFFIX
    tests = _tests_by_kind(node.literal, _TESTS[node.operator])
    if node.name == TIMESTAMP:
        # Its type is fixed and not annotated.
        tests = {str: tests[edm.DATETIME]} if edm.DATETIME in tests else {}
    on_mismatch = node.operator in TRUE_ON_MISMATCH

    def check(members: Mapping[str, object]) -> bool:
        value = members.get(name)
        if value is None:
            return False
        test = tests.get(members.get(annotation) or type(value))
        return on_mismatch if test is None else test(value)

    return check


def _tests_by_kind(literal: Literal, test: Callable[[Any, Any], bool]) -> dict[object, _Test]:
    """Return the tests for the kinds of stored value that the literal fits or widens to.

    A kind is the annotation of the stored value, or else its JSON type.
    """
    tests: dict[object, _Test] = {}
    value: Any = literal.value
    plain = _PLAIN_KINDS.get(literal.type)
    if plain is not None:
        tests[plain] = partial(test, value)
    if literal.type in (edm.INT32, edm.INT64):
        tests[edm.INT64] = _read_by(int, test, value)
    if literal.type in (edm.INT32, edm.INT64, edm.DOUBLE):
        tests[float] = partial(test, float(value))
        tests[edm.DOUBLE] = _read_by(float, test, float(value))
    if literal.type == edm.DATETIME:
        # Without its Z, canonical text has the order of time: 10:00 < 10:00.5 < 10:00.51.
        tests[edm.DATETIME] = _read_by(_without_zone, test, edm.text_of(value)[:-1])
    if literal.type == edm.BINARY:
        tests[edm.BINARY] = _read_by(binascii.a2b_base64, test, value)
    return tests


_PLAIN_KINDS: dict[str, object] = {
    edm.STRING: str,
    edm.BOOLEAN: bool,
    edm.INT32: int,
    edm.GUID: edm.GUID,
}
"""Values whose stored form is the literal's."""


def _read_by(read: Callable[[Any], Any], test: Callable[[Any, Any], bool], value: object) -> _Test:
    return lambda stored: test(value, read(stored))


def _without_zone(text: str) -> str:
    return text[:-1]


# ---------------------------------------------------------------------------------------------
# The filter of a list of tables

TABLE_NAME = "TableName"


def parse_table_filter(text: str) -> Filter | None:
    """Parse the filter of a list of tables: the same grammar over `TableName` alone.

    Table names match without case, so comparisons ignore it, too: literals are lower-cased here
    and names in `compile_table_filter`. A prefix search (ge and lt) then finds the same tables
    for any case of the prefix, in the order of the listing.
    """
    try:
        tree = parse(text)
    except FilterSyntaxError as error:
        # The answer of the service, unlike for entities.
        raise not_implemented(error.message) from error
    return None if tree is None else _lower_cased(tree)


def compile_table_filter(node: Filter) -> Callable[[str], bool]:
    """Return a function that evaluates the filter on the name of a table, in any case."""
    predicate = compile_filter(node)
    return lambda name: predicate({TABLE_NAME: name.lower()})


def _lower_cased(node: Filter) -> Filter:
    match node:
        case Comparison() | Truth() if node.name != TABLE_NAME:
            raise _not_valid("Filter tables by TableName only.")
        case Comparison(literal=Literal(type=edm.STRING, value=value)):
            literal = Literal(edm.STRING, str(value).lower())
            return Comparison(node.name, node.operator, literal)
        case Not():
            return Not(_lower_cased(node.child))
        case And():
            return And(tuple([_lower_cased(child) for child in node.children]))
        case Or():
            return Or(tuple([_lower_cased(child) for child in node.children]))
        case _:
            return node
