"""checks: a setting and its rule -> nothing, or the one form of error that a wrong setting has.

Example:
    >>> check("tree.gamma", -1.0, amount(-1.0), "finite and at least 0", "0 draws evenly")
    Traceback (most recent call last):
    ValueError: tree.gamma must be finite and at least 0, got -1.0: 0 draws evenly
"""

import math
from collections.abc import Callable
from urllib.parse import urlsplit


def check(name: str, value: object, passed: bool, rule: str, remedy: str = "") -> None:
    """Raise a ValueError that says what is wrong, what was given and what to do, unless `passed`."""
    if not passed:
        raise ValueError(f"{name} must be {rule}, got {value!r}" + (f": {remedy}" if remedy else ""))


def check_fields(prefix: str, settings: object, names: str, passes: Callable[[float], bool], rule: str) -> None:
    """Check several numeric fields of one object (names separated by spaces) against one rule."""
    for name in names.split():
        value = getattr(settings, name)
        check(f"{prefix}{name}", value, passes(value), rule)


def count(value: float) -> bool:
    """At least 1."""
    return value >= 1


def natural(value: float) -> bool:
    """At least 0."""
    return value >= 0


def seed(value: float) -> bool:
    """Fits an unsigned number of 64 bits."""
    return 0 <= value < 2**64


def amount(value: float) -> bool:
    """Finite and at least 0."""
    return math.isfinite(value) and value >= 0


def positive(value: float) -> bool:
    """Finite and above 0."""
    return math.isfinite(value) and value > 0


def fraction(value: float) -> bool:
    """Between 0 and 1, both included."""
    return 0 <= value <= 1


def is_url(value: str) -> bool:
    """An http or https address with a host.

    Example:
        >>> is_url("http://127.0.0.1:8000/retrieve"), is_url("127.0.0.1:8000")
        (True, False)
    """
    try:
        parts = urlsplit(value)
        # urlsplit drops spaces around an address; clients do not.
        if parts.scheme not in ("http", "https") or not parts.hostname or any(map(str.isspace, value)):
            return False
        # Encoding checks the labels of a name, reading the port checks it.
        return bool(parts.hostname.encode("idna")) and parts.port != 0
    # Also a UnicodeError, for a label.
    except ValueError:
        return False
