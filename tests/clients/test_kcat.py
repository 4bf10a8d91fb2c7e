"""kcat, the command line that most people try first."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable

import pytest

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(
        shutil.which("kcat") is None, reason="kcat is not installed (Debian: apt-get install kcat)"
    ),
]


def kcat(bootstrap: str, *arguments: str, stdin: bytes = b"") -> bytes:
    run = subprocess.run(
        ["kcat", "-b", bootstrap, *arguments], input=stdin, capture_output=True, timeout=60
    )
    assert run.returncode == 0, run.stderr.decode()
    return run.stdout


def test_metadata_names_the_broker_and_the_topic(
    bootstrap: str, new_name: Callable[[str], str]
) -> None:
    topic = new_name("kcat-list")
    kcat(bootstrap, "-P", "-t", topic, stdin=b"one\n")
    listing = json.loads(kcat(bootstrap, "-L", "-J"))
    assert [broker["name"] for broker in listing["brokers"]] == [bootstrap]
    assert listing["controllerid"] == listing["brokers"][0]["id"]
    topics = {entry["topic"]: entry["partitions"] for entry in listing["topics"]}
    assert [partition["leader"] for partition in topics[topic]] == [listing["brokers"][0]["id"]]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_produce_and_consume(bootstrap: str, new_name: Callable[[str], str], codec: str) -> None:
    topic = new_name(f"kcat-{codec}")
    lines = b"".join(b"key%d:value %d\n" % (number, number) for number in range(200))
    kcat(
        bootstrap,
        "-P",
        "-t",
        topic,
        "-K:",
        "-z",
        codec,
        "-H",
        "origin=kcat",
        "-p",
        "0",
        stdin=lines,
    )
    got = kcat(bootstrap, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%o %k:%s %h\n")
    assert got.splitlines() == [b"%d key%d:value %d origin=kcat" % (n, n, n) for n in range(200)]


def test_null_value_and_tail(bootstrap: str, new_name: Callable[[str], str]) -> None:
    topic = new_name("kcat-null")
    kcat(bootstrap, "-P", "-t", topic, "-K:", "-Z", "-p", "0", stdin=b"a:\nb:2\nc:\n")
    got = kcat(bootstrap, "-C", "-t", topic, "-o", "-2", "-e", "-q", "-f", "%k %S\n")
    assert got.splitlines() == [b"b 1", b"c -1"]


def test_balanced_consumer_group(bootstrap: str, new_name: Callable[[str], str]) -> None:
    topic, group = new_name("kcat-group"), new_name("kcat-g")
    kcat(bootstrap, "-P", "-t", topic, stdin=b"".join(b"%d\n" % number for number in range(50)))
    got = kcat(bootstrap, "-G", group, "-X", "auto.offset.reset=earliest", "-e", "-q", topic)
    assert sorted(map(int, got.split())) == list(range(50))
