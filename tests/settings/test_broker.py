"""BrokerConfig: defaults of a single node, files of old Kafkas, and mistakes in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.model import StartupError
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.properties import parse_properties
from kbroker.settings.views.group_coordinator import GroupCoordinatorConfig
from kbroker.settings.views.network import NetworkConfig

ROOT = Path(__file__).parents[2]


def config(**properties: str) -> BrokerConfig:
    return BrokerConfig.from_properties(
        {name.replace("_", "."): value for name, value in properties.items()}
    )


@pytest.mark.parametrize(
    ("broker", "listener", "folder"),
    [
        pytest.param(BrokerConfig.load(None), "localhost", "./data", id="no file"),
        pytest.param(BrokerConfig.from_properties({}), "", "/tmp/kafka-logs", id="empty file"),
    ],
)
def test_nothing_set(broker: BrokerConfig, listener: str, folder: str) -> None:
    assert broker.node_id == 1
    assert broker.process_roles == ("broker", "controller")
    assert list(map(str, broker.listeners)) == [f"PLAINTEXT://{listener}:9092"]
    assert broker.advertised_listeners == broker.listeners
    assert broker.inter_broker_listener_name == "PLAINTEXT"
    assert broker.log_dirs == (folder,)
    assert broker.metadata_log_dir == folder
    assert broker.warnings == ()
    assert NetworkConfig.from_broker(broker) == NetworkConfig()
    assert GroupCoordinatorConfig.from_broker(broker) == GroupCoordinatorConfig()


def test_sample_file(caplog: pytest.LogCaptureFixture) -> None:
    broker = BrokerConfig.load(ROOT / "config" / "server.properties")
    assert broker.log_dirs == ("./data",)
    assert broker.warnings == ()
    assert not caplog.records


def test_typed_getters() -> None:
    broker = config(log_dirs="/a,/b", log_preallocate="true", metadata_log_dir="/m")
    assert broker.log_dirs == ("/a", "/b")
    assert broker.metadata_log_dir == "/m"
    assert broker.get_bool("log.preallocate") is True
    assert broker.get_int("num.partitions") == 1
    assert broker.get_optional_int("log.retention.ms") is None
    assert broker.get_float("log.cleaner.min.cleanable.ratio") == 0.5
    assert broker.get_string("compression.type") == "producer"
    assert broker.get_optional_string("broker.rack") is None
    assert broker.get_list("log.cleanup.policy") == ("delete",)
    assert broker.get_list("early.start.listeners") == ()
    assert broker.get_bool("kbroker.validate.records") is False
    assert broker.is_explicit("log.dirs")
    assert not broker.is_explicit("log.dir")
    with pytest.raises(KeyError):
        broker.get_int("no.such.key")
    with pytest.raises(TypeError):
        broker.get_int("log.dirs")
    with pytest.raises(TypeError):
        broker.get_string("log.retention.ms")
    with pytest.raises(TypeError):
        broker.get_bool("num.partitions")


def test_every_default_can_be_read() -> None:
    from kbroker.settings.tables.table import BROKER_KEYS

    broker = BrokerConfig.load(None)
    for name in BROKER_KEYS:
        broker.get(name)


def test_without_a_file_it_is_what_the_document_says() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    block = text.partition("```properties\n")[2].partition("```")[0]
    written = BrokerConfig.from_properties(parse_properties(block, source="configuration.md"))
    broker = BrokerConfig.load(None)
    assert broker.node_id == written.node_id
    assert broker.process_roles == written.process_roles
    assert broker.listeners == written.listeners
    assert broker.log_dirs == written.log_dirs


@pytest.mark.parametrize(
    ("override", "listeners", "folders"),
    [
        ("log.dir=/a", "PLAINTEXT://localhost:9092", ("/a",)),
        ("log.dirs=/a,/b", "PLAINTEXT://localhost:9092", ("/a", "/b")),
        ("listeners=PLAINTEXT://:0", "PLAINTEXT://:0", ("./data",)),
        ("port=9093", "PLAINTEXT://:9093", ("./data",)),
    ],
)
def test_without_a_file_overrides_win(
    override: str, listeners: str, folders: tuple[str, ...]
) -> None:
    broker = BrokerConfig.load(None, [override])
    assert (str(broker.listeners[0]), broker.log_dirs) == (listeners, folders)


def test_overrides_win(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=2\nlog.dirs=/a\n")
    broker = BrokerConfig.load(path, ["num.partitions=3", "num.partitions=4"])
    assert broker.get_int("num.partitions") == 4
    assert broker.log_dirs == ("/a",)


@pytest.mark.parametrize(
    ("properties", "node_id"),
    [
        ({"node.id": "7"}, 7),
        ({"broker.id": "0"}, 0),
        ({"broker.id": "-1"}, 1),
        ({"node.id": "3", "broker.id": "3"}, 3),
    ],
)
def test_node_id(properties: dict[str, str], node_id: int) -> None:
    assert BrokerConfig.from_properties(properties).node_id == node_id


COPIES = {
    "offsets.topic.replication.factor": 3,
    "share.coordinator.state.topic.min.isr": 2,
    "share.coordinator.state.topic.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.state.log.replication.factor": 3,
}


@pytest.mark.parametrize("key", COPIES)
def test_copies_on_a_single_node_and_in_a_cluster(key: str) -> None:
    copies = COPIES[key]
    assert config().get_int(key) == 1
    assert config(controller_quorum_voters="1@localhost:9093").get_int(key) == 1
    cluster = {
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "controller_listener_names": "CONTROLLER",
    }
    assert config(**cluster).get_int(key) == 1
    assert config(controller_quorum_voters="1@a:9093,2@b:9093", **cluster).get_int(key) == copies
    assert config(controller_quorum_bootstrap_servers="a:9093", **cluster).get_int(key) == copies
    broker = {"process_roles": "broker", "controller_listener_names": "CONTROLLER"}
    assert config(controller_quorum_voters="2@a:9093", **broker).get_int(key) == copies
    assert BrokerConfig.from_properties({key: "7"}).get_int(key) == 7


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("num.partitions=0", "num.partitions=0: Value must be at least 1; allowed: a whole number"),
        ("num.partitions=many", "num.partitions=many: Not a number of type INT; allowed: a whole"),
        ("log.retention.ms=0", "log.retention.ms=0: a retention of 0 would keep nothing; allowed"),
        ("log.retention.hours=0", "log.retention.hours=0: a retention of 0"),
        ("log.segment.bytes=1024", "log.segment.bytes=1024: Value must be at least 1048576"),
        ("compression.type=none", "compression.type=none: String must be one of: uncompressed,"),
        ("log.dirs=", "log.dirs=: Configuration 'log.dirs' must not be empty"),
        ("node.id=-1", "node.id=-1: Value must be at least 0"),
        ("log.roll.ms=0", "log.roll.ms=0: Value must be at least 1"),
        ("offsets.topic.compression.codec=9", "codec=9: no such codec; allowed: 0 (none), 1"),
        ("max.connections.per.ip=0", "max.connections.per.ip=0: 0 would allow no connections"),
        ("max.connections.per.ip.overrides=a", "overrides=a: cannot read a; allowed: host:count"),
        ("max.connections.per.ip.overrides=a b:5", "=a b:5: invalid address a b; allowed: host:"),
        ("connections.max.idle.ms=100", "=100: connections.max.idle.ms must be greater than"),
        (
            "connection.failed.authentication.delay.ms=600000",
            "=600000: connections.max.idle.ms must",
        ),
        ("log.cleaner.dedupe.buffer.size=1048576", "=1048576: each of 1 log.cleaner.threads needs"),
        ("log.cleaner.threads=128", "log.cleaner.threads=128: each of 128 log.cleaner.threads"),
        ("replica.fetch.wait.max.ms=30001", "less than or equal to replica.socket.timeout.ms"),
        ("replica.socket.timeout.ms=499", "less than or equal to replica.socket.timeout.ms"),
        ("replica.lag.time.max.ms=499", "must be less than or equal to replica.lag.time.max.ms"),
        ("queued.max.request.bytes=5", "it must be larger or equal to socket.request.max.bytes"),
        ("group.consumer.heartbeat.interval.ms=60000", "must be less than or equal to"),
        ("group.coordinator.rebalance.protocols=consumer", "Disabling the 'classic' protocol"),
        ("group.streams.num.standby.replicas=3", "must be less than or equal to group.streams.max"),
        ("group.share.assignment.interval.ms=15001", "must be less than or equal to group.share"),
    ],
)
def test_mistakes(override: str, message: str) -> None:
    with pytest.raises(StartupError) as caught:
        BrokerConfig.load(None, [override])
    assert str(caught.value).startswith("--override ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "override",
    [
        "max.connections.per.ip.overrides=[::1]:5,host-1.example:6,fe80::1%eth0:7",
        "connections.max.idle.ms=-1",
        "connections.max.idle.ms=101",
        "log.cleaner.dedupe.buffer.size=1048577",
        "log.cleaner.threads=127",
        "replica.fetch.wait.max.ms=30000",
        "replica.lag.time.max.ms=500",
    ],
)
def test_values_at_the_bounds_are_accepted(override: str) -> None:
    BrokerConfig.load(None, [override])


@pytest.mark.parametrize("kind", ["consumer", "share", "streams"])
def test_heartbeats_come_before_the_session_ends(kind: str) -> None:
    settings = {
        f"group.{kind}.min.session.timeout.ms": "5000",
        f"group.{kind}.session.timeout.ms": "5000",
    }
    with pytest.raises(StartupError, match=f"must be less than group.{kind}.session.timeout.ms"):
        BrokerConfig.load(None, [f"{key}={value}" for key, value in settings.items()])


def test_a_mistake_names_file_key_value_and_what_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("message.max.bytes=-3\n")
    with pytest.raises(StartupError) as caught:
        BrokerConfig.load(path)
    assert str(caught.value) == (
        f"{path}: message.max.bytes=-3: Value must be at least 0; allowed: a whole number from 0 up"
    )


def test_node_and_broker_id_must_agree() -> None:
    with pytest.raises(StartupError, match="same value"):
        BrokerConfig.from_properties({"node.id": "1", "broker.id": "2"})


def test_conflict_of_compaction_lags() -> None:
    with pytest.raises(StartupError, match="less than or equal"):
        BrokerConfig.from_properties(
            {
                "log.cleaner.min.compaction.lag.ms": "10",
                "log.cleaner.max.compaction.lag.ms": "5",
            }
        )


KAFKA_2_FILE = """
broker.id=0
listeners=PLAINTEXT://localhost:9092
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
log.dirs=/tmp/kafka-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
zookeeper.connect=localhost:2181
zookeeper.connection.timeout.ms=18000
inter.broker.protocol.version=2.8
log.message.format.version=2.8
group.initial.rebalance.delay.ms=0
"""


def test_a_file_of_kafka_2(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(KAFKA_2_FILE)
    broker = BrokerConfig.load(path)
    assert broker.node_id == 0
    assert broker.warnings == (
        "zookeeper.connect, zookeeper.connection.timeout.ms: no longer used; "
        "there is no ZooKeeper; metadata is in this broker's own log",
        "inter.broker.protocol.version, log.message.format.version: no longer used; "
        "record format and protocol are those of Kafka 4.3",
    )


def test_network_and_group_settings() -> None:
    broker = config(
        max_connections_per_ip_overrides="localhost:5, [::1]:7",
        socket_request_max_bytes="1000",
        group_max_size="10",
        offsets_retention_minutes="2",
    )
    network = NetworkConfig.from_broker(broker)
    assert network.max_connections_per_ip_overrides == {"localhost": 5, "::1": 7}
    assert network.socket_request_max_bytes == 1000
    groups = GroupCoordinatorConfig.from_broker(broker)
    assert groups.group_max_size == 10
    assert groups.offsets_retention_ms == 120_000


def test_text_as_kafka_prints_it() -> None:
    broker = BrokerConfig.from_properties({"broker.id": "4", "log.dirs": "/a , /b"})
    assert broker.text("node.id") == "4"
    assert broker.text("process.roles") == "broker,controller"
    assert broker.text("log.dirs") == "/a,/b"
    assert repr(broker) == "BrokerConfig(node_id=4, source='properties')"
