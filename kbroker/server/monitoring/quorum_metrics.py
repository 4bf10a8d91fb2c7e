"""Metrics of the metadata quorum (Kafka's raft-metrics, broker-metadata-metrics) and of the cluster
as controllers tell it (KafkaController).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Final

from kbroker.metadata.image import MetadataImage
from kbroker.metadata.loader import MetadataLoader
from kbroker.quorum.driver import QuorumDriver
from kbroker.server.monitoring.exposition import Exposition, labels

STEP_PARTITIONS: Final = 256
"""Partitions that are counted in one step: some 0.1 ms."""

RAFT: Final = "kafka_server_raftmetrics"
CONTROLLER: Final = "kafka_controller_kafkacontroller"


def quorum_metrics(out: Exposition, quorum: QuorumDriver, loader: MetadataLoader) -> Iterator[str]:
    """Of this node's part in the quorum; nothing before its log is open."""
    status = quorum.status
    if status is None:
        return
    yield from out.gauges(
        f"{RAFT}_current_state",
        "1 for the state that this node is in",
        [(labels(current_state=status.state), 1)],
    )
    gauges = (
        ("current_leader", "Id of the leader, -1 if it is unknown", status.leader_id),
        ("current_epoch", "Epoch", status.epoch),
        ("current_vote", "Id of the candidate voted for, -1 without", status.voted_id),
        ("high_watermark", "First offset that is not committed", status.high_watermark),
        ("log_end_offset", "Next offset of the metadata log", status.log_end_offset),
        ("log_end_epoch", "Epoch of the last record", status.log_end_epoch),
        ("number_of_voters", "Voters", status.voter_count),
    )
    for name, help_text, value in gauges:
        yield out.gauge(f"{RAFT}_{name}", help_text, value)
    yield from out.histograms(
        f"{RAFT}_commit_latency_seconds",
        "From an append of this leader to its commit",
        [("", quorum.commit_seconds)],
    )
    yield out.gauge(
        "kafka_server_brokermetadatametrics_last_applied_record_offset",
        "Offset of the metadata that this node acts on",
        loader.last_offset,
    )


def controller_metrics(
    out: Exposition,
    quorum: QuorumDriver,
    loader: MetadataLoader,
    is_active: Callable[[], bool],
) -> Iterator[str]:
    """Of the whole cluster, as the image of this controller has it."""
    image = loader.image
    fenced = sum(broker.fenced for broker in image.brokers.values())
    counts = yield from _count(image)
    gauges = (
        ("activecontrollercount", "1 on the active controller", int(is_active())),
        ("globaltopiccount", "Topics of the cluster", len(image.topics)),
        ("globalpartitioncount", "Partitions of the cluster", counts[0]),
        ("offlinepartitionscount", "Partitions without a leader", counts[1]),
        ("preferredreplicaimbalancecount", "Not led by their first replica", counts[2]),
        ("activebrokercount", "Brokers in service", len(image.brokers) - fenced),
        ("fencedbrokercount", "Fenced brokers", fenced),
        ("lastappliedrecordoffset", "Last offset that was replayed", loader.last_offset),
    )
    for name, help_text, value in gauges:
        yield out.gauge(f"{CONTROLLER}_{name}", help_text, value)
    status = quorum.status
    if status is not None:
        yield out.gauge(
            f"{CONTROLLER}_lastcommittedrecordoffset",
            "Last offset that is committed",
            status.high_watermark - 1,
        )


def _count(image: MetadataImage) -> Generator[str, None, tuple[int, int, int]]:
    """Steps that count the partitions of the cluster: all, those without a leader, and those not
    led by their first replica.
    """
    partitions = offline = imbalanced = 0
    for topic in image.topics.values():
        for partition in topic.partitions.values():
            partitions += 1
            offline += not partition.has_leader
            imbalanced += not partition.has_preferred_leader
            if partitions % STEP_PARTITIONS == 0:
                yield ""
    return partitions, offline, imbalanced
