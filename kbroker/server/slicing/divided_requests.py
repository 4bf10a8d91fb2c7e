"""Requests that name very many things which do not concern one another, handled a piece at a time.

A `Division` says which lists of a request lead to the items it names, and which lists of the
response to the results of those items; it is registered with the handler (`ApiHandler`). Such a
request is cut and its responses are joined by `protocol.codecs.pieces`. An API whose handler must
see the request as a whole has no division, and where its work grows with the request the handler is
`sliced`: repeated items are an error or answered once, the last offset of a partition counts, one
batch of records is written for the request. The neighbour is `large_requests`.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Division(NamedTuple):
    """Names of lists, outermost first; each is a field of the items of the one before."""

    request: tuple[str, ...]
    response: tuple[str, ...]


# Any: any response, and the items of its lists
def count_items(response: Any, path: tuple[str, ...]) -> int:
    """Items of the innermost lists of a response, or of the outer ones that are empty."""
    name, *rest = path
    items = getattr(response, name)
    if not rest:
        return len(items)
    return sum(count_items(item, tuple(rest)) or 1 for item in items)
