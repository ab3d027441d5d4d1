"""settings: nested settings -> flat names, and what two sets of them disagree on.

Loads no torch: recipes, run folders and records are compared before anything heavy is imported.
"""

import json
from collections.abc import Mapping
from typing import Any


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names.

    Example:
        >>> flatten({"seed": 1, "tree": {"gamma": 1.0}, "data": {"hops": (1, 2)}})
        {'seed': 1, 'tree.gamma': 1.0, 'data.hops': (1, 2)}
    """
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def changes(made: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Settings that differ, by dotted name, as JSON: what was, what is; `no value` where there is none.

    Example:
        >>> changes({"seed": 1, "hops": [1, 2]}, {"seed": 2, "hops": (1, 2)})
        {'seed': ('1', '2')}
    """
    before, after = ({name: json.dumps(value) for name, value in flatten(values).items()} for values in (made, now))
    pairs = {name: (before.get(name, "no value"), after.get(name, "no value")) for name in sorted({*before, *after})}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
