"""The programs that make and measure load: kafka-producer-perf-test.sh, kafka-consumer-perf-test.sh,
kafka-e2e-latency.sh, kafka-verifiable-producer.sh, kafka-verifiable-consumer.sh, and Kafka's test of
what a client may do.
"""

from __future__ import annotations

from typing import Final

from tests.clients.compared.acts import file
from tests.clients.compared.partitions import create, delete
from tests.clients.compared.row import Difference, Row, Session

FIGURES: Final = (
    (r"[\d.,]+ (records/sec|MB/sec|ms avg|ms max|ms 50th|ms 95th|ms 99th|ms 99.9th)", r"<n> \1"),
)


def produce(name: str, arguments: str, differs: Difference | None = None) -> Row:
    """A run of ProducerPerformance."""
    return Row(name, "ProducerPerformance", arguments, masks=FIGURES, differs=differs)


REFUSED: Final = "org.apache.kafka.common.errors.RecordTooLargeException: "
TOO_LARGE: Final = Difference(
    "kbroker says how large a batch is that it refuses, and the limit",
    {
        f"{REFUSED}The request included a message larger than the max message size the server will "
        "accept.": f"{REFUSED}a batch of 2000074 bytes, max.message.bytes is 1048588"
    },
)


PRODUCE: Final = Session(
    "producer-performance",
    (
        create("pp-t", 1),
        produce("records of a size", "--topic pp-t --num-records 500 --record-size 100 --throughput -1"),
        produce("at a rate", "--topic pp-t --num-records 20 --record-size 10 --throughput 100"),
        produce("counted records", "--topic pp-t --num-records 50 --payload-monotonic --throughput -1"),
        file("payloads", "one\ntwo\n"),
        produce("records of a file", "--topic pp-t --num-records 50 --payload-file {folder}/payloads --throughput -1"),
        produce("a warm-up", "--topic pp-t --num-records 60 --record-size 10 --throughput -1 --warmup-records 20"),
        produce("in a transaction", "--topic pp-t --num-records 50 --record-size 10 --throughput -1 --transactional-id pp-x --transaction-duration-ms 100"),
        produce("with properties", "--topic pp-t --num-records 50 --record-size 10 --throughput -1 --command-property acks=1 compression.type=zstd"),
        Row("all is there", "GetOffsetShell", "--topic pp-t"),
        produce("a record that is too large", "--topic pp-t --num-records 1 --record-size 2000000 --throughput -1 --command-property max.request.size=9000000", TOO_LARGE),
        produce("no topic", "--num-records 1 --record-size 1 --throughput -1"),
        produce("no size", "--topic pp-t --num-records 1 --throughput -1"),
        produce("a property that is unknown", "--topic pp-t --num-records 1 --record-size 1 --throughput -1 --command-property acks=some"),
        delete("pp-t"),
    ),
)  # fmt: skip

SUMMARY: Final = (
    (r"^(<date>, <date>, )[\d.]+, [\d.]+, (\d+), .*$", r"\1<MB>, <n>, \2, <figures>"),
    (r"^(<date>, 0), .*$", r"\1, <figures>"),
    (r"(perf-consumer-)(?:\d+|<n>)\) +$", r"\1<n>)"),  # as wide as its number, which is drawn
)


def consume(name: str, arguments: str) -> Row:
    """A run of ConsumerPerformance."""
    return Row(name, "ConsumerPerformance", arguments, masks=SUMMARY)


CONSUME: Final = Session(
    "consumer-performance",
    (
        create("cp-t", 2),
        produce("produce", "--topic cp-t --num-records 300 --record-size 50 --throughput -1"),
        consume("a topic", "--topic cp-t --num-records 300 --group cp-g"),
        Row("the group", "ConsumerGroupCommand", "--describe --group cp-g --state"),
        consume("a pattern", "--include 'cp-.*' --num-records 100"),
        consume("no header", "--topic cp-t --num-records 100 --hide-header"),
        consume("by the new protocol", "--topic cp-t --num-records 100 --command-property group.protocol=consumer --group cp-n"),
        consume("fewer than asked for", "--topic cp-t --num-records 400 --timeout 3000 --group cp-m"),
        consume("an unknown topic", "--topic cp-none --num-records 1 --timeout 300 --command-property allow.auto.create.topics=false"),
        consume("no topic", "--num-records 1"),
        Row("delete the groups", "ConsumerGroupCommand", "--delete --group cp-g --group cp-n --group cp-m"),
        delete("cp-t"),
    ),
)  # fmt: skip


