"""What Apache Kafka 4.3.1's controller decided for thousands of drawn states, and how a test
compares every line of a file (tests/data/decisions) with kbroker's decision.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from kbroker.metadata.image import PartitionImage
from kbroker.model import Uuid, uuid_from_string, uuid_to_string
from kbroker.protocol.messages.metadata_records import PartitionChangeRecord

Case = dict[str, Any]  # Any: JSON
"""One line of a file."""

FOLDER: Final = Path(__file__).parents[1] / "data" / "decisions"
SHOWN_LINES: Final = 5


def cases(name: str) -> Iterator[tuple[int, Case]]:
    """(line number from 1, case) for every line of that file."""
    with gzip.open(FOLDER / f"{name}.jsonl.gz", "rt") as file:
        for number, line in enumerate(file, 1):
            yield number, json.loads(line)


def compare(
    name: str,
    count: int,
    decide: Callable[[Case], object],
    expected: Callable[[Case], object],
    *,
    select: Callable[[Case], bool] = lambda _: True,
) -> None:
    """Fail with the numbers of the lines whose decision is not the expected one. count: how many
    lines are selected, so that a file that was cut short does not pass.
    """
    compared, wrong = 0, []
    for number, case in cases(name):
        if not select(case):
            continue
        compared += 1
        got, wanted = decide(case), expected(case)
        if got != wanted:
            wrong.append(f"{name} line {number}: expected {wanted}\n  but decided {got}")
    assert not wrong, f"{len(wrong)} lines differ\n" + "\n".join(wrong[:SHOWN_LINES])
    assert compared == count


def partition_image(fields: Case) -> PartitionImage:
    """A PartitionRegistration as the files show it."""
    return PartitionImage(
        replicas=tuple(fields["replicas"]),
        directories=tuple(uuid_from_string(each) for each in fields["directories"]),
        isr=tuple(fields["isr"]),
        removing=tuple(fields["removingReplicas"]),
        adding=tuple(fields["addingReplicas"]),
        elr=tuple(fields["elr"]),
        leader=fields["leader"],
        leader_epoch=fields["leaderEpoch"],
        partition_epoch=fields["partitionEpoch"],
        last_known_elr=tuple(fields["lastKnownElr"]),
        leader_recovery_state=fields["leaderRecoveryState"],
    )


def partition_fields(partition: PartitionImage) -> Case:
    """The way back; ELR and last known ELR are sets."""
    return {
        "replicas": list(partition.replicas),
        "directories": [uuid_to_string(each) for each in partition.directories],
        "isr": list(partition.isr),
        "elr": sorted(partition.elr),
        "lastKnownElr": sorted(partition.last_known_elr),
        "removingReplicas": list(partition.removing),
        "addingReplicas": list(partition.adding),
        "leader": partition.leader,
        "leaderRecoveryState": partition.leader_recovery_state,
        "leaderEpoch": partition.leader_epoch,
        "partitionEpoch": partition.partition_epoch,
    }


def with_sets(fields: Case) -> Case:
    """Fields of a partition or a record, with the lists that stand for sets in order."""
    sets = ("elr", "lastKnownElr", "eligibleLeaderReplicas")
    return {
        key: sorted(value) if key in sets and value is not None else value
        for key, value in fields.items()
    }


def change_fields(record: PartitionChangeRecord) -> Case:
    """The fields that a record sets, by Kafka's names, without its topic and partition."""
    blank = PartitionChangeRecord(partition_id=record.partition_id, topic_id=record.topic_id)
    names = {
        "isr": record.isr,
        "leader": record.leader,
        "replicas": record.replicas,
        "removingReplicas": record.removing_replicas,
        "addingReplicas": record.adding_replicas,
        "leaderRecoveryState": record.leader_recovery_state,
        "directories": _texts(record.directories),
        "eligibleLeaderReplicas": record.eligible_leader_replicas,
        "lastKnownElr": record.last_known_elr,
    }
    unset = {"leader": blank.leader, "leaderRecoveryState": blank.leader_recovery_state}
    return with_sets({name: value for name, value in names.items() if value != unset.get(name)})


def _texts(uuids: list[Uuid] | None) -> list[str] | None:
    return None if uuids is None else [uuid_to_string(each) for each in uuids]
