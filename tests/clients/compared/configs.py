"""kafka-configs.sh, by the type of the entity."""

from __future__ import annotations

from typing import Final

from tests.clients.compared.acts import PROPERTIES, client_properties, file
from tests.clients.compared.row import CONTROLLER, SERVER, Difference, Row, Session


def configs(
    name: str,
    arguments: str,
    server: str = SERVER,
    masks: tuple[tuple[str, str], ...] = (),
    differs: Difference | None = None,
) -> Row:
    """A run of ConfigCommand."""
    return Row(name, "ConfigCommand", arguments, server=server, masks=masks, differs=differs)


TOPIC: Final = "--entity-type topics --entity-name cf-a"
TOPICS: Final = Session(
    "configs-topics",
    (
        Row("create", "TopicCommand", "--create --topic cf-a --partitions 1"),
        configs("nothing altered", f"{TOPIC} --describe"),
        configs("alter", f"{TOPIC} --alter --add-config retention.ms=60000,cleanup.policy=[compact,delete]"),
        configs("describe", f"{TOPIC} --describe"),
        configs("describe all values", f"{TOPIC} --describe --all"),
        configs("describe by the short option", "--topic cf-a --describe"),
        configs("alter and delete", f"{TOPIC} --alter --add-config segment.ms=7200000 --delete-config cleanup.policy"),
        configs("delete what is not set", f"{TOPIC} --alter --delete-config max.message.bytes"),
        file("topic.properties", "retention.bytes=1000000\nmin.insync.replicas=1\n"),
        configs("alter from a file", f"{TOPIC} --alter --add-config-file {{folder}}/topic.properties"),
        configs("describe again", f"{TOPIC} --describe"),
        configs("an unknown config", f"{TOPIC} --alter --add-config nonsense=1"),
        configs("an unknown config deleted", f"{TOPIC} --alter --delete-config nonsense"),
        configs("a value of another type", f"{TOPIC} --alter --add-config retention.ms=soon"),
        configs("a value out of range", f"{TOPIC} --alter --add-config segment.bytes=1"),
        configs("a value that is not on the list", f"{TOPIC} --alter --add-config cleanup.policy=keep"),
        configs("no value", f"{TOPIC} --alter --add-config retention.ms"),
        configs("an empty value", f"{TOPIC} --alter --add-config retention.ms="),
        configs("values that contradict", f"{TOPIC} --alter --add-config local.retention.ms=90000,retention.ms=80000"),
        configs("throttled replicas", f"{TOPIC} --alter --add-config leader.replication.throttled.replicas=[0:1,1:1]"),
        configs("malformed throttled replicas", f"{TOPIC} --alter --add-config leader.replication.throttled.replicas=x"),
        configs("an unknown topic", "--entity-type topics --entity-name cf-none --describe"),
        configs("an unknown topic, all values", "--entity-type topics --entity-name cf-none --describe --all"),
        configs("an unknown topic altered", "--entity-type topics --entity-name cf-none --alter --add-config retention.ms=1"),
        configs("a malformed topic", "--entity-type topics --entity-name 'a b' --describe"),
        configs("an internal topic altered", "--entity-type topics --entity-name __consumer_offsets --alter --add-config cleanup.policy=delete"),
        configs("describe every topic", "--entity-type topics --describe"),
        configs("remove all", f"{TOPIC} --alter --delete-config retention.ms,segment.ms,retention.bytes,min.insync.replicas,leader.replication.throttled.replicas"),
        configs("describe what is left", f"{TOPIC} --describe"),
        configs("alter by a controller", f"{TOPIC} --alter --add-config retention.ms=90000", CONTROLLER),
        configs("describe by a controller", f"{TOPIC} --describe --all", CONTROLLER),
        client_properties(),
        configs("with properties of the client", f"{TOPIC} --describe {PROPERTIES}"),
        configs("put the internal topic right", "--entity-type topics --entity-name __consumer_offsets --alter --add-config cleanup.policy=compact"),
        Row("delete", "TopicCommand", "--delete --topic cf-a"),
    ),
)  # fmt: skip

