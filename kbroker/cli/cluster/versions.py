"""`kbroker cluster api-versions` and `features`: what brokers announce (KIP-35, KIP-584)."""

from __future__ import annotations

from typing import Annotated

import typer

from kbroker.cli.console.output import Cell, show
from kbroker.cli.session import DEFAULT_BOOTSTRAP, Bootstrap, Json, connect, run

API_VERSIONS_EPILOG = """
min and max are the broker's; used is the version that this client takes, the highest that both
have.

\b
Examples:
  kbroker cluster api-versions
  kbroker cluster api-versions --broker 1 --json
"""
FEATURES_EPILOG = """
The level is what the cluster has agreed on; min and max are what the broker supports.

\b
Examples:
  kbroker cluster features
  kbroker cluster features --json
"""
Broker = Annotated[int | None, typer.Option("--broker", metavar="ID", help="This broker alone.")]


def api_versions(
    broker: Broker = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Show the APIs of each broker and their versions."""
    columns = ("broker", "api", "key", "min", "max", "used")
    show(run(_api_versions(bootstrap, broker)), columns, as_json=as_json)


async def _api_versions(bootstrap: str, broker: int | None) -> list[dict[str, Cell]]:
    from kbroker.client.node_api_versions import api_versions_request
    from kbroker.protocol.apis import APIS, valid_versions
    from kbroker.protocol.messages.api_versions import ApiVersionsResponse

    rows: list[dict[str, Cell]] = []
    async with connect(bootstrap) as client:
        await client.metadata([])
        for node_id in sorted(client.brokers) if broker is None else [broker]:
            request = api_versions_request()
            response = await client.to_node(node_id, request, ApiVersionsResponse)
            for api in sorted(response.api_keys, key=lambda api: api.api_key):
                used: int | None = None
                if api.api_key in APIS:
                    low, high = valid_versions(api.api_key)
                    used = min(high, api.max_version)
                    used = used if used >= max(low, api.min_version) else None
                known = APIS.get(api.api_key)
                rows.append(
                    {
                        "broker": node_id,
                        "api": None if known is None else known.name,
                        "key": api.api_key,
                        "min": api.min_version,
                        "max": api.max_version,
                        "used": used,
                    }
                )
    return rows


def features(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: Json = False) -> None:
    """Show the features of the cluster and their levels."""
    show(run(_features(bootstrap)), ("feature", "level", "min", "max"), as_json=as_json)


async def _features(bootstrap: str) -> list[dict[str, Cell]]:
    from kbroker.client.node_api_versions import api_versions_request
    from kbroker.protocol.messages.api_versions import ApiVersionsResponse

    async with connect(bootstrap) as client:
        response = await client.any(api_versions_request(), ApiVersionsResponse)
    levels = {each.name: each.max_version_level for each in response.finalized_features}
    supported = {each.name: each for each in response.supported_features}
    return [
        {
            "feature": name,
            "level": levels.get(name, 0),
            "min": supported[name].min_version if name in supported else None,
            "max": supported[name].max_version if name in supported else None,
        }
        for name in sorted({*levels, *supported})
    ]
