"""Which transactions are stuck."""

from __future__ import annotations

import pytest

from kbroker.protocol.messages.stored.transaction_records import TransactionLogValue
from spark_jobs.groups_audit.history import Commit, OpenCommits
from spark_jobs.groups_audit.records import STATES, TransactionState
from spark_jobs.groups_audit.transactions import (
    GRACE_MS,
    stuck_transactions,
    transactional_ids,
)

START, UPDATED, TIMEOUT, STUCK = 1_000, 2_000, 60_000, 30_000


def state(status: str, producer_id: int = 4) -> TransactionState:
    partitions = [TransactionLogValue.PartitionsSchema(topic="t", partition_ids=[0, 1])]
    return TransactionState(
        "tx",
        TransactionLogValue(
            producer_id=producer_id,
            previous_producer_id=3,
            transaction_timeout_ms=TIMEOUT,
            transaction_status=STATES.index(status),
            transaction_partitions=partitions,
            transaction_last_update_timestamp_ms=UPDATED,
            transaction_start_timestamp_ms=START,
        ),
    )


@pytest.mark.parametrize(
    ("status", "stuck_from_ms"),
    [
        ("Ongoing", START + TIMEOUT + GRACE_MS + 1),
        ("PrepareCommit", UPDATED + STUCK + 1),
        ("PrepareAbort", UPDATED + STUCK + 1),
        ("PrepareEpochFence", UPDATED + STUCK + 1),
    ],
)
def test_the_moment(status: str, stuck_from_ms: int) -> None:
    states = {"tx": state(status)}
    assert stuck_transactions(states, {}, now_ms=stuck_from_ms - 1, stuck_ms=STUCK) == []
    (one,) = stuck_transactions(states, {}, now_ms=stuck_from_ms, stuck_ms=STUCK)
    assert (one.transactional_id, one.state, one.partitions) == ("tx", status, ("t-0", "t-1"))


@pytest.mark.parametrize("status", ["Empty", "CompleteCommit", "CompleteAbort", "Dead"])
def test_what_is_over(status: str) -> None:
    assert stuck_transactions({"tx": state(status)}, {}, now_ms=1 << 40, stuck_ms=STUCK) == []
    gone = {"tx": TransactionState("tx", None)}
    assert stuck_transactions(gone, {}, now_ms=1 << 40, stuck_ms=STUCK) == []


def test_offsets_that_no_coordinator_ends() -> None:
    commits = {9: OpenCommits(START, [(("g", "t", 0), Commit(1, 1))])}
    assert stuck_transactions({}, commits, now_ms=START + STUCK, stuck_ms=STUCK) == []
    (one,) = stuck_transactions({}, commits, now_ms=START + STUCK + 1, stuck_ms=STUCK)
    assert (one.producer_id, one.transactional_id, one.partitions) == (9, "", ("t-0 of g",))
    ended = {"tx": state("CompleteAbort", 9)}
    (one,) = stuck_transactions(ended, commits, now_ms=START + STUCK + 1, stuck_ms=STUCK)
    assert one.transactional_id == "tx"
    is_open = {"tx": state("Ongoing", 9)}
    assert stuck_transactions(is_open, commits, now_ms=START + STUCK + 1, stuck_ms=STUCK) == []


def test_names_of_producers() -> None:
    assert transactional_ids({"tx": state("Empty")}) == {3: "tx", 4: "tx"}