BROKER: Final = "--entity-type brokers --entity-name 1"
DEFAULT: Final = "--entity-type brokers --entity-default"


def default(name: str, value: str, prefix: str = "", more: str = "") -> str:
    """A line that describes a setting with a default. more: the synonyms before that."""
    synonyms = f"{more}DEFAULT_CONFIG:{name}={value}"
    return f"  {name}={prefix or value} sensitive=false synonyms={{{synonyms}}}"


LISTENERS: Final = "PLAINTEXT://<bootstrap>,CONTROLLER://<controller>"
STATIC: Final = f"STATIC_BROKER_CONFIG:listeners={LISTENERS}, "
DEFAULTS: Final = Difference(
    "kbroker listens on the loopback interface and writes to ./data if it is told nothing, and has "
    "settings of its own",
    {
        default("listeners", "PLAINTEXT://:9092", LISTENERS, STATIC): default(
            "listeners", "PLAINTEXT://localhost:9092", LISTENERS, STATIC
        ),
        default("log.dir", "/tmp/kafka-logs"): default("log.dir", "./data"),
    },
    own=r"  kbroker\.",
)


def raised(error: str, message: str) -> tuple[str, str]:
    """The lines of an error that a broker has answered."""
    name = f"org.apache.kafka.common.errors.{error}Exception"
    return (
        f"java.util.concurrent.ExecutionException: {name}: {message}",
        f"Caused by: {name}: {message}",
    )


def another(error: str, kafka: str, kbroker: str, reason: str) -> Difference:
    """The same error with another message."""
    pairs = zip(raised(error, kafka), raised(error, kbroker), strict=True)
    return Difference(reason, dict(pairs))


NO_PLUGINS: Final = Difference(
    "Kafka keeps an unknown setting of a broker for plug-ins; kbroker has none, and refuses it as a "
    "misspelling",
    {"Completed updating config for broker 1.": None},
    errors=(
        "Error while executing config command with args '--bootstrap-server <bootstrap> "
        "--entity-type brokers --entity-name 1 --alter --add-config nonsense=1'",
        *raised("InvalidConfiguration", "Unknown config name: nonsense"),
    ),
)
NOT_STORED: Final = Difference(
    "kbroker refuses an unknown setting of a broker",
    {"  nonsense=null sensitive=true synonyms={DYNAMIC_BROKER_CONFIG:nonsense=null}": None},
)


def threads(refused: str) -> Difference:
    """A change of a number of threads that goes too far."""
    message = f"Dynamic thread count update validation failed for num.io.threads={refused}"
    wrapped = (
        f"Invalid value org.apache.kafka.common.config.ConfigException: {message} for configuration"
        " Invalid dynamic configuration"
    )
    reason = "Kafka's message has another one around the sentence that matters"
    return another("InvalidRequest", wrapped, message, reason)


