"""Numbers on the command line: argparse refuses others in words that say what is wanted."""


def seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError(text)
    return value


def positive(text: str) -> float:
    value = seconds(text)
    if not value:
        raise ValueError(text)
    return value


def count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def positive_count(text: str) -> int:
    value = count(text)
    if not value:
        raise ValueError(text)
    return value


# argparse says "invalid … value" with the name of the function.
seconds.__name__ = "number of seconds"
positive.__name__ = "positive number"
count.__name__ = "whole number"
positive_count.__name__ = "positive whole number"
