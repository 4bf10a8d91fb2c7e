"""Commits a query's offsets to a consumer group. A failure is reported once, and never raised.

Each commit reads what the group has and writes what is further, so that repeating one, after a
restart say, changes nothing. Threads and Spark are in `group_offsets`.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import Final

from kbroker.client.cluster import LATEST_TIMESTAMP
from kbroker.protocol.errors import ErrorCode, KafkaError

from ..checkpoint import Offsets
from ..errors import JobError, StartRefused
from ..wire.client import BlockingClient
from ..wire.groups import GroupView, commit_offsets, committed_offsets, describe_group
from ..wire.offsets import list_offsets
from .commit_plan import CommitPlan, ahead_of, plan_commit

logger = logging.getLogger(__name__)

RENEW_S: Final = 3600.0
"""Offsets that do not change are committed again after this time. Brokers delete those of a group
without members after `offsets.retention.minutes`, a week by default.
"""

_REFUSED_CODES: Final = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_MEMBER_EPOCH,
    }
)
"""What a coordinator answers to a commit without a member while the group has members."""


class Trouble(Enum):
    """Why offsets are not committed."""

    FAILED = "failed"
    REFUSED = "refused"


def refusal(group: str, view: GroupView) -> str | None:
    """Why a query may not commit to a group; None if it may."""
    if view.kind == "share":
        return (
            f"group {group} is a share group, which has no committed offsets: choose another name"
        )
    if not view.members:
        return None
    shown = [f"{member.client_id} at {member.host.lstrip('/')}" for member in view.members]
    more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
    return (
        f"group {group} has live members ({', '.join(shown[:3])}{more}): their offsets would be "
        "overwritten. Stop them, or choose another group"
    )


class Committer:
    """Commits to one group. Not for use by several threads."""

    def __init__(self, client: BlockingClient, group: str) -> None:
        self.trouble: Trouble | None = None
        self._client = client
        self._group = group
        self._done: Offsets | None = None
        self._renew_at_s = 0.0
        self._said_ahead = False

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def check(self) -> None:
        """Raises StartRefused if a query may not commit to the group, JobError if the cluster does
        not allow to look; a cluster that cannot be reached is reported only.
        """
        try:
            why = refusal(self._group, describe_group(self._client, self._group))
        except KafkaError as error:
            if not error.code.retriable:
                raise JobError(f"group {self._group}: {error}") from error
            self._failed(str(error))
            return
        except JobError as error:
            self._failed(str(error))
            return
        if why is not None:
            raise StartRefused(why)

    def commit(self, ends: Offsets) -> bool:
        """Commit the offsets (exclusive) that a query has reached, except where the group is
        further. Returns whether the group has them now.
        """
        if ends == self._done and self._client.clock.monotonic() < self._renew_at_s:
            return True
        try:
            plan = self._plan(ends)
            if plan.offsets:
                commit_offsets(self._client, self._group, plan.offsets)
        except KafkaError as error:
            if error.code in _REFUSED_CODES:
                self._refused()
            else:
                self._failed(str(error))
            return False
        except JobError as error:  # no broker answers
            self._failed(str(error))
            return False
        self._say_moves(plan)
        if self.trouble is not None:
            logger.info("group %s: offsets are committed again", self._group)
        self.trouble = None
        self._done = ends
        self._renew_at_s = self._client.clock.monotonic() + RENEW_S
        return True

    def _plan(self, ends: Offsets) -> CommitPlan:
        committed = committed_offsets(self._client, self._group, ends)
        ahead = ahead_of(ends, committed)
        log_ends = self._client.retry(
            lambda: list_offsets(self._client, dict.fromkeys(ahead, LATEST_TIMESTAMP))
        )
        return plan_commit(ends, committed, log_ends)

    def _say_moves(self, plan: CommitPlan) -> None:
        if plan.replaced:
            shown = ", ".join(map(str, plan.replaced[:3]))
            logger.warning(
                "group %s: the offsets of %s were behind the end of the topic, which was created "
                "again: they are replaced",
                self._group,
                shown + (" and more" if len(plan.replaced) > 3 else ""),
            )
        if plan.ahead and not self._said_ahead:
            logger.warning(
                "group %s is further than the query in %s and %d more partitions: it is not moved "
                "back, and moves on when the query has read as far",
                self._group,
                plan.ahead[0],
                len(plan.ahead) - 1,
            )
        self._said_ahead = bool(plan.ahead)

    def _refused(self) -> None:
        """Report that the group has members, by name if they can be described."""
        if self.trouble is Trouble.REFUSED:
            return
        self.trouble = Trouble.REFUSED
        try:
            why = refusal(self._group, describe_group(self._client, self._group))
        except (KafkaError, JobError):
            why = None
        logger.warning(
            "%s; the query goes on, and its offsets are committed once they have left",
            why or f"group {self._group} has live members",
        )

    def _failed(self, why: str) -> None:
        if self.trouble is Trouble.FAILED:
            return
        self.trouble = Trouble.FAILED
        logger.warning(
            "group %s: offsets cannot be committed (%s); the query goes on, and they are committed "
            "once that works",
            self._group,
            why,
        )