BROKERS: Final = Session(
    "configs-brokers",
    (
        configs("nothing altered", f"{BROKER} --describe"),
        configs("no default altered", f"{DEFAULT} --describe"),
        configs("all values", f"{BROKER} --describe --all", differs=DEFAULTS),
        configs("all values of a controller", f"{BROKER} --describe --all", CONTROLLER, differs=DEFAULTS),
        configs("alter the default", f"{DEFAULT} --alter --add-config log.retention.ms=70000,log.cleaner.threads=2"),
        configs("alter", f"{BROKER} --alter --add-config log.retention.ms=60000,max.connections=90"),
        configs("describe", f"{BROKER} --describe"),
        configs("describe the default", f"{DEFAULT} --describe"),
        configs("describe every broker", "--entity-type brokers --describe"),
        configs("describe by the short option", "--broker 1 --describe"),
        configs("describe the default by the short option", "--broker-defaults --describe"),
        configs("a config of a listener", f"{BROKER} --alter --add-config listener.name.plaintext.max.connections=50"),
        configs("describe with a config of a listener", f"{BROKER} --describe"),
        configs("a read-only config", f"{BROKER} --alter --add-config num.partitions=4"),
        configs("a read-only default", f"{DEFAULT} --alter --add-config broker.id=4"),
        configs("a config of a broker as the default", f"{DEFAULT} --alter --add-config ssl.keystore.location=/x"),
        configs("an unknown config", f"{BROKER} --alter --add-config nonsense=1", differs=NO_PLUGINS),
        configs("describe with an unknown config", f"{BROKER} --describe", differs=NOT_STORED),
        configs("a value of another type", f"{BROKER} --alter --add-config log.retention.ms=soon"),
        configs("a value out of range", f"{BROKER} --alter --add-config log.cleaner.threads=-1"),
        configs("too many threads", f"{BROKER} --alter --add-config num.io.threads=500", differs=threads("500, value should not be greater than double the current value 8")),
        configs("too few threads", f"{BROKER} --alter --add-config num.io.threads=1", differs=threads("1, value should be at least half the current value 8")),
        configs("delete", f"{BROKER} --alter --delete-config log.retention.ms,max.connections,listener.name.plaintext.max.connections,nonsense"),
        configs("delete the defaults", f"{DEFAULT} --alter --delete-config log.retention.ms,log.cleaner.threads"),
        configs("delete what is not set", f"{BROKER} --alter --delete-config background.threads"),
        configs("describe what is left", f"{BROKER} --describe"),
        configs("describe the default that is left", f"{DEFAULT} --describe"),
        configs("an unknown broker", "--entity-type brokers --entity-name 9 --describe"),
        configs("a broker that is no number", "--entity-type brokers --entity-name nine --describe"),
    ),
)  # fmt: skip

LOGGERS: Final = "--entity-type broker-loggers --entity-name 1"
LEVELS: Final = ((r"(^  \S.*=[A-Z]+ sensitive=false synonyms=\{\}\n?)+", "  <loggers>"),)
"""kbroker has other loggers than Kafka."""
BROKER_LOGGERS: Final = Session(
    "configs-broker-loggers",
    (
        configs("describe", f"{LOGGERS} --describe", masks=LEVELS),
        configs("an unknown logger", f"{LOGGERS} --alter --add-config no.such.logger=DEBUG"),
        configs("root altered", f"{LOGGERS} --alter --add-config root=WARN"),
        configs("root set to an unknown level", f"{LOGGERS} --alter --add-config root=LOUD"),
        configs("root deleted", f"{LOGGERS} --alter --delete-config root"),
        configs("root put right", f"{LOGGERS} --alter --add-config root=INFO"),
        configs("without a broker", "--entity-type broker-loggers --describe"),
        configs("an unknown broker", "--entity-type broker-loggers --entity-name 9 --describe"),
    ),
)  # fmt: skip

UNKNOWN: Final = Session(
    "configs-unknown-brokers",
    (
        client_properties(1500),
        configs("a logger altered", f"--entity-type broker-loggers --entity-name 9 --alter --add-config root=INFO {PROPERTIES}"),
        configs("all values", f"--entity-type brokers --entity-name 9 --describe --all {PROPERTIES}"),
    ),
)  # fmt: skip

USERS: Final = "--entity-type users --entity-name alice"
CLIENTS: Final = "--entity-type clients --entity-name app"
UNKNOWN_ALTERED: Final = Session(
    "configs-unknown-broker-altered",
    (
        configs(
            "altered",
            "--entity-type brokers --entity-name 9 --alter --add-config max.connections=9",
        ),
    ),
    slow=True,
)
"""The tool waits half a minute for such a broker."""

