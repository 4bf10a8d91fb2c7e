"""Says in a controller's log that the metadata quorum has no working leader, and that it has one
again.

A follower whose leader and majority are gone asks for pre-votes, returns to following the same dead
leader and asks again: no epoch and no leader changes, so nothing else tells the operator.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from kbroker.ports import TimerHandle, Timers
from kbroker.quorum.status import QuorumStatus

logger = logging.getLogger(__name__)

CHECK_MS: Final = 500
REPEAT_MAX_MS: Final = 300_000
"""The pause between two lines doubles up to this."""

_WORKING: Final = frozenset({"leader", "follower", "observer"})


class LeaderWatch:
    """Of one voter or observer. status: None before the quorum has started. warn_after_ms: of
    waiting without a leader; longer than an election takes. controllers: the setting that names
    them, for the line.
    """

    __slots__ = (
        "_controllers",
        "_high_watermark",
        "_next_line_ms",
        "_node_id",
        "_searched_ms",
        "_since_ms",
        "_status",
        "_timer",
        "_timers",
        "_warn_after_ms",
    )

    def __init__(
        self,
        status: Callable[[], QuorumStatus | None],
        timers: Timers,
        *,
        node_id: int,
        warn_after_ms: int,
        controllers: str,
    ) -> None:
        self._status = status
        self._timers = timers
        self._controllers = controllers
        self._node_id = node_id
        self._warn_after_ms = warn_after_ms
        self._timer: TimerHandle | None = None
        self._high_watermark = -1
        self._since_ms = 0
        self._searched_ms: int | None = None
        self._next_line_ms = warn_after_ms

    def start(self) -> None:
        """Look at the quorum from now on."""
        self._since_ms = self._timers.monotonic_ms()
        self._plan()

    def close(self) -> None:
        """Say nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _plan(self) -> None:
        self._timer = self._timers.call_later(CHECK_MS, self._check)

    def _check(self) -> None:
        self._plan()
        status, now_ms = self._status(), self._timers.monotonic_ms()
        if status is None:
            self._since_ms = now_ms
            return
        if status.state not in _WORKING:
            self._searched_ms = now_ms
        if self._works(status, now_ms):
            if self._next_line_ms > self._warn_after_ms:
                self._say_that_it_works(status, now_ms)
            self._since_ms, self._next_line_ms = now_ms, self._warn_after_ms
        elif now_ms - self._since_ms >= self._next_line_ms:
            self._say_that_it_does_not(status, now_ms)
            self._next_line_ms += min(self._next_line_ms, REPEAT_MAX_MS)

    def _works(self, status: QuorumStatus, now_ms: int) -> bool:
        """Whether records were committed since the last check, or this replica has not looked for
        a leader for a while: an idle quorum need not commit anything.
        """
        former, self._high_watermark = self._high_watermark, status.high_watermark
        is_searching = (
            self._searched_ms is not None and now_ms - self._searched_ms < self._warn_after_ms
        )
        return status.high_watermark > former >= 0 or not is_searching

    def _say_that_it_does_not(self, status: QuorumStatus, now_ms: int) -> None:
        logger.warning(
            "Node %d: no leader of the metadata quorum has answered for %d s (epoch %d, voters"
            " known here: %d, %s): unless a majority of the voters run and reach one another,"
            " metadata cannot change",
            self._node_id,
            (now_ms - self._since_ms) // 1000,
            status.epoch,
            status.voter_count,
            self._controllers,
        )

    def _say_that_it_works(self, status: QuorumStatus, now_ms: int) -> None:
        logger.info(
            "Node %d: the metadata quorum works again after %d s: node %d leads it in epoch %d",
            self._node_id,
            (now_ms - self._since_ms) // 1000,
            status.leader_id,
            status.epoch,
        )
