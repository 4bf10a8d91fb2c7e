"""The extremes of every configuration key, from its row in a table: the least and the largest value
that its validator and its type allow, 0, -1, and one beyond each.

`is_allowed` says what Kafka's validator would, from the printed notation alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from random import Random
from typing import Final

from kbroker.settings.tables.keys import ConfigKey, ConfigType

_BITS: Final = {ConfigType.SHORT: 16, ConfigType.INT: 32, ConfigType.LONG: 64}

Setting = tuple[str, str]
"""(name, value as text)."""


def extremes(key: ConfigKey) -> list[str]:
    """Texts to try, each once."""
    if key.type in _BITS:
        lowest, highest = _type_range(key)
        numbers = {0, -1, lowest - 1, lowest, highest, highest + 1}
        bounds = [int(bound) for bound in _bounds(key)]
        numbers |= {number for low in bounds[:1] for number in (low - 1, low)}
        numbers |= {number for high in bounds[1:2] for number in (high, high + 1)}
        return [str(number) for number in sorted(numbers | set(bounds))]
    if key.type is ConfigType.DOUBLE:
        values = ["0", "-1", "1", "0.5", "5e-324", "-5e-324", "1.7976931348623157e308", "NaN"]
        values += ["Infinity", "-Infinity", "1e999"]
        return [*values, *(repr(bound + 0.001) for bound in _bounds(key))]
    if key.type is ConfigType.BOOLEAN:
        return ["true", "false", "", "maybe"]
    choices = _choices(key)
    if key.type is ConfigType.LIST:
        together = [",".join(choices), ",".join(choices[::-1] + choices)] if choices else ["a,a"]
        return list(dict.fromkeys([*choices, "", "*", "0:1,1:1", "neither", "a,,b", *together]))
    return list(dict.fromkeys([*choices, "", "neither", "x" * 300, "\N{SNOWMAN}\n"]))


def is_allowed(key: ConfigKey, text: str) -> bool | None:
    """Whether Kafka's validator lets a number or a boolean be; None where it is not for this module
    to say.
    """
    if key.type in _BITS:
        low, high = _type_range(key)
        return low <= int(text) <= high and _is_within(key, int(text))
    if key.type is ConfigType.DOUBLE:
        return None if math.isnan(float(text)) else _is_within(key, float(text))
    if key.type is ConfigType.BOOLEAN:
        return text in ("true", "false")
    return None


def _type_range(key: ConfigKey) -> tuple[int, int]:
    half = 1 << (_BITS[key.type] - 1)
    return -half, half - 1


def _bounds(key: ConfigKey) -> list[float]:
    """Numbers in `[low,...]`, `[low,...,high]` and `[low,...,high] or other`."""
    notation = key.allowed
    if not notation.startswith("[") or "..." not in notation or "partitionId" in notation:
        return []
    inner, _, other = notation.partition(" or ")
    low, _, high = inner.strip("[]").partition(",...")
    return [float(text) for text in (low, high.strip(","), other) if text]


def _is_within(key: ConfigKey, value: float) -> bool:
    notation = key.allowed
    if not _bounds(key):
        return True
    inner, _, other = notation.partition(" or ")
    low, _, high = inner.strip("[]").partition(",...")
    high = high.strip(",")
    is_between = value >= float(low) and (not high or value <= float(high))
    return is_between or (bool(other) and value == float(other))


def _choices(key: ConfigKey) -> list[str]:
    notation = key.allowed.removeprefix("(case insensitive) ")
    if not notation.startswith("[") or "..." in notation or "partitionId" in notation:
        return []
    return notation.strip("[]").split(", ")


def all_pairs(settings: Sequence[Setting]) -> Iterator[dict[str, str]]:
    """Each two settings of different keys."""
    for one, other in combinations(settings, 2):
        if one[0] != other[0]:
            yield dict((one, other))


def covering(settings: Sequence[Setting], random: Random) -> Iterator[dict[str, str]]:
    """All keys set at once, so often that each pair of settings has been together at least once."""
    values: dict[str, list[str]] = {}
    for name, text in settings:
        values.setdefault(name, []).append(text)
    missing = {
        (one, other)
        for first, second in combinations(sorted(values), 2)
        for one, other in product(
            [(first, text) for text in values[first]], [(second, text) for text in values[second]]
        )
    }
    while missing:
        one, other = random.choice(sorted(missing))
        chosen = dict((one, other))
        names = [name for name in values if name not in chosen]
        random.shuffle(names)
        for name in names:
            chosen[name] = max(
                random.sample(values[name], len(values[name])),
                key=lambda text: sum(
                    tuple(sorted(((name, text), known))) in missing for known in chosen.items()
                ),
            )
        missing -= {tuple(sorted(pair)) for pair in combinations(chosen.items(), 2)}  # type: ignore[misc]  # pairs of two
        yield chosen
