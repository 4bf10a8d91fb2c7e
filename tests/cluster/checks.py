"""What must hold of a quorum, whatever happened to its nodes: one leader per epoch, one log, and
everything that was acknowledged. Pure: bytes, texts and answers in, AssertionError out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.control_records import ControlType, control_type
from kbroker.protocol.batches.records import iter_records
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.messages.stored.control_records import LeaderChangeMessage
from kbroker.testing.history.replicas import between, common_start, replica_difference

_ELECTED: Final = re.compile(
    r"Node \d+: the leader of the metadata quorum in epoch (?P<epoch>\d+) is node (?P<leader>\d+)"
)
_ACTIVE: Final = re.compile(
    r"Node (?P<leader>\d+): active controller of cluster \S+ at epoch (?P<epoch>\d+)"
)
_SHOWN: Final = 5


class Leaders:
    """The leader of each epoch, as far as any node said who it is."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[int, str]] = {}

    def observe(self, epoch: int, leader: int, source: str) -> None:
        """Raises AssertionError if the epoch had another leader."""
        before, first_source = self._found.setdefault(epoch, (leader, source))
        assert before == leader, (
            f"two leaders in epoch {epoch}: node {before} ({first_source}), "
            f"node {leader} ({source})"
        )

    @property
    def epochs(self) -> int:
        """How many epochs had a leader."""
        return len(self._found)


def logged_leaders(text: str) -> Iterator[tuple[int, int]]:
    """(epoch, leader) of a node's log lines."""
    for pattern in (_ELECTED, _ACTIVE):
        for match in pattern.finditer(text):
            yield int(match["epoch"]), int(match["leader"])


def stored_leaders(log: bytes) -> Iterator[tuple[int, int]]:
    """(epoch, leader) of the LeaderChange records in the bytes of a metadata log, also of those
    that are not committed.
    """
    for position, header in iter_batches(log, partial_ok=True):
        if not header.is_control:
            continue
        batch = memoryview(log)[position : position + header.size_bytes]
        for record in iter_records(batch):
            if control_type(record) is ControlType.LEADER_CHANGE and record.value is not None:
                version = int.from_bytes(record.value[:2])
                message, _ = decode(LeaderChangeMessage, record.value, version)
                yield header.partition_leader_epoch, message.leader_id


def check_equal_logs(logs: Mapping[str, bytes], high_watermark: int) -> int:
    """The logs, by node, have the same bytes from the latest of their first offsets up to the high
    watermark (exclusive). Returns how many bytes that are. Raises AssertionError.
    """
    problem = replica_difference(logs, high_watermark)
    assert problem is None, problem
    return len(between(next(iter(logs.values())), common_start(logs), high_watermark))


def check_acknowledged(
    acknowledged: Mapping[tuple[int, str], Mapping[str, str]],
    found: Mapping[tuple[int, str], Mapping[str, str] | None],
    node: str,
) -> None:
    """found: the configurations of each resource as the node answers, None for one that does not
    exist. Raises AssertionError that names what is lost.
    """
    lost = []
    for resource, configs in acknowledged.items():
        stored = found.get(resource)
        if stored is None:
            lost.append(f"{resource[1]} does not exist")
            continue
        for key, value in configs.items():
            if stored.get(key) != value:
                lost.append(f"{resource[1]}: {key} is {stored.get(key)}, not {value}")
    assert not lost, f"{node} lost {len(lost)} acknowledged changes: {'; '.join(lost[:_SHOWN])}"
