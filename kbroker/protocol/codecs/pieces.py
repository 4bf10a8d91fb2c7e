"""Splits a message into smaller messages of the same kind, and merges responses.

`pieces` splits a request or a response along nested lists, such as topics and their partitions, so
that each piece is processed in one step. `merge` merges the responses to the pieces: a topic that
was split is one topic of the whole response.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any, Final

from kbroker.protocol.codecs.schema import Struct

PIECE_ITEMS: Final = 64
"""The number of items in a piece: about a millisecond of work."""


# Any below: any request, any response, and the items of their lists


def pieces(value: Any, path: tuple[str, ...], size: int = PIECE_ITEMS) -> Iterator[tuple[Any, int]]:
    """Copies of value with at most size items each, in order. Each is returned with the number of
    its outermost lists whose first item continues the last item of the previous piece.
    """
    name, *rest = path
    items = getattr(value, name)
    if not items:
        yield value, 0
        return
    if not rest:
        for begin in range(0, len(items), size):
            yield _with(value, name, items[begin : begin + size]), 0
        return
    whole: list[Any] = []
    room = size
    for item in items:
        weight = _weight(item, rest, size)
        if weight > room and whole:
            yield _with(value, name, whole), 0
            whole, room = [], size
        if weight <= size:
            whole.append(item)
            room -= weight
            continue
        for number, (piece, continued) in enumerate(pieces(item, tuple(rest), size)):
            yield _with(value, name, [piece]), continued + 1 if number else 0
    if whole:
        yield _with(value, name, whole), 0


def _with(value: Any, name: str, items: list[Any]) -> Any:
    changed = copy(value)
    setattr(changed, name, items)
    return changed


def _weight(item: Any, path: list[str], size: int) -> int:
    """How many items item has, at least 1. Null means all and counts as size."""
    items = getattr(item, path[0])
    if items is None:
        return size
    if len(path) == 1:
        return len(items) or 1
    return sum(_weight(each, path[1:], size) for each in items) or 1


def merge(total: Any, piece: Any, path: tuple[str, ...], continued: int) -> None:
    """Merge the response to a piece into the response to all earlier pieces."""
    name, *rest = path
    items, more = getattr(total, name), getattr(piece, name)
    if continued and rest and items and more and _is_same(items[-1], more[0], rest[0]):
        merge(items[-1], more[0], tuple(rest), continued - 1)
        more = more[1:]
    items.extend(more)


def _is_same(one: Struct, other: Struct, apart_from: str) -> bool:
    """Whether both have the same fields, apart from one list."""
    return all(
        getattr(one, field.name) == getattr(other, field.name)
        for field in one.FIELDS
        if field.name != apart_from
    )
