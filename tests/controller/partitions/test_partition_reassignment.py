"""The lists of reassignments, against Kafka's own."""

from __future__ import annotations

from kbroker.controller.partitions.partition_reassignment import (
    ReassignmentReplicas,
    revert_reassignment,
    start_reassignment,
)
from kbroker.metadata.image import PartitionImage
from kbroker.protocol.errors import ErrorCode, KafkaError
from tests.controller.decisions import Case, compare


def lists(case: Case) -> ReassignmentReplicas:
    return ReassignmentReplicas(
        replicas=tuple(case["replicas"]),
        adding=tuple(case["adding"]),
        removing=tuple(case["removing"]),
    )


def test_how_a_reassignment_starts() -> None:
    def decide(case: Case) -> Case:
        started = start_reassignment(case["current"], case["target"])
        return {
            "replicas": list(started.replicas),
            "adding": list(started.adding),
            "removing": list(started.removing),
            "inProgress": started.in_progress,
            "originalReplicas": [each for each in started.replicas if each not in started.adding],
        }

    def expected(case: Case) -> Case:
        names = ("replicas", "adding", "removing", "inProgress", "originalReplicas")
        return {name: case[name] for name in names}

    compare("reassignments", 665, decide, expected, select=lambda case: case["kind"] == "start")


def test_when_a_reassignment_is_complete() -> None:
    def decide(case: Case) -> Case | None:
        completed = lists(case).completed(case["targetIsr"])
        if completed is None:
            return None
        return {"replicas": list(completed.replicas), "isr": list(completed.isr)}

    compare(
        "reassignments",
        1010,
        decide,
        lambda case: case["completed"],
        select=lambda case: case["kind"] == "complete",
    )


def test_what_a_cancelled_reassignment_goes_back_to() -> None:
    def decide(case: Case) -> Case | ErrorCode:
        partition = PartitionImage(
            replicas=tuple(case["replicas"]),
            directories=(),
            isr=tuple(case["isr"]),
            adding=tuple(case["adding"]),
            removing=tuple(case["removing"]),
        )
        try:
            reverted = revert_reassignment(partition)
        except KafkaError as error:
            return error.code
        return {
            "replicas": list(reverted.replicas),
            "isr": list(reverted.isr),
            "unclean": reverted.unclean,
        }

    def expected(case: Case) -> object:
        if case.get("exception") == "InvalidReplicaAssignmentException":
            return ErrorCode.INVALID_REPLICA_ASSIGNMENT
        return case["reverted"]

    compare("reassignments", 325, decide, expected, select=lambda case: case["kind"] == "revert")