QUOTAS: Final = Session(
    "configs-quotas",
    (
        configs("no quotas", "--entity-type users --describe"),
        configs("a user", f"{USERS} --alter --add-config producer_byte_rate=1000,consumer_byte_rate=2000"),
        configs("the default user", "--entity-type users --entity-default --alter --add-config request_percentage=50"),
        configs("a client", f"{CLIENTS} --alter --add-config controller_mutation_rate=10"),
        configs("the default client", "--client-defaults --alter --add-config producer_byte_rate=10"),
        configs("a client of a user", f"{USERS} {CLIENTS} --alter --add-config request_percentage=20.5"),
        configs("an address", "--entity-type ips --entity-name 127.0.0.9 --alter --add-config connection_creation_rate=1000"),
        configs("every address", "--ip-defaults --alter --add-config connection_creation_rate=2000"),
        configs("describe a user", f"{USERS} --describe"),
        configs("describe users", "--entity-type users --describe"),
        configs("describe the default user", "--user-defaults --describe"),
        configs("describe a client", f"{CLIENTS} --describe"),
        configs("describe clients", "--entity-type clients --describe"),
        configs("describe clients of users", "--entity-type users --entity-type clients --describe"),
        configs("describe a client of a user", f"{USERS} {CLIENTS} --describe"),
        configs("describe addresses", "--entity-type ips --describe"),
        configs("describe an address", "--ip 127.0.0.9 --describe"),
        configs("describe an unknown user", "--user nobody --describe"),
        configs("an unknown quota", f"{USERS} --alter --add-config nonsense=1"),
        configs("an unknown quota of an address", "--ip 127.0.0.9 --alter --add-config producer_byte_rate=1"),
        configs("a quota that is no number", f"{USERS} --alter --add-config producer_byte_rate=much"),
        configs("a quota of zero", f"{USERS} --alter --add-config producer_byte_rate=0"),
        configs("a negative quota", f"{USERS} --alter --add-config producer_byte_rate=-5"),
        configs("a fraction of a byte", f"{USERS} --alter --add-config producer_byte_rate=0.5"),
        configs("an unknown address", "--entity-type ips --entity-name no-such-host.invalid --alter --add-config connection_creation_rate=1"),
        configs("delete a quota that is not set", f"{USERS} --alter --delete-config request_percentage"),
        configs("delete a user's", f"{USERS} --alter --delete-config producer_byte_rate,consumer_byte_rate"),
        configs("delete the default user's", "--user-defaults --alter --delete-config request_percentage"),
        configs("delete a client's", f"{CLIENTS} --alter --delete-config controller_mutation_rate"),
        configs("delete the default client's", "--client-defaults --alter --delete-config producer_byte_rate"),
        configs("delete a client's of a user", f"{USERS} {CLIENTS} --alter --delete-config request_percentage"),
        configs("delete an address's", "--ip 127.0.0.9 --alter --delete-config connection_creation_rate"),
        configs("delete every address's", "--ip-defaults --alter --delete-config connection_creation_rate"),
        configs("describe what is left", "--entity-type users --describe"),
    ),
)  # fmt: skip

ORDERED: Final = ((r"(SCRAM-SHA-512=\S+), (SCRAM-SHA-256=\S+)", r"\2, \1"),)
"""Kafka's order is that of a hash map, another one in each of its processes."""
SCRAM: Final = Session(
    "configs-scram",
    (
        configs("create two at once", f"{USERS} --alter --add-config 'SCRAM-SHA-256=[iterations=8192,password=secret],SCRAM-SHA-512=[password=secret]'"),
        configs("create", f"{USERS} --alter --add-config 'SCRAM-SHA-256=[iterations=8192,password=secret]'"),
        configs("create with another mechanism", f"{USERS} --alter --add-config 'SCRAM-SHA-512=[password=secret]'"),
        configs("describe", f"{USERS} --describe", masks=ORDERED),
        configs("describe all users", "--entity-type users --describe", masks=ORDERED),
        configs("describe an unknown user", "--user nobody --describe"),
        configs("too few iterations", f"{USERS} --alter --add-config 'SCRAM-SHA-256=[iterations=100,password=secret]'"),
        configs("too many iterations", f"{USERS} --alter --add-config 'SCRAM-SHA-256=[iterations=20000,password=secret]'"),
        configs("no password", f"{USERS} --alter --add-config 'SCRAM-SHA-256=[iterations=8192]'"),
        configs("with a quota", f"{USERS} --alter --add-config 'SCRAM-SHA-256=[password=secret],producer_byte_rate=5'"),
        configs("the default user", "--user-defaults --alter --add-config 'SCRAM-SHA-256=[password=secret]'"),
        configs("delete one", f"{USERS} --alter --delete-config SCRAM-SHA-256"),
        configs("delete it again", f"{USERS} --alter --delete-config SCRAM-SHA-256"),
        configs("describe again", f"{USERS} --describe"),
        configs("alter", f"{USERS} --alter --add-config 'SCRAM-SHA-512=[iterations=4096,password=other]'"),
        configs("describe the altered", f"{USERS} --describe"),
        configs("delete the other", f"{USERS} --alter --delete-config SCRAM-SHA-512"),
        configs("an unknown user's deleted", "--user nobody --alter --delete-config SCRAM-SHA-512"),
    ),
)  # fmt: skip