LATENCY: Final = (
    (r"^(\d+)\t[\d.]+$", r"\1\t<ms>"),
    (r"(Avg latency: )[\d.]+", r"\1<n>"),
    (r"(50th|99th|99.9th) = \d+", r"\1 = <n>"),
)


def end_to_end(name: str, arguments: str) -> Row:
    """A run of EndToEndLatency."""
    return Row(name, "EndToEndLatency", arguments, masks=LATENCY)


END_TO_END: Final = Session(
    "end-to-end-latency",
    (
        create("ee-t", 1),
        end_to_end("one replica", "--topic ee-t --num-records 30 --producer-acks 1 --record-size 20"),
        end_to_end("all replicas", "--topic ee-t --num-records 30 --producer-acks all --record-size 20 --record-key-size 4"),
        end_to_end("headers", "--topic ee-t --num-records 10 --producer-acks 1 --record-size 20 --num-headers 2 --record-header-key-size 3 --record-header-size 5"),
        end_to_end("a topic that it makes", "--topic ee-new --num-records 5 --producer-acks all --record-size 20"),
        end_to_end("no acknowledgement", "--topic ee-t --num-records 1 --producer-acks 0 --record-size 20"),
        end_to_end("no size", "--topic ee-t --num-records 1 --producer-acks 1"),
        delete("ee-t"),
        delete("ee-new"),
    ),
)  # fmt: skip

RATES: Final = (
    (r'"(avg_throughput|target_throughput)":[-\d.]+', r'"\1":<n>'),
    (r'"timestamp":<ms>', '"timestamp":<ms>'),
    # the consumer was given its partitions before the names of their topics (new protocol)
    (r'^\{"name":"partitions_assigned","partitions":\[\],"timestamp":<ms>\}\n', ""),
)


def verifiable(name: str, tool: str, arguments: str) -> Row:
    """A run of VerifiableProducer or VerifiableConsumer."""
    return Row(name, f"Verifiable{tool}", arguments, json=True, masks=RATES)


VERIFIABLE: Final = Session(
    "verifiable",
    (
        create("vf-t", 1),
        verifiable("produce", "Producer", "--topic vf-t --max-messages 5"),
        verifiable("produce with a prefix", "Producer", "--topic vf-t --max-messages 3 --value-prefix 7 --acks 1"),
        verifiable("produce with keys", "Producer", "--topic vf-t --max-messages 4 --repeating-keys 2"),
        verifiable("produce at a time", "Producer", "--topic vf-t --max-messages 2 --message-create-time 1700000000000"),
        verifiable("consume", "Consumer", "--topic vf-t --group-id vf-g --max-messages 14 --verbose"),
        verifiable("consume by the new protocol", "Consumer", "--topic vf-t --group-id vf-n --max-messages 14 --group-protocol consumer --enable-autocommit"),
        Row("delete the groups", "ConsumerGroupCommand", "--delete --group vf-g --group vf-n"),
        delete("vf-t"),
    ),
)  # fmt: skip

SUPPORTED: Final = (
    "--offsets-for-times-supported true --cluster-id-supported true "
    "--expect-record-too-large-exception {too_large} --num-cluster-nodes {nodes} "
    "--create-topics-supported true --describe-acls-supported true "
    "--describe-configs-supported true --idempotent-producer-supported true"
)


def compatible(name: str, topic: str, nodes: int = 1, too_large: bool = True) -> Row:
    """A run of ClientCompatibilityTest, which sends two records, and reads them with a limit that
    the second one is over.
    """
    asked = SUPPORTED.format(nodes=nodes, too_large=str(too_large).lower())
    return Row(name, "ClientCompatibilityTest", f"--topic {topic} {asked}")


COMPATIBILITY: Final = Session(
    "client-compatibility",
    (
        create("cc-t", 1),
        create("cc-u", 1),
        compatible("all is supported", "cc-t", too_large=False),
        compatible("more nodes than expected", "cc-u", nodes=0),
        Row("no topic", "ClientCompatibilityTest", ""),
        delete("cc-t"),
        delete("cc-u"),
        delete("newtopic"),
    ),
)

SESSIONS: Final = (PRODUCE, CONSUME, END_TO_END, VERIFIABLE, COMPATIBILITY)
