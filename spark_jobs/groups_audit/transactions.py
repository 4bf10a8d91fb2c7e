"""The transactions that should have ended, out of the newest states of their ids. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from .history import OpenCommits
from .records import TransactionState

GRACE_MS: Final = 10_000
"""How long after its timeout a transaction may be aborted: the coordinator looks every 10 s
(transaction.abort.timed.out.transaction.cleanup.interval.ms)."""

_ENDING: Final = frozenset({"PrepareCommit", "PrepareAbort", "PrepareEpochFence"})


@dataclass(frozen=True, slots=True)
class StuckTransaction:
    """A transaction that holds back readers of committed records. transactional_id: empty if no
    coordinator knows the producer. partitions: as the coordinator has them.
    """

    transactional_id: str
    producer_id: int
    state: str
    since_ms: int
    partitions: tuple[str, ...]
    why: str


def transactional_ids(states: Mapping[str, TransactionState]) -> dict[int, str]:
    """The transactional id of each producer id, those that ids had before among them."""
    found: dict[int, str] = {}
    for name, state in states.items():
        if state.value is not None:
            for producer_id in (state.value.previous_producer_id, state.value.producer_id):
                if producer_id >= 0:
                    found[producer_id] = name
    return found


def stuck_transactions(
    states: Mapping[str, TransactionState],
    open_commits: Mapping[int, OpenCommits],
    *,
    now_ms: int,
    stuck_ms: int,
) -> list[StuckTransaction]:
    """Those of the states, by id, and those that only `__consumer_offsets` has, by producer id.

    stuck_ms: how long the end of a transaction may take.
    """
    found = [
        stuck
        for _, state in sorted(states.items())
        if (stuck := _stuck(state, now_ms, stuck_ms)) is not None
    ]
    active = {
        state.value.producer_id
        for state in states.values()
        if state.value is not None and (state.status == "Ongoing" or state.status in _ENDING)
    }
    names = transactional_ids(states)
    for producer_id, commits in sorted(open_commits.items()):
        if producer_id not in active and now_ms - commits.first_ms > stuck_ms:
            places = {f"{topic}-{partition} of {g}" for (g, topic, partition), _ in commits.commits}
            found.append(
                StuckTransaction(
                    names.get(producer_id, ""),
                    producer_id,
                    "hanging",
                    commits.first_ms,
                    tuple(sorted(places)),
                    "__consumer_offsets has offsets of it, and no coordinator will end it",
                )
            )
    return found


def _stuck(state: TransactionState, now_ms: int, stuck_ms: int) -> StuckTransaction | None:
    value = state.value
    if value is None:
        return None
    since_ms = value.transaction_start_timestamp_ms
    if state.status == "Ongoing":
        if now_ms - since_ms <= value.transaction_timeout_ms + GRACE_MS:
            return None
        why = f"it is open for longer than its timeout of {value.transaction_timeout_ms} ms"
    elif state.status in _ENDING:
        since_ms = value.transaction_last_update_timestamp_ms
        if now_ms - since_ms <= stuck_ms:
            return None
        why = "its markers are not written: a leader is missing, or its coordinator is"
    else:
        return None
    partitions = tuple(
        f"{topic.topic}-{partition}"
        for topic in value.transaction_partitions or ()
        for partition in topic.partition_ids
    )
    return StuckTransaction(
        state.transactional_id, value.producer_id, state.status, since_ms, partitions, why
    )
