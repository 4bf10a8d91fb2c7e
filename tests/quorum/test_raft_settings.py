"""The core's configuration, from the settings of a node."""

from __future__ import annotations

from kbroker.quorum.formatting.format import MetaProperties
from kbroker.quorum.raft.raft_config import RaftConfig
from kbroker.quorum.raft.voters.voter_set import ReplicaKey, VoterEndpoint
from kbroker.quorum.raft_settings import raft_config
from kbroker.settings.broker import BrokerConfig


def of(*endpoints: VoterEndpoint, **properties: str) -> RaftConfig:
    settings = {key.replace("_", "."): value for key, value in properties.items()}
    config = BrokerConfig.from_properties({"node.id": "7", "log.dirs": "/data", **settings})
    meta = MetaProperties("cluster", 7, {"/data": b"d" * 16})
    return raft_config(config, meta, endpoints)


def test_a_node_on_its_own_has_kafkas_defaults() -> None:
    assert of() == RaftConfig(ReplicaKey(7, b"d" * 16), "cluster")


def test_a_controller_tells_its_endpoints_and_asks_the_bootstrap_servers() -> None:
    told = VoterEndpoint("CTL", "this-machine", 9093)
    config = of(
        told,
        process_roles="controller",
        listeners="ctl://:0",
        controller_listener_names="ctl",
        listener_security_protocol_map="ctl:PLAINTEXT",
        controller_quorum_bootstrap_servers="a:1, [::1]:2",
        controller_quorum_auto_join_enable="true",
        controller_quorum_election_timeout_ms="5",
    )
    assert config.listener_name == "CTL"
    assert config.endpoints == (told,)
    assert config.bootstrap_servers == (("a", 1), ("::1", 2))
    assert config.auto_join and config.can_be_voter and config.election_timeout_ms == 5
