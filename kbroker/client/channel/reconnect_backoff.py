"""How long a node is not connected to after a connection failed: exponential, bounded, per node.

Kafka's `reconnect.backoff.ms` and `reconnect.backoff.max.ms`, with its jitter of 20 %. A bound per
node keeps one unreachable node from delaying the others (KAFKA-18345).
"""

from __future__ import annotations

from typing import Final

from kbroker.ports import Random

JITTER: Final = 0.2


class ReconnectBackoff:
    """base_ms: after the first failure; it doubles up to max_ms, before jitter."""

    __slots__ = ("_base_ms", "_failures", "_max_ms", "_random", "_until_ms")

    def __init__(self, random: Random, *, base_ms: int, max_ms: int) -> None:
        self._random = random
        self._base_ms = base_ms
        self._max_ms = max_ms
        self._failures: dict[int, int] = {}
        self._until_ms: dict[int, int] = {}

    def failed(self, node_id: int, now_ms: int) -> None:
        """A connection to the node was lost, or could not be made. During the back-off there is no
        attempt: another connection that is lost then has the same cause, and counts once.
        """
        if self.remaining_ms(node_id, now_ms):
            return
        failures = self._failures.get(node_id, 0)
        delay_ms = min(self._max_ms, self._base_ms << min(failures, 32))
        self._failures[node_id] = failures + 1
        jitter = self._random.uniform(1 - JITTER, 1 + JITTER)
        self._until_ms[node_id] = now_ms + int(delay_ms * jitter)

    def succeeded(self, node_id: int) -> None:
        """A connection is ready: the next failure is the first again."""
        self._failures.pop(node_id, None)

    def remaining_ms(self, node_id: int, now_ms: int) -> int:
        """How long the node is still not connected to; 0 if it may be."""
        until_ms = self._until_ms.get(node_id)
        if until_ms is None:
            return 0
        if until_ms <= now_ms:
            del self._until_ms[node_id]
            return 0
        return until_ms - now_ms

    def forget(self, node_id: int) -> None:
        """The node left the cluster, or has another address."""
        self._failures.pop(node_id, None)
        self._until_ms.pop(node_id, None)
