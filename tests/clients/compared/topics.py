"""kafka-topics.sh."""

from __future__ import annotations

from typing import Final

from tests.clients.compared.acts import PROPERTIES, client_properties, topic_ids
from tests.clients.compared.row import Row, Session


def topics(name: str, arguments: str) -> Row:
    """A run of TopicCommand."""
    return Row(name, "TopicCommand", arguments)


CREATE: Final = Session(
    "topics-create",
    (
        topics("create", "--create --topic tc-a --partitions 3 --replication-factor 1"),
        topics("create with defaults", "--create --topic tc-b"),
        topics(
            "create with configs",
            "--create --topic tc-c --partitions 2 --config retention.ms=-1 "
            "--config cleanup.policy=compact,delete --config segment.bytes=2097152",
        ),
        topics("create with an assignment", "--create --topic tc-d --replica-assignment 1,1,1"),
        topics("create again", "--create --topic tc-a"),
        topics("create again if not exists", "--create --topic tc-a --if-not-exists"),
        topics("create with a period", "--create --topic tc.dot"),
        topics("create with an underscore", "--create --topic tc_dot"),
        topics("create with an empty name", "--create --topic ''"),
        topics("create with a space", "--create --topic 'tc a'"),
        topics("create with a dot only", "--create --topic ."),
        topics("create with a long name", "--create --topic " + 250 * "a"),
        topics("create without partitions", "--create --topic tc-e --partitions 0"),
        topics("create with too few partitions", "--create --topic tc-e --partitions -2"),
        topics("create with two replicas", "--create --topic tc-e --replication-factor 2"),
        topics("create with no replica", "--create --topic tc-e --replication-factor 0"),
        topics("create on an unknown broker", "--create --topic tc-e --replica-assignment 9"),
        topics("create on a broker twice", "--create --topic tc-e --replica-assignment 1:1"),
        topics("create with uneven replicas", "--create --topic tc-e --replica-assignment 1,1:9"),
        topics("create with an unknown config", "--create --topic tc-e --config nonsense=1"),
        topics("create with a wrong value", "--create --topic tc-e --config retention.ms=soon"),
        topics("create with a small value", "--create --topic tc-e --config segment.bytes=1"),
        topics("create with no value", "--create --topic tc-e --config retention.ms"),
        topics("create an internal topic", "--create --topic __consumer_offsets"),
        topics(
            "create with remote storage",
            "--create --topic tc-e --config remote.storage.enable=true",
        ),
        topics("describe one", "--describe --topic tc-a"),
        topics("describe with configs", "--describe --topic tc-c"),
        topics("describe an assignment", "--describe --topic tc-d"),
        topics("describe a pattern", "--describe --topic 'tc-[ab]'"),
        topics("describe an unknown topic", "--describe --topic tc-none"),
        topics("describe an unknown topic if it exists", "--describe --topic tc-none --if-exists"),
        topics("describe all", "--describe"),
        topics("describe all but internal", "--describe --exclude-internal"),
        topics(
            "describe in pages", "--describe --topic tc-a --partition-size-limit-per-response 1"
        ),
        topics("describe with overrides", "--describe --topics-with-overrides --exclude-internal"),
        topics("describe under-replicated", "--describe --under-replicated-partitions"),
        topics("describe unavailable", "--describe --unavailable-partitions"),
        topics("describe under min ISR", "--describe --under-min-isr-partitions"),
        topics("describe at min ISR", "--describe --at-min-isr-partitions --topic 'tc-.*'"),
        topic_ids("tc-a"),
        topics("describe an id", "--describe --topic-id {id_of_tc-a}"),
        topics("describe an unknown id", "--describe --topic-id AAAAAAAAAAAAAAAAAAABBg"),
        topics("describe a malformed id", "--describe --topic-id short"),
        topics("list", "--list"),
        topics("list without internal", "--list --exclude-internal"),
        topics("list a pattern", "--list --topic 'tc-[ac]'"),
        topics("list an unknown topic", "--list --topic tc-none"),
        client_properties(),
        topics("list with properties of the client", f"--list {PROPERTIES}"),
        topics("list with properties that are not there", "--list --command-config {folder}/none"),
        topics("delete", "--delete --topic tc-b"),
        topics("delete an unknown topic", "--delete --topic tc-none"),
        topics("delete an unknown topic if it exists", "--delete --topic tc-none --if-exists"),
        topics("delete a pattern", "--delete --topic 'tc-[acd]|tc.dot'"),
        topics("list what is left", "--list --exclude-internal"),
    ),
)

ALTER: Final = Session(
    "topics-alter",
    (
        topics("create", "--create --topic ta-a --partitions 2"),
        topics("add partitions", "--alter --topic ta-a --partitions 4"),
        topics("describe", "--describe --topic ta-a"),
        topics(
            "add partitions with an assignment",
            "--alter --topic ta-a --partitions 6 --replica-assignment 1,1,1,1,1,1",
        ),
        topics("describe again", "--describe --topic ta-a"),
        topics("as many partitions", "--alter --topic ta-a --partitions 6"),
        topics("fewer partitions", "--alter --topic ta-a --partitions 1"),
        topics("no partitions", "--alter --topic ta-a --partitions 0"),
        topics("partitions of an unknown topic", "--alter --topic ta-none --partitions 3"),
        topics(
            "partitions of an unknown topic if it exists",
            "--alter --topic ta-none --partitions 3 --if-exists",
        ),
        topics(
            "an assignment to an unknown broker",
            "--alter --topic ta-a --partitions 7 --replica-assignment 1,1,1,1,1,1,9",
        ),
        topics(
            "an assignment of another size",
            "--alter --topic ta-a --partitions 9 --replica-assignment 1,1,1,1,1,1,1",
        ),
        topics("delete", "--delete --topic ta-a"),
    ),
)

USAGE: Final = Session(
    "topics-usage",
    (
        Row("help", "TopicCommand", "--help", server=""),
        Row("version", "TopicCommand", "--version", server=""),
        topics("no verb", "--topic tu"),
        topics("two verbs", "--list --describe"),
        topics("create without a topic", "--create"),
        Row(
            "configs are not altered",
            "TopicCommand",
            "--alter --topic tu --config retention.ms=1",
            masks=((r"\[\[[\w-]+\], \[[\w-]+\]\]", "[[config], [bootstrap-server]]"),),
        ),
    ),
)

SESSIONS: Final = (CREATE, ALTER, USAGE)
