"""The groups of a cluster, from each of its brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.cli.console.output import Cell

if TYPE_CHECKING:
    from kbroker.client.cluster import Client


async def listed_groups(client: Client) -> list[dict[str, Cell]]:
    """A row per group: group, state, protocol and type."""
    from kbroker.client.cluster import check
    from kbroker.protocol.messages.coordinators.groups import ListGroupsRequest, ListGroupsResponse

    rows: list[dict[str, Cell]] = []
    await client.metadata([])
    for node_id in sorted(client.brokers):
        response = await client.to_node(node_id, ListGroupsRequest(), ListGroupsResponse)
        check(response.error_code, f"groups of broker {node_id}")
        rows += [
            {
                "group": group.group_id,
                "state": group.group_state or None,
                "protocol": group.protocol_type or None,
                "type": group.group_type or None,
            }
            for group in response.groups
        ]
    return sorted(rows, key=lambda row: str(row["group"]))
