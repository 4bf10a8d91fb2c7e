"""What every Python client must be able to do: the same suite for librdkafka, kafka-python and
aiokafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.clients.adapters import ADAPTERS, Adapter, PolledMember, Received, Sent, wait_until

pytestmark = [
    pytest.mark.clients,
    # What the clients themselves warn of is not ours to mend.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BASE_MS = 1_700_000_000_000


@pytest.fixture(params=list(ADAPTERS))
def client(request: pytest.FixtureRequest, bootstrap: str) -> Iterator[Adapter]:
    adapter = ADAPTERS[request.param](bootstrap)
    yield adapter
    close = getattr(adapter, "close", None)
    if close is not None:
        close()


def odd_records(count: int) -> list[Sent]:
    """Null and empty keys and values, headers (none, doubled, empty), unicode, sizes from 0 to
    5,000 bytes.
    """
    records = []
    for number in range(count):
        key = (None, b"", b"key-%d" % number)[number % 3]
        # Two of the clients refuse a record with neither key nor value.
        value = (
            None if key is not None else b"v",
            b"",
            f"värde-{number}".encode(),
            b"x" * (number * 50 % 5000),
        )[number % 4]
        headers: tuple[tuple[str, bytes], ...] = (
            (),
            (("a", b"1"), ("a", b"2")),
            (("empty", b""),),
        )[number % 3]
        records.append(Sent(key, value, headers, BASE_MS + number))
    return records


def as_sent(record: Received) -> Sent:
    return Sent(record.key, record.value, record.headers, record.timestamp_ms, record.partition)


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("codec", CODECS)
def test_what_is_produced_is_consumed(
    client: Adapter, new_name: Callable[[str], str], codec: str, idempotent: bool
) -> None:
    topic = new_name(f"codec-{codec}")
    client.create_topic(topic, 1)
    records = odd_records(60)
    delivered = client.produce(topic, records, codec=codec, idempotent=idempotent)
    assert delivered == [(0, offset) for offset in range(60)]
    received = client.read(topic, 0, 60)
    assert [record.offset for record in received] == list(range(60))
    assert [as_sent(record) for record in received] == records


def test_seek_by_time(client: Adapter, new_name: Callable[[str], str]) -> None:
    topic = new_name("seek")
    client.create_topic(topic, 1)
    records = [Sent(None, b"%d" % number, (), BASE_MS + number * 1000) for number in range(50)]
    client.produce(topic, records[:30], codec="gzip", idempotent=False)
    client.produce(topic, records[30:], codec="none", idempotent=False)
    for wanted_ms, offset in [
        (0, 0),
        (BASE_MS, 0),
        (BASE_MS + 1, 1),
        (BASE_MS + 29_500, 30),
        (BASE_MS + 49_000, 49),
    ]:
        found = client.first_at(topic, 0, wanted_ms)
        assert found is not None
        assert (found.offset, found.value) == (offset, b"%d" % offset)
    assert client.first_at(topic, 0, BASE_MS + 49_001) is None


def test_resume_from_commit(client: Adapter, new_name: Callable[[str], str]) -> None:
    topic, group = new_name("resume"), new_name("resume-group")
    client.create_topic(topic, 1)
    client.produce(
        topic, [Sent(None, b"%d" % number) for number in range(20)], codec="none", idempotent=True
    )
    first = client.join(group, topic)
    seen: list[Received] = []
    wait_until(lambda: seen.extend(first.poll(0.5)) or len(seen) == 20, 30, "20 records")
    first.commit()
    first.close()
    client.produce(
        topic,
        [Sent(None, b"%d" % number) for number in range(20, 25)],
        codec="lz4",
        idempotent=True,
    )
    second = client.join(group, topic)
    again: list[Received] = []
    try:
        wait_until(
            lambda: again.extend(second.poll(0.5)) or len(again) >= 5,
            30,
            "5 records after the commit",
        )
        again += second.poll(0.5)
    finally:
        second.close()
    assert [record.offset for record in again] == [20, 21, 22, 23, 24]


def test_three_members_share_a_topic_and_one_leaves(
    client: Adapter, new_name: Callable[[str], str]
) -> None:
    topic, group = new_name("shared"), new_name("shared-group")
    client.create_topic(topic, 6)
    client.produce(
        topic,
        [Sent(b"k", b"%d" % n, (), None, n % 6) for n in range(120)],
        codec="none",
        idempotent=False,
    )
    members = [PolledMember(client.join(group, topic)) for _ in range(3)]
    left: list[PolledMember] = []

    def settled() -> bool:
        parts = [member.owned for member in members]
        return all(parts) and sum(map(len, parts)) == 6 and set().union(*parts) == set(range(6))

    def seen(value: bytes | None = None) -> set[tuple[int, int]]:
        records = [record for member in members + left for record in list(member.seen)]
        return {(r.partition, r.offset) for r in records if value is None or r.value == value}

    try:
        wait_until(settled, 60, "three members own two partitions each")
        assert sorted(len(member.owned) for member in members) == [2, 2, 2]
        wait_until(lambda: len(seen()) == 120, 30, "all records")
        left.append(members.pop())
        left[0].stop()
        wait_until(settled, 60, "two members own all after one left")
        client.produce(
            topic,
            [Sent(None, b"after", (), None, n) for n in range(6)],
            codec="none",
            idempotent=False,
        )
        wait_until(lambda: len(seen(b"after")) == 6, 30, "records after the rebalance")
    finally:
        for member in members:
            member.stop()
    assert seen(b"after") == {(partition, 20) for partition in range(6)}


def test_a_partition_keeps_its_order_over_many_batches(
    client: Adapter, new_name: Callable[[str], str]
) -> None:
    topic = new_name("order")
    client.create_topic(topic, 2)
    for start in range(0, 1000, 250):
        batch = [Sent(None, b"%d" % n, (), None, n % 2) for n in range(start, start + 250)]
        client.produce(topic, batch, codec="snappy", idempotent=True)
    for partition in range(2):
        received = client.read(topic, partition, 500)
        assert [int(record.value or b"-1") for record in received] == list(
            range(partition, 1000, 2)
        )
