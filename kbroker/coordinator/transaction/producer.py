"""Who a transactional producer is, for those who need no coordinator for it."""

from __future__ import annotations

from typing import NamedTuple


class Producer(NamedTuple):
    """The identity of a producer in a request."""

    producer_id: int
    producer_epoch: int
