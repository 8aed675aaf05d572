"""Checks of recipe options, which come from JSON as they are."""

from __future__ import annotations


def whole(name: str, value: object, *, least: int, most: int) -> int:
    """A whole number within bounds.

    Raises:
        ValueError: it is not; the message begins with the option's name.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name}: must be a whole number from {least} to {most}, not {value!r}")
    return value


def share(name: str, value: object) -> float:
    """A number of at least 0 and less than 1.

    Raises:
        ValueError: it is not; the message begins with the option's name.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise ValueError(f"{name}: must be a number of at least 0 and less than 1, not {value!r}")
    return float(value)


def one_of(name: str, value: object, *, choices: tuple[str, ...]) -> str:
    """One of a few words.

    Raises:
        ValueError: it is not; the message begins with the option's name.
    """
    if value not in choices:
        raise ValueError(f"{name}: must be one of {', '.join(choices)}, not {value!r}")
    return str(value)