GROUP: Final = "--entity-type groups --entity-name cf-g"
GROUPS: Final = Session(
    "configs-groups",
    (
        configs("an unknown group", f"{GROUP} --describe"),
        configs("all values of an unknown group", f"{GROUP} --describe --all"),
        configs("alter", f"{GROUP} --alter --add-config consumer.session.timeout.ms=50000,share.record.lock.duration.ms=20000"),
        configs("describe", f"{GROUP} --describe"),
        configs("describe all values", f"{GROUP} --describe --all"),
        configs("describe every group", "--entity-type groups --describe"),
        configs("an unknown config", f"{GROUP} --alter --add-config nonsense=1"),
        configs("a value of another type", f"{GROUP} --alter --add-config consumer.session.timeout.ms=soon"),
        configs("a value out of the broker's bounds", f"{GROUP} --alter --add-config consumer.session.timeout.ms=1"),
        configs("a value over the broker's bounds", f"{GROUP} --alter --add-config consumer.heartbeat.interval.ms=100000"),
        configs("a value that is not on the list", f"{GROUP} --alter --add-config share.auto.offset.reset=never"),
        configs("delete", f"{GROUP} --alter --delete-config consumer.session.timeout.ms,share.record.lock.duration.ms"),
        configs("describe what is left", f"{GROUP} --describe"),
    ),
)  # fmt: skip

METRICS: Final = "--entity-type client-metrics --entity-name cf-m"
CLIENT_METRICS: Final = Session(
    "configs-client-metrics",
    (
        configs("unknown", f"{METRICS} --describe"),
        configs("alter", f"{METRICS} --alter --add-config interval.ms=5000,metrics=[a.,b.],match=[client_id=x]"),
        configs("describe", f"{METRICS} --describe"),
        configs("describe all values", f"{METRICS} --describe --all"),
        configs("describe every one", "--entity-type client-metrics --describe"),
        configs("an unknown config", f"{METRICS} --alter --add-config nonsense=1"),
        configs("a small interval", f"{METRICS} --alter --add-config interval.ms=5"),
        configs("an interval that is no number", f"{METRICS} --alter --add-config interval.ms=soon"),
        configs("an unknown selector", f"{METRICS} --alter --add-config match=[colour=red]"),
        configs("a malformed selector", f"{METRICS} --alter --add-config match=red"),
        configs("delete", f"{METRICS} --alter --delete-config interval.ms,metrics,match"),
        configs("describe what is left", f"{METRICS} --describe"),
    ),
)  # fmt: skip

USAGE: Final = Session(
    "configs-usage",
    (
        configs("help", "--help", ""),
        configs("no verb", "--entity-type topics"),
        configs("two verbs", "--entity-type topics --describe --alter"),
        configs("no entity type", "--describe"),
        configs("an unknown entity type", "--entity-type planets --describe"),
        configs("alter without a name", "--entity-type topics --alter --add-config a=1"),
        configs("alter without a config", "--entity-type topics --entity-name a --alter"),
        configs("both addresses", "--bootstrap-controller {controller} --entity-type brokers --describe"),
        configs("no address", "--entity-type brokers --describe", ""),
    ),
)  # fmt: skip

SESSIONS: Final = (
    TOPICS, BROKERS, BROKER_LOGGERS, UNKNOWN, UNKNOWN_ALTERED, QUOTAS, SCRAM, GROUPS, CLIENT_METRICS, USAGE,
)  # fmt: skip
