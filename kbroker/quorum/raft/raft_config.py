"""A quorum node's configuration: its identity and the `controller.quorum.*` settings."""

from __future__ import annotations

import msgspec

from kbroker.quorum.raft.voters.voter_set import ReplicaKey, VoterEndpoint


class RaftConfig(msgspec.Struct, frozen=True):
    """Times are in ms; sizes in bytes.

    endpoints: this node's controller listeners; empty on a broker. listener_name: the first of
    controller.listener.names, used for requests to other nodes. bootstrap_servers: (host, port) of
    controller.quorum.bootstrap.servers, used while no leader is known. can_be_voter: this node is a
    controller, so it syncs what it fetches even while it is an observer.
    """

    local: ReplicaKey
    cluster_id: str
    listener_name: str = "CONTROLLER"
    endpoints: tuple[VoterEndpoint, ...] = ()
    bootstrap_servers: tuple[tuple[str, int], ...] = ()
    can_be_voter: bool = True
    auto_join: bool = False
    election_timeout_ms: int = 1000
    fetch_timeout_ms: int = 2000
    election_backoff_max_ms: int = 1000
    request_timeout_ms: int = 2000
    retry_backoff_ms: int = 20
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 1 << 20
    fetch_snapshot_max_bytes: int = 1 << 20
