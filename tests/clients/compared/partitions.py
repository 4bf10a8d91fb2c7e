"""kafka-get-offsets.sh, kafka-delete-records.sh, kafka-log-dirs.sh and kafka-leader-election.sh."""

from __future__ import annotations

import json
from typing import Final

from tests.clients.compared.acts import BASE_MS, PROPERTIES, client_properties, file, produce
from tests.clients.compared.row import Act, Row, Session


def offsets(name: str, arguments: str) -> Row:
    """A run of GetOffsetShell."""
    return Row(name, "GetOffsetShell", arguments)


def create(name: str, partitions: int) -> Row:
    """Make a topic. Its records are of 2023, and are kept."""
    return Row(
        f"create {name}",
        "TopicCommand",
        f"--create --topic {name} --partitions {partitions} --config retention.ms=-1",
    )


def delete(name: str) -> Row:
    """Delete a topic."""
    return Row(f"delete {name}", "TopicCommand", f"--delete --topic {name}")


def partitions_file(name: str, **content: object) -> Act:
    """A JSON file."""
    return file(name, json.dumps(content))


GET_OFFSETS: Final = Session(
    "get-offsets",
    (
        create("of-a", 3),
        create("of-b", 1),
        produce("of-a", 10),
        produce("of-a", 4, partition=1),
        produce("of-b", 6),
        Row("all", "GetOffsetShell", "", masks=((r"^(__\w+:\d+):\d+$", r"\1:<n>"),)),
        offsets("all but internal", "--exclude-internal-topics"),
        offsets("a topic", "--topic of-a"),
        offsets("a pattern", "--topic 'of-.*'"),
        offsets("partitions", "--topic of-a --partitions 0,2"),
        offsets("topics and partitions", "--topic-partitions of-a:1,of-b:0"),
        offsets("ranges of partitions", "--topic-partitions of-a:1-,of-b:-1"),
        *(
            offsets(f"at {time}", f"--topic of-a --time {time}")
            for time in (
                *("earliest", "latest", "max-timestamp", "earliest-local", "latest-tiered"),
                *("earliest-pending-upload", -1, -2, -3, -4, -5, -6),
                *(BASE_MS, BASE_MS + 25, BASE_MS + 1000, 0),
            )
        ),
        offsets("at a malformed time", "--topic of-a --time noon"),
        offsets("an unknown topic", "--topic of-none"),
        offsets("an unknown partition", "--topic of-a --partitions 7"),
        offsets("a malformed partition", "--topic of-a --partitions x"),
        offsets("options that exclude each other", "--topic of-a --topic-partitions of-a:1"),
        Row("no address", "GetOffsetShell", "--topic of-a", server=""),
        delete("of-a"),
        delete("of-b"),
    ),
)


def records(name: str, file_name: str, more: str = "") -> Row:
    """A run of DeleteRecordsCommand."""
    arguments = f"--offset-json-file {{folder}}/{file_name} {more}"
    return Row(name, "DeleteRecordsCommand", arguments.rstrip(), sort=True)


def before(offset: int, topic: str = "dr-a", partition: int = 0) -> dict[str, object]:
    """A partition of the command's file."""
    return {"topic": topic, "partition": partition, "offset": offset}


DELETE_RECORDS: Final = Session(
    "delete-records",
    (
        create("dr-a", 2),
        produce("dr-a", 10),
        produce("dr-a", 4, partition=1),
        partitions_file("some.json", version=1, partitions=[before(6), before(1, partition=1)]),
        records("some", "some.json"),
        offsets("the start is later", "--topic dr-a --time earliest"),
        records("the same again", "some.json"),
        partitions_file("back.json", version=1, partitions=[before(2)]),
        records("before the start", "back.json"),
        partitions_file("all.json", version=1, partitions=[before(-1)]),
        records("all", "all.json"),
        offsets("nothing is left", "--topic dr-a --time earliest"),
        partitions_file("over.json", version=1, partitions=[before(1000)]),
        records("beyond the end", "over.json"),
        partitions_file("unknown.json", version=1, partitions=[before(1, "dr-none")]),
        client_properties(1500),
        records("an unknown topic", "unknown.json", PROPERTIES),
        partitions_file("part.json", version=1, partitions=[before(1, partition=7)]),
        records("an unknown partition", "part.json", PROPERTIES),
        partitions_file("twice.json", version=1, partitions=[before(7), before(8)]),
        records("a partition twice", "twice.json"),
        partitions_file("later.json", version=9, partitions=[before(7)]),
        records("a later version", "later.json"),
        file("malformed.json", "no JSON"),
        records("a malformed file", "malformed.json"),
        records("no file", "none.json"),
        Row("make it compacted", "ConfigCommand", "--topic dr-a --alter --add-config cleanup.policy=compact"),
        partitions_file("compacted.json", version=1, partitions=[before(3, partition=1)]),
        records("a compacted topic", "compacted.json"),
        delete("dr-a"),
    ),
)  # fmt: skip


def log_dirs(name: str, arguments: str, masks: tuple[tuple[str, str], ...] = ()) -> Row:
    """A run of LogDirsCommand."""
    return Row(name, "LogDirsCommand", arguments, masks=masks)


LOG_DIRS: Final = Session(
    "log-dirs",
    (
        create("ld-a", 2),
        produce("ld-a", 10),
        produce("ld-a", 4, partition=1, size=500),
        log_dirs("topics", "--describe --topic-list ld-a"),
        # the groups of other sessions are in the internal topics
        log_dirs("everything", "--describe", ((r'"size":\d+', '"size":<size>'),)),
        log_dirs("of a broker", "--describe --broker-list 1 --topic-list ld-a"),
        log_dirs("of an unknown broker", "--describe --broker-list 1,9"),
        log_dirs("of an unknown topic", "--describe --topic-list ld-none"),
        log_dirs("no verb", "--topic-list ld-a"),
        log_dirs("a malformed broker", "--describe --broker-list one"),
        delete("ld-a"),
    ),
)


def elect(name: str, arguments: str) -> Row:
    """A run of LeaderElectionCommand."""
    return Row(name, "LeaderElectionCommand", arguments)


ELECTION: Final = Session(
    "leader-election",
    (
        create("le-a", 2),
        elect("preferred", "--election-type preferred --topic le-a --partition 0"),
        elect("unclean", "--election-type unclean --topic le-a --partition 0"),
        elect("preferred of all", "--election-type preferred --all-topic-partitions"),
        elect("unclean of all", "--election-type unclean --all-topic-partitions"),
        partitions_file(
            "two.json", partitions=[{"topic": "le-a", "partition": number} for number in (0, 1)]
        ),
        elect("of a file", "--election-type preferred --path-to-json-file {folder}/two.json"),
        partitions_file("one.json", partitions=2 * [{"topic": "le-a", "partition": 0}]),
        elect(
            "of a partition twice",
            "--election-type preferred --path-to-json-file {folder}/one.json",
        ),
        elect("of an unknown topic", "--election-type preferred --topic le-none --partition 0"),
        elect("of an unknown partition", "--election-type preferred --topic le-a --partition 7"),
        elect("of an unknown type", "--election-type lucky --topic le-a --partition 0"),
        elect("without a partition", "--election-type preferred --topic le-a"),
        elect("of nothing", "--election-type preferred"),
        elect("without a type", "--topic le-a --partition 0"),
        delete("le-a"),
    ),
)

SESSIONS: Final = (GET_OFFSETS, DELETE_RECORDS, LOG_DIRS, ELECTION)
