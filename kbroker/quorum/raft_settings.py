"""The core's configuration from the node's settings and its formatted directory."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.quorum.formatting.format import DEFAULT_CONTROLLER_ENDPOINT, MetaProperties
from kbroker.quorum.raft.raft_config import RaftConfig
from kbroker.quorum.raft.voters.voter_set import EndpointFields, ReplicaKey, VoterEndpoint
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.sections.quorum import QuorumConfig


def raft_config(
    config: BrokerConfig, properties: MetaProperties, endpoints: Iterable[EndpointFields]
) -> RaftConfig:
    """The core's configuration. endpoints: this node's advertised controller listeners with their
    real hosts and ports, which the leader writes into the voters record.
    """
    quorum, names = QuorumConfig.from_broker(config), config.controller_listener_names
    return RaftConfig(
        ReplicaKey(config.node_id, properties.directory_ids[config.metadata_log_dir]),
        properties.cluster_id,
        listener_name=names[0] if names else DEFAULT_CONTROLLER_ENDPOINT.name,
        endpoints=VoterEndpoint.all_of(endpoints),
        bootstrap_servers=quorum.bootstrap_servers,
        can_be_voter=config.is_controller,
        auto_join=quorum.auto_join,
        election_timeout_ms=quorum.election_timeout_ms,
        fetch_timeout_ms=quorum.fetch_timeout_ms,
        election_backoff_max_ms=quorum.election_backoff_max_ms,
        request_timeout_ms=quorum.request_timeout_ms,
        retry_backoff_ms=quorum.retry_backoff_ms,
        fetch_max_bytes=quorum.fetch_max_bytes,
        fetch_snapshot_max_bytes=quorum.fetch_snapshot_max_bytes,
    )
