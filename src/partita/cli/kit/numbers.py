"""Numbers on the command line; an error says which kind of number is needed."""

import math

import click


class Number(click.ParamType[float]):
    """A finite number that is not negative: whole or not, zero or not."""

    def __init__(self, name: str, *, is_whole: bool = False, is_positive: bool = False) -> None:
        self.name = name
        self._is_whole = is_whole
        self._is_positive = is_positive

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            number = int(str(value)) if self._is_whole else float(str(value))
        except ValueError:
            number = -1
        if not math.isfinite(number) or number < 0 or (self._is_positive and number == 0):
            self.fail(f"{value!r} is not a {self.name}.", param, ctx)
        return number


SECONDS = Number("number of seconds")
POSITIVE = Number("positive number", is_positive=True)
COUNT = Number("whole number", is_whole=True)
POSITIVE_COUNT = Number("positive whole number", is_whole=True, is_positive=True)
