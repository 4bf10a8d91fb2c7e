"""The client commands against a broker."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.topics import DeleteRecordsRequest
from kbroker.protocol.messages.coordinators.groups import FindCoordinatorResponse
from kbroker.testing import EmbeddedBroker
from tests.e2e.wire import call

Kbroker = Callable[..., Any]


def test_topics(kbroker: Kbroker) -> None:
    created = kbroker("topics", "create", "cli-a", "-p", "3", "--config", "retention.ms=86400000")
    assert (created.code, created.err) == (0, "created cli-a with 3 partitions\n")
    assert "cli-a\t3\t1" in kbroker("topics", "list").lines
    listed = [json.loads(line) for line in kbroker("topics", "list", "--json").lines]
    assert {"topic": "cli-a", "partitions": 3, "replicas": 1} in listed
    described = kbroker("topics", "describe", "cli-a")
    assert described.lines[2] == "cli-a\t2\t1\t1\t1\t0\t0"
    configs = kbroker("topics", "describe", "cli-a", "--configs").lines
    assert "cli-a\tretention.ms\t86400000\tTOPIC_CONFIG" in configs
    assert "cli-a\tcompression.type\tproducer\tDEFAULT_CONFIG" in configs
    again = kbroker("topics", "create", "cli-a")
    assert (again.code, again.err) == (
        1,
        "kbroker: TOPIC_ALREADY_EXISTS: Topic 'cli-a' already exists.\n",
    )
    assert kbroker("topics", "create", "cli-a", "--if-not-exists").code == 0
    assert kbroker("topics", "delete", "cli-a").err == "deleted cli-a\n"
    assert "cli-a\t3\t1" not in kbroker("topics", "list").lines
    assert kbroker("topics", "delete", "cli-a").code == 1
    assert kbroker("topics", "delete", "cli-a", "--if-exists").code == 0


def test_of_several_topics_each_is_reported(kbroker: Kbroker) -> None:
    created = kbroker("topics", "create", "several-a", "several/b", "several-c")
    assert created.code == 1
    assert sorted(created.err.splitlines()[:2]) == [
        "created several-a with 1 partition",
        "created several-c with 1 partition",
    ]
    assert created.err.splitlines()[2].startswith("kbroker: INVALID_TOPIC_EXCEPTION: ")
    deleted = kbroker("topics", "delete", "several-a", "several-x", "several-c")
    assert deleted.code == 1
    assert deleted.err.splitlines()[:2] == ["deleted several-a", "deleted several-c"]
    assert "several-x" in deleted.err.splitlines()[2]


def test_a_topic_gets_more_partitions(kbroker: Kbroker) -> None:
    kbroker("topics", "create", "grown-a", "grown-b", "-p", "2")
    grown = kbroker("topics", "add-partitions", "grown-a", "grown-b", "--add", "1")
    assert (grown.code, grown.lines) == (0, [])
    assert grown.err.splitlines() == [
        "grown-a has 3 partitions, 1 more than before",
        "grown-b has 3 partitions, 1 more than before",
    ]
    dry = kbroker("topics", "add-partitions", "grown-a", "-p", "7", "--dry-run")
    assert (dry.code, dry.err) == (0, "grown-a would have 7 partitions, 4 more than before\n")
    rows = kbroker("topics", "add-partitions", "grown-b", "-p", "5", "--json").lines
    assert list(map(json.loads, rows)) == [{"topic": "grown-b", "partitions": 5, "added": 2}]
    counts = [line for line in kbroker("topics", "list").lines if line.startswith("grown-")]
    assert counts == ["grown-a\t3\t1", "grown-b\t5\t1"]


def test_of_several_topics_that_cannot_grow_each_is_reported(kbroker: Kbroker) -> None:
    kbroker("topics", "create", "small-a", "-p", "2")
    kbroker("topics", "create", "small-b", "-p", "1")
    names = ("small-a", "small-none", "small-b")
    result = kbroker("topics", "add-partitions", *names, "--partitions", "2")
    assert result.code == 1
    assert result.err.splitlines() == [
        "small-b has 2 partitions, 1 more than before",
        "kbroker: UNKNOWN_TOPIC_OR_PARTITION: topic small-none",
        "kbroker: INVALID_PARTITIONS: topic small-a: Topic already has 2 partition(s).",
    ]


@pytest.mark.parametrize("arguments", [(), ("--add", "1", "--partitions", "2")])
def test_add_partitions_is_told_one_number(kbroker: Kbroker, arguments: tuple[str, ...]) -> None:
    result = kbroker("topics", "add-partitions", "t", *arguments)
    assert (result.code, result.out) == (2, "")
    assert "give --partitions or --add, and not both" in result.err
    assert kbroker("topics", "add-partitions", "t", "--add", "0").code == 2


def test_json_has_numbers_and_arrays(kbroker: Kbroker) -> None:
    kbroker("topics", "create", "json-types", "--config", "cleanup.policy=compact,delete")
    (row,) = map(json.loads, kbroker("topics", "describe", "json-types", "--json").lines)
    assert (row["replicas"], row["in_sync"], row["leader"]) == ([1], [1], 1)
    configs = kbroker("topics", "describe", "json-types", "--configs", "--json").lines
    values = {row["key"]: row["value"] for row in map(json.loads, configs)}
    assert values["cleanup.policy"] == ["compact", "delete"]
    assert values["retention.ms"] == 604_800_000
    assert values["min.cleanable.dirty.ratio"] == 0.5
    assert values["preallocate"] is False
    assert values["compression.type"] == "producer"
    assert kbroker("topics", "describe", "json-types").lines == ["json-types\t0\t1\t1\t1\t0\t0"]
    plain = kbroker("topics", "describe", "json-types", "--configs").lines
    assert "json-types\tcleanup.policy\tcompact,delete\tTOPIC_CONFIG" in plain
    assert any(line.startswith("json-types\tpreallocate\tfalse\t") for line in plain)


def test_counts_have_the_right_number(kbroker: Kbroker, kafka_topic: str) -> None:
    assert (
        f"\n1 record to {kafka_topic} in " in "\n" + kbroker("produce", kafka_topic, text="x").err
    )
    assert "2 records to" in kbroker("produce", kafka_topic, text="x\ny").err
    assert "0 records to" in kbroker("produce", kafka_topic, text="").err


def test_an_offset_outside_of_the_partition_is_said(
    kbroker: Kbroker, kafka_topic: str, kafka_broker: EmbeddedBroker
) -> None:
    kbroker("produce", kafka_topic, text="\n".join(map(str, range(10))))
    beyond = kbroker("consume", kafka_topic, "--offset", "999", "-x")
    assert (beyond.code, beyond.lines) == (0, [])
    assert beyond.err == f"{kafka_topic}-0 ends at 10; reading from there, not from 999\n"
    assert kbroker("consume", kafka_topic, "--offset", "10", "-x").err == ""
    port = int(kafka_broker.bootstrap_servers.rpartition(":")[2])
    request = DeleteRecordsRequest(
        topics=[
            DeleteRecordsRequest.DeleteRecordsTopic(
                name=kafka_topic,
                partitions=[
                    DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=4)
                ],
            )
        ],
        timeout_ms=10_000,
    )
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        call(connection, request, 2)
    before = kbroker("consume", kafka_topic, "--offset", "2", "-x")
    assert before.lines == ["4", "5", "6", "7", "8", "9"]
    assert before.err == f"{kafka_topic}-0 begins at 4; reading from there, not from 2\n"


def test_what_was_done_is_said_in_json(kbroker: Kbroker, kafka_topic: str) -> None:
    def rows(*arguments: str) -> list[dict[str, Any]]:
        result = kbroker(*arguments, "--json")
        assert (result.code, result.err) == (0, "")
        return list(map(json.loads, result.lines))

    created = {"topic": "json-a", "partitions": 2, "replicas": 1}
    assert rows("topics", "create", "json-a", "-p", "2") == [created]
    assert rows("topics", "delete", "json-a") == [{"topic": "json-a"}]
    kbroker("produce", kafka_topic, text="x")
    group = f"json-{kafka_topic}"
    kbroker("consume", kafka_topic, "--group", group, "-e", "-n", "1")
    forgotten = rows("groups", "delete-offsets", group, kafka_topic)
    assert forgotten == [{"group": group, "topics": [kafka_topic]}]


def test_of_all_topics_some_are_shown(kbroker: Kbroker, kafka_topic: str) -> None:
    every = [json.loads(line) for line in kbroker("topics", "describe", "--json").lines]
    assert kafka_topic in {row["topic"] for row in every}
    assert not any(row["topic"].startswith("__") for row in every)
    for option in ("--under-replicated", "--unavailable"):
        assert kbroker("topics", "describe", option).lines == []


def test_a_bad_topic_setting_is_one_line(kbroker: Kbroker) -> None:
    result = kbroker("topics", "create", "cli-bad", "--config", "retention.ms=soon")
    assert result.code == 1
    assert result.err.count("\n") == 1
    assert "Not a number of type LONG" in result.err


def test_lines_there_and_back(kbroker: Kbroker, kafka_topic: str) -> None:
    sent = kbroker("produce", kafka_topic, "--key-separator", ":", text="a:1\nb:2:3\r\nc:")
    assert sent.code == 0, sent.err
    shown = kbroker("consume", kafka_topic, "--from-beginning", "-x", "--format", r"%p/%o\t%k=%v%%")
    assert shown.lines == ["0/0\ta=1%", "0/1\tb=2:3%", "0/2\tc=%"]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_codecs(kbroker: Kbroker, kafka_topic: str, codec: str) -> None:
    lines = [f"line {number}" for number in range(1000)]
    sent = kbroker("produce", kafka_topic, "-z", codec, "--idempotent", text="\n".join(lines))
    assert sent.code == 0, sent.err
    assert kbroker("consume", kafka_topic, "-e", "-n", "1000").lines == lines


def test_json_there_and_back(kbroker: Kbroker, kafka_topic: str) -> None:
    records = [
        {"key": "k", "value": "v", "headers": [{"name": "h", "value": "x"}], "timestamp": 5},
        {"key": None, "value": None, "headers": []},
        {"value": {"nested": [1, 2]}, "headers": {"a": "b", "n": None}},
        {"value_base64": "/wA="},
    ]
    text = "\n".join(map(json.dumps, records))
    sent = kbroker("produce", kafka_topic, "--json", "--header", "s=cli", text=text)
    assert sent.code == 0, sent.err
    shown = kbroker("consume", kafka_topic, "--from-beginning", "--exit-at-end", "--json")
    first, second, third, fourth = map(json.loads, shown.lines)
    assert (first["key"], first["value"], first["timestamp"]) == ("k", "v", 5)
    assert first["headers"] == [{"name": "s", "value": "cli"}, {"name": "h", "value": "x"}]
    assert (second["key"], second["value"]) == (None, None)
    assert json.loads(third["value"]) == {"nested": [1, 2]}
    assert {"name": "n", "value": None} in third["headers"]
    assert fourth["value_base64"] == "/wA="


def test_null_value_and_file(kbroker: Kbroker, kafka_topic: str, tmp_path: Path) -> None:
    path = tmp_path / "records"
    path.write_text("a=NULL\n")
    sent = kbroker(
        "produce", kafka_topic, "-f", str(path), "-k", "=", "--null-value", "NULL", "--acks", "1"
    )
    assert sent.code == 0, sent.err
    shown = kbroker("consume", kafka_topic, "-e", "-x", "--json")
    assert json.loads(shown.lines[0])["value"] is None


@pytest.mark.parametrize(
    ("arguments", "text", "message"),
    [
        (("--key-separator", ":"), "no separator", "line 1 has no key separator ':'"),
        (("--json",), "{}\nnot json", "line 2 cannot be read: "),
        (("--json",), '{"timestamp": "soon"}', "line 1 cannot be read: timestamp 'soon'"),
        (("--json",), '{"timestamp": 99999999999999999999}', "line 1 cannot be read: timestamp 9"),
        (("--json",), '{"headers": 5}', "headers is neither an object nor a list of objects"),
        (("--json",), '{"headers": [5]}', "headers is neither an object nor a list of objects"),
        (("--partition", "7"), "x", "has no partition 7, its last is 0"),
    ],
)
def test_produce_mistakes(
    kbroker: Kbroker, kafka_topic: str, arguments: tuple[str, ...], text: str, message: str
) -> None:
    result = kbroker("produce", kafka_topic, *arguments, text=text)
    assert result.code == 1
    assert message in result.err
    assert result.err.count("\n") == 1


def test_offsets(kbroker: Kbroker, kafka_topic: str) -> None:
    kbroker("produce", kafka_topic, text="\n".join(map(str, range(10))))
    assert kbroker("consume", kafka_topic, "--offset", "8", "-x").lines == ["8", "9"]
    assert kbroker("consume", kafka_topic, "--offset", "-3", "-x").lines == ["7", "8", "9"]
    assert len(kbroker("consume", kafka_topic, "--offset", "-30", "-x").lines) == 10
    assert kbroker("consume", kafka_topic, "-p", "0", "-e", "-n", "2").lines == ["0", "1"]
    assert kbroker("consume", kafka_topic, "--timeout", "0.1").lines == []
    missing = kbroker("consume", kafka_topic, "-p", "3", "-e", "-x")
    assert missing.code == 1
    assert "no partition 3" in missing.err


def test_a_group_commits_what_was_printed(kbroker: Kbroker, kafka_topic: str) -> None:
    group = f"group-{kafka_topic}"
    kbroker("produce", kafka_topic, text="\n".join(map(str, range(10))))
    first = kbroker("consume", kafka_topic, "--group", group, "--from-beginning", "-n", "4")
    assert first.lines == ["0", "1", "2", "3"]
    rows = [json.loads(line) for line in kbroker("groups", "describe", group, "--json").lines]
    assert [(row["committed"], row["end"], row["lag"]) for row in rows] == [(4, 10, 6)]
    rest = kbroker("consume", kafka_topic, "--group", group, "-n", "6")
    assert rest.lines == ["4", "5", "6", "7", "8", "9"]
    assert any(line.startswith(f"{group}\t") for line in kbroker("groups", "list").lines)
    described = kbroker("groups", "describe", group).lines
    assert described == [f"{group}\tEmpty\t{kafka_topic}\t0\t10\t10\t0\t-\t-"]


def test_groups_are_reset_and_deleted(kbroker: Kbroker, kafka_topic: str, tmp_path: Path) -> None:
    group = f"reset-{kafka_topic}"
    kbroker("produce", kafka_topic, text="\n".join(map(str, range(10))))
    kbroker("consume", kafka_topic, "--group", group, "--from-beginning", "-n", "6")

    def reset(*how: str) -> list[tuple[int, int]]:
        lines = kbroker("groups", "reset-offsets", group, "--json", *how).lines
        return [(row["committed"], row["new"]) for row in map(json.loads, lines)]

    assert reset("--to-earliest") == [(6, 0)]  # a dry run
    assert reset("--to-latest") == [(6, 10)]
    assert reset("--to-offset", "99", "-t", f"{kafka_topic}:0") == [(6, 10)]
    assert reset("--to-datetime", "2001-01-01T00:00:00") == [(6, 0)]
    assert reset("--to-datetime", "2999-01-01") == [(6, 10)]
    assert reset("--shift-by", "-2", "--execute") == [(6, 4)]
    assert reset("--shift-by", "-9") == [(4, 0)]
    assert reset("--to-current") == [(4, 4)]
    assert reset("--by-duration", "PT1H") == [(4, 0)]
    assert reset("--by-duration", "PT0S") == [(4, 10)]
    exported = kbroker("groups", "reset-offsets", group, "--shift-by", "1", "--export")
    assert exported.lines == [f"{kafka_topic},0,5"]
    assert kbroker("groups", "export", group).lines == [f"{kafka_topic},0,4"]
    file = tmp_path / "offsets.csv"
    file.write_text(f"{kafka_topic},0,7\n")
    assert reset("--from-file", str(file)) == [(4, 7)]
    file.write_text(f'{group},"{kafka_topic}",0,8\nother,{kafka_topic},0,1\n\n')
    assert reset("--from-file", str(file), "--execute") == [(4, 8)]
    assert reset("--to-offset", "4", "--execute") == [(8, 4)]
    for wrong in ("x,0\n", "x,zero,1\n", "a,b,c,d,e\n"):
        file.write_text(wrong)
        bad = kbroker("groups", "reset-offsets", group, "--from-file", str(file))
        assert (bad.code, bad.err.count("\n")) == (1, 1)
        assert "line 1: [group,]topic,partition,offset expected" in bad.err
    assert kbroker("groups", "reset-offsets", group, "--by-duration", "-PT1H").code == 2
    assert kbroker("groups", "reset-offsets", group, "--by-duration", "1h").code == 2
    assert kbroker("groups", "reset-offsets", group).code == 2
    assert kbroker("groups", "reset-offsets", group, "--to-latest", "-t", "x:y").code != 0
    beyond = kbroker("groups", "reset-offsets", group, "--to-latest", "-t", f"{kafka_topic}:3")
    assert (beyond.code, beyond.err) == (
        1,
        f"kbroker: {kafka_topic} has no partition 3, its last is 0\n",
    )
    forgotten = kbroker("groups", "delete-offsets", group, kafka_topic)
    assert (forgotten.code, forgotten.err) == (
        0,
        f"deleted the offsets of {group} for 1 topic: {kafka_topic}\n",
    )
    assert reset("--to-latest") == []
    assert reset("--to-latest", "-t", kafka_topic, "--execute") == [(None, 10)]
    deleted = kbroker("groups", "delete", group, f"no-{group}")
    assert deleted.code == 1
    assert deleted.err.splitlines() == [
        f"deleted {group}",
        f"kbroker: GROUP_ID_NOT_FOUND: group no-{group}",
    ]
    assert kbroker("groups", "delete", group).code == 1
    assert not any(line.startswith(f"{group}\t") for line in kbroker("groups", "list").lines)


def test_a_group_without_offsets(kbroker: Kbroker) -> None:
    exported = kbroker("groups", "export", "no-such-group")
    assert (exported.code, exported.out) == (0, "")
    assert exported.err == "no-such-group has no committed offsets\n"
    reset = kbroker("groups", "reset-offsets", "no-such-group", "--to-earliest", "--execute")
    assert (reset.code, reset.out) == (0, "")
    assert reset.err == "no-such-group has no committed offsets; name topics with --topic\n"


def test_a_group_that_gets_no_coordinator(
    kbroker: Kbroker,
    kafka_broker: EmbeddedBroker,
    kafka_topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a cluster with too few brokers for the internal topic. It says so, and ends long before
    the time that a rebalance may take.
    """
    monkeypatch.setattr("kbroker.cli.console.waiting.NOTE_AFTER_S", 0.1)

    def unavailable(request: Any, version: int, *_: Any) -> Any:
        failed = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return FindCoordinatorResponse(error_code=failed, error_message="")

    end = kafka_broker.intercept(ApiKey.FIND_COORDINATOR, unavailable)
    try:
        result = kbroker("consume", kafka_topic, "-g", "early", "-X", "request.timeout.ms=1000")
    finally:
        end()
    assert result.code == 1
    waiting, error = result.err.splitlines()
    assert waiting == "group early has no coordinator yet; waiting for one"
    assert error.startswith("kbroker: COORDINATOR_NOT_AVAILABLE: group early has no coordinator: ")


