"""`starting_offsets`: where a new query begins, to go on where a consumer group is.

frame = spark.readStream.format("kafka").option("subscribe", "orders").option(
    "startingOffsets", starting_offsets("reports", "localhost:9092", topics=["orders"])
)
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from kbroker.protocol.errors import KafkaError

from ..checkpoint import Offsets, format_offsets
from ..cluster import Topics
from ..errors import JobError, StartRefused
from ..kafka_source import DEFAULT_BOOTSTRAP
from ..topic_checks import Finding, check_topics
from ..wire.client import BlockingClient, ClusterAddress
from ..wire.connection import OpenSocket, open_plain_socket
from ..wire.groups import committed_offsets, describe_group
from ..wire.offsets import topic_facts

logger = logging.getLogger(__name__)

FIRST_OFFSET: Final = -2
"""Spark's sign for the first offset of a partition at the time of the start."""


class Start(NamedTuple):
    """Where a query begins, and what would be lost or is not as the group has seen it."""

    offsets: Offsets
    findings: Sequence[Finding]


def start_of(committed: Offsets, topics: Topics) -> Start:
    """Where a query of these topics begins. Partitions that the group has not committed, and those
    that no longer have the committed offset, begin at their first one.
    """
    position = {topic: offsets for topic, offsets in committed.items() if topic in topics}
    findings = check_topics({}, position, topics)
    again = {finding.topic for finding in findings if finding.kind in ("recreated", "shrunk")}
    offsets: Offsets = {}
    for topic, facts in topics.items():
        known = {} if topic in again else position.get(topic, {})
        offsets[topic] = {
            partition: known[partition] if known.get(partition, -1) >= first else FIRST_OFFSET
            for partition, first in facts.earliest.items()
        }
    return Start(offsets, findings)


def starting_offsets(
    group: str,
    bootstrap_servers: str = DEFAULT_BOOTSTRAP,
    *,
    topics: Sequence[str] = (),
    fail_on_data_loss: bool = True,
    open_socket: OpenSocket = open_plain_socket,
) -> str:
    """The JSON for `startingOffsets` of a new query that goes on where a group is.

    topics: those that the query subscribes to, by default all that the group has offsets of: Spark
    wants every partition of them, and no others. fail_on_data_loss: False logs what is lost, and
    begins at the first offset there.

    Raises StartRefused if records that the group has not read were deleted or the topic was created
    again, JobError if the group has no offsets or a topic does not exist.
    """
    address = replace(ClusterAddress(bootstrap_servers), open_socket=open_socket)
    client = BlockingClient(address)
    try:
        return _starting_offsets(client, group, topics, fail_on_data_loss=fail_on_data_loss)
    except KafkaError as error:
        raise JobError(f"group {group}: {error}") from error
    finally:
        client.close()


def _starting_offsets(
    client: BlockingClient, group: str, topics: Sequence[str], *, fail_on_data_loss: bool
) -> str:
    committed = committed_offsets(client, group)
    names = tuple(dict.fromkeys(topics)) or tuple(sorted(committed))
    if not committed.keys() & set(names):
        of = f" of {', '.join(topics)}" if topics else ""
        raise JobError(f"group {group} has committed no offsets{of}")
    facts = topic_facts(client, names)
    missing = [name for name in names if name not in facts]
    if missing:
        raise JobError(f"topic {missing[0]} does not exist")
    start = start_of(committed, facts)
    if start.findings:
        text = f"group {group}: " + "; ".join(finding.text for finding in start.findings)
        if fail_on_data_loss:
            raise StartRefused(
                f"{text}. fail_on_data_loss=False begins at the first offset that is there"
            )
        logger.warning("%s: the query begins at the first offset that is there", text)
    members = describe_group(client, group).members
    if members:
        logger.warning(
            "group %s has %d live members, which read on: the query will read again what they "
            "have read when it starts",
            group,
            len(members),
        )
    return format_offsets(start.offsets)
