"""The identity of a transactional producer, for modules that do not need the coordinator."""

from __future__ import annotations

from typing import NamedTuple


class Producer(NamedTuple):
    """The transactional id, producer id and epoch in a request."""

    producer_id: int
    producer_epoch: int