def test_a_group_says_which_topic_it_waits_for(kbroker: Kbroker, kafka_topic: str) -> None:
    missing = f"no-{kafka_topic}"
    group = f"waits-{kafka_topic}"
    waited = kbroker("consume", missing, "--group", group, "--timeout", "0")
    assert (waited.code, waited.err) == (0, f"topic {missing} does not exist; waiting for it\n")


def test_what_is_not_there(kbroker: Kbroker) -> None:
    for arguments in (
        ("groups", "describe", "no-such-group"),
        ("consume", "no-such-topic", "-e", "-x"),
        ("topics", "describe", "no-such-topic"),
        ("topics", "describe", "no-such-topic", "--configs"),
    ):
        result = kbroker(*arguments)
        assert result.code == 1, arguments
        assert result.err.startswith("kbroker: ")
        assert result.err.count("\n") == 1


def test_dump_log(
    kbroker: Kbroker, kafka_topic: str, kafka_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    kbroker("produce", kafka_topic, "-k", ":", text="key:value")
    folder = kafka_broker.data / f"{kafka_topic}-0"
    lines = kbroker("dump-log", str(folder), "--records").lines
    assert any(line.startswith("baseOffset: 0 lastOffset: 0 count: 1") for line in lines)
    assert any(line.endswith("key: key payload: value") for line in lines)
    metadata = kafka_broker.data / "__cluster_metadata-0"
    lines = kbroker("dump-log", str(metadata), "--decode", "metadata").lines
    assert any('{"type":"TOPIC_RECORD","version":0,"data":{"name":' in line for line in lines)
    lines = kbroker("dump-log", str(kafka_broker.data)).lines
    assert f"Dumping {kafka_broker.data / 'meta.properties'}" in lines
    assert "node.id=1" in lines
    (tmp_path / "empty").mkdir()
    empty = kbroker("dump-log", str(tmp_path / "empty"))
    assert (empty.code, empty.out) == (1, "")
    assert empty.err.startswith(f"kbroker: {tmp_path}/empty: no files of a log; name ")
    missing = kbroker("dump-log", str(folder / "nothing.log"))
    assert missing.code == 1
    assert missing.err.endswith("nothing.log: no such file or directory\n")


def test_dump_log_of_offsets(
    kbroker: Kbroker, kafka_topic: str, kafka_broker: EmbeddedBroker
) -> None:
    group = f"dumped-{kafka_topic}"
    kbroker("produce", kafka_topic, text="1\n2")
    kbroker("consume", kafka_topic, "--group", group, "--from-beginning", "-n", "2")
    folders = [str(path) for path in sorted(kafka_broker.data.glob("__consumer_offsets-*"))]
    text = kbroker("dump-log", *folders, "--decode", "offsets").out
    key = f'"data":{{"group":"{group}","topic":"{kafka_topic}","partition":0}}'
    assert f'{key}}} payload: {{"version":"4","data":{{"offset":2,' in text
