"""`kbroker cluster quorum`: the metadata quorum, its leader, voters and observers (KIP-595)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from kbroker.cli.console.output import Cell, note, show
from kbroker.cli.session import DEFAULT_BOOTSTRAP, Bootstrap, Json, connect, run

if TYPE_CHECKING:
    from kbroker.client.cluster import Client
    from kbroker.protocol.messages.quorum import DescribeQuorumResponse

    Quorum = DescribeQuorumResponse.PartitionData

METADATA_TOPIC: Final = "__cluster_metadata"
QUORUM_EPILOG = """
Lag is how many offsets a replica is behind the leader; fetched and caught up are times in ms ago.

\b
Examples:
  kbroker cluster quorum
  kbroker cluster quorum --json
"""


def quorum(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: Json = False) -> None:
    """Show leader, voters and observers of the metadata quorum."""
    found = run(_quorum(bootstrap))
    now_ms = int(time.time() * 1000)
    end_offset = max((each.log_end_offset for each in found.current_voters), default=-1)
    rows: list[dict[str, Cell]] = [
        {
            "node": each.replica_id,
            "role": _role(found, each.replica_id, kind),
            "end_offset": each.log_end_offset if each.log_end_offset >= 0 else None,
            "lag": end_offset - each.log_end_offset if each.log_end_offset >= 0 else None,
            "fetched_ms_ago": _ago(now_ms, each.last_fetch_timestamp),
            "caught_up_ms_ago": _ago(now_ms, each.last_caught_up_timestamp),
        }
        for kind, replicas in (("voter", found.current_voters), ("observer", found.observers))
        for each in sorted(replicas, key=lambda each: each.replica_id)
    ]
    columns = ("node", "role", "end_offset", "lag", "fetched_ms_ago", "caught_up_ms_ago")
    show(rows, columns, as_json=as_json)
    note(
        f"leader {found.leader_id}, epoch {found.leader_epoch}, high watermark "
        f"{found.high_watermark}"
    )


def _role(found: Quorum, replica_id: int, kind: str) -> str:
    return "leader" if kind == "voter" and replica_id == found.leader_id else kind


def _ago(now_ms: int, timestamp_ms: int) -> int | None:
    return max(now_ms - timestamp_ms, 0) if timestamp_ms >= 0 else None


async def _quorum(bootstrap: str) -> Quorum:
    async with connect(bootstrap) as client:
        return await client.retry(lambda: described_quorum(client))


async def described_quorum(client: Client) -> Quorum:
    """The partition of the metadata log as its leader describes it. Raises KafkaError."""
    from kbroker.client.cluster import check
    from kbroker.protocol.messages.quorum import DescribeQuorumRequest, DescribeQuorumResponse

    request = DescribeQuorumRequest(
        topics=[
            DescribeQuorumRequest.TopicData(
                topic_name=METADATA_TOPIC,
                partitions=[DescribeQuorumRequest.PartitionData(partition_index=0)],
            )
        ]
    )
    response = await client.to_controller(request, DescribeQuorumResponse)
    check(response.error_code, response.error_message or "the metadata quorum")
    (found,) = response.topics[0].partitions
    check(found.error_code, found.error_message or "the metadata quorum")
    return found
