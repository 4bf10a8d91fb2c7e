"""The compiled codecs on small declarations of our own: each feature by hand, and hostile bytes.

Kafka's declarations are held against Kafka's bytes in test_wire_samples.
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from kbroker.protocol.codecs.codec import decode, decoder_of, encode, encode_parts
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import BufferUnderflow, ErrorCode, KafkaError, MalformedRequest
from tests.protocol.declarations import (
    Batches,
    Changing,
    Fixed,
    Lists,
    Loose,
    Mostly,
    Nullable,
    Rows,
    Tagged,
    Text,
)


class Payload:
    """Stands for a range of a log file."""

    def __init__(self, size: int) -> None:
        self.size = size


def check(message: Message, version: int, raw: str) -> None:
    wanted = bytes.fromhex(raw)
    assert encode(message, version).hex() == wanted.hex()
    assert decode(type(message), wanted, version) == (message, len(wanted))


def test_fixed_widths() -> None:
    message = Fixed(
        flag=True,
        tiny=-1,
        small=-2,
        medium=-3,
        large=-4,
        port=0xFFFE,
        crc=0xFFFF_FFFE,
        ratio=1.5,
        topic_id=bytes(range(16)),
    )
    check(
        message,
        0,
        "01 ff fffe fffffffd fffffffffffffffc fffe fffffffe 3ff8000000000000"
        "000102030405060708090a0b0c0d0e0f",
    )


def test_any_byte_but_zero_is_true() -> None:
    assert decode(Fixed, b"\x02" + bytes(45), 0)[0].flag is True


@pytest.mark.parametrize(
    ("version", "raw"),
    [
        pytest.param(0, "0002c3a9 00000001ff 000178", id="classic"),
        pytest.param(1, "0002c3a9 ffff 00000001ff ffffffff 000178", id="classic, nulls"),
        pytest.param(2, "03c3a9 00 02ff 00 000178 00", id="compact"),
    ],
)
def test_strings_and_bytes(version: int, raw: str) -> None:
    check(Text(name="é", blob=b"\xff", always_classic="x"), version, raw)


@pytest.mark.parametrize("size", [126, 127, 128, 16382, 16383, 32767])
def test_compact_lengths_of_one_two_and_three_bytes(size: int) -> None:
    message = Text(name="a" * size, blob=bytes(size), note="b" * size, patch=bytes(size))
    raw = encode(message, 2)
    assert decode(Text, raw, 2) == (message, len(raw))


def test_bytes_are_views_on_the_buffer() -> None:
    buffer = bytearray(encode(Text(blob=b"abc"), 0))
    blob = decode(Text, buffer, 0)[0].blob
    assert isinstance(blob, memoryview)
    assert blob.obj is buffer
    assert decoder_of(Text, 0)(bytes(buffer), 0)[0].blob == b"abc"
    with pytest.raises(BufferUnderflow):
        decoder_of(Text, 0)(bytes(buffer)[:-1], 0)


@pytest.mark.parametrize(
    ("version", "raw"),
    [
        pytest.param(
            0,
            "00000002 00000001 ffffffff 00000001 000102030405060708090a0b0c0d0e0f"
            "00000001 0005 00000002 00016100026262",
            id="classic",
        ),
        pytest.param(
            1,
            "03 00000001 ffffffff 02 000102030405060708090a0b0c0d0e0f 02 0005 03 0261036262 00 00",
            id="compact",
        ),
    ],
)
def test_arrays(version: int, raw: str) -> None:
    item = Lists.Item(key=5, names=["a", "bb"])
    check(Lists(numbers=[1, -1], ids=[bytes(range(16))], items=[item]), version, raw)


@pytest.mark.parametrize(
    ("version", "raw"),
    [pytest.param(0, "00000000 00000000 ffffffff", id="0"), pytest.param(1, "01010000", id="1")],
)
def test_empty_and_null_arrays(version: int, raw: str) -> None:
    check(Lists(items=None), version, raw)


@pytest.mark.parametrize("extras", [[0, 0, 0], [5, 0, 0], [0, 5, 0], [0, 0, 5], [0, 5, 6]])
def test_structs_of_one_width_with_and_without_tags(extras: list[int]) -> None:
    rows = [Rows.Row(key=i, value=-i, extra=extra) for i, extra in enumerate(extras)]
    message = Rows(rows=rows, tail=9)
    raw = encode(message, 1)
    assert len(raw) == 1 + 3 * 7 + 4 + 1 + 3 * sum(map(bool, extras))
    assert decode(Rows, raw, 1) == (message, len(raw))


def test_unknown_tags_among_structs_of_one_width() -> None:
    raw = "04" + "0001 00000001 00" + "0002 00000002 01 05 02 aabb" + "0003 00000003 00"
    rows = [Rows.Row(key=i, value=i) for i in (1, 2, 3)]
    wanted = Rows(rows=rows, tail=9)
    assert decode(Rows, bytes.fromhex(raw + "00000009 00"), 1)[0] == wanted
    check(wanted, 0, "00000003" + "0001 00000001" + "0002 00000002" + "0003 00000003" + "00000009")


def test_absent_fields_get_their_default() -> None:
    assert decode(Changing, bytes.fromhex("00000009"), 1)[0] == Changing(old=9)
    assert Changing().new == -1


@pytest.mark.parametrize(
    ("message", "version", "field"),
    [
        pytest.param(Changing(new=0), 1, "new", id="int"),
        pytest.param(Changing(old=8), 2, "old", id="gone"),
        pytest.param(Changing(tags=[]), 1, "tags", id="empty is not null"),
        pytest.param(Changing(pair=Changing.Pair(right=0)), 0, "pair", id="struct"),
        pytest.param(Changing(flag=True), 0, "flag", id="bool"),
    ],
)
def test_a_set_field_the_version_lacks(message: Message, version: int, field: str) -> None:
    with pytest.raises(KafkaError, match=rf"Changing\.{field} is set") as caught:
        encode(message, version)
    assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    ("version", "plain", "full"),
    [
        (0, "00000007 00000000 ffff", "00000007 00000001 00000009 0001 78"),
        (
            1,
            f"00000007 00000000 ffff {'00' * 16}",
            f"00000007 00000001 00000009 0001 78 {'ab' * 16}",
        ),
        (
            2,
            "00000007 01 00 ffff ffff 00",
            "00000007 02 00000009 02 78 0004 0005 01 00 04 00000006",
        ),
    ],
)
def test_elements_that_are_empty_but_for_numbers(version: int, plain: str, full: str) -> None:
    item = Mostly.Item(number=7, errors=[9], note="x")
    if version == 1:
        item.topic_id = b"\xab" * 16
    if version == 2:
        item.late, item.hint, item.leader = 4, 5, 6
    count = "04" if version == 2 else "00000003"
    end = "00" if version == 2 else ""
    message = Mostly(items=[Mostly.Item(number=7), item, Mostly.Item(number=7)])
    wire = bytes.fromhex(count + plain + full + plain + end)
    assert encode(message, version) == wire
    assert decode(Mostly, wire, version) == (message, len(wire))


@pytest.mark.parametrize("change", [{"errors": [1]}, {"note": ""}, {"leader": 3}])
def test_one_field_that_is_not_empty(change: dict[str, Any]) -> None:
    message = Mostly(items=[Mostly.Item(number=1, **change)])
    assert decode(Mostly, encode(message, 2), 2)[0] == message


def test_what_an_element_may_not_hold() -> None:
    for version, item, error in (
        (0, Mostly.Item(late=3), "late is set"),
        (1, Mostly.Item(topic_id=b"short"), "not a uuid"),
        (2, Mostly.Item(errors=None), "errors is None"),  # type: ignore[arg-type]  # on purpose
        (2, Mostly.Item(number=None), "cannot be written"),  # type: ignore[arg-type]  # on purpose
    ):
        with pytest.raises((KafkaError, ValueError), match=error):
            encode(Mostly(items=[item]), version)
    hinted = Mostly(items=[Mostly.Item(hint=1)])
    assert encode(hinted, 0) == encode(Mostly(items=[Mostly.Item()]), 0)


def test_ignorable_fields_are_dropped() -> None:
    assert encode(Changing(hint="x"), 0).hex() == "00000007"


@pytest.mark.parametrize("version", [-1, 3, 32767])
def test_versions_that_do_not_exist(version: int) -> None:
    for function in (lambda: encode(Changing(), version), lambda: decode(Changing, b"", version)):
        with pytest.raises(KafkaError) as caught:
            function()
        assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION


def leader(id: int, host: str | None = None) -> Tagged.Leader:
    return Tagged.Leader(id=id, epoch=2, host=host)


@pytest.mark.parametrize(
    ("message", "raw"),
    [
        pytest.param(Tagged(plain=1), "00000001 00", id="none taken"),
        pytest.param(Tagged(plain=1, moved="ab"), "00000001 01 02 03 036162", id="string"),
        pytest.param(
            Tagged(plain=1, leader=leader(1), numbers=[7], moved=""),
            "00000001 03  00 09 00000001 00000002 00  01 05 02 00000007  02 01 01",
            id="in the order of tags",
        ),
        pytest.param(
            Tagged(leader=leader(-1, host="h")),
            "00000000 01  00 0d ffffffff 00000002 01 03 02 0268",
            id="tag inside a tag",
        ),
        pytest.param(
            Tagged(maybe=leader(1)),
            "00000000 01  c801 0a 01 00000001 00000002 00",
            id="nullable struct: one, then its fields",
        ),
    ],
)
def test_tagged_fields(message: Tagged, raw: str) -> None:
    check(message, 1, raw)


@pytest.mark.parametrize(
    ("tags", "wanted"),
    [
        pytest.param("01 c801 01 00", Tagged(), id="null struct"),
        pytest.param("01 05 03 aabbcc", Tagged(), id="unknown tag"),
        pytest.param("02 05 00 02 02 0261", Tagged(moved="a"), id="unknown, then known"),
        pytest.param("02 02 02 0261 02 02 0262", Tagged(moved="b"), id="twice: the last counts"),
        pytest.param(
            "02 02 02 0261 01 05 02 00000007", Tagged(moved="a", numbers=[7]), id="descending"
        ),
        pytest.param("8100 02 02 0261", Tagged(moved="a"), id="padded count"),
    ],
)
def test_tagged_fields_kafka_would_take(tags: str, wanted: Tagged) -> None:
    raw = bytes.fromhex("00000000" + tags)
    assert decode(Tagged, raw, 1) == (wanted, len(raw))


@pytest.mark.parametrize(
    "tags",
    [
        pytest.param("01 02 03 0261 00", id="size too large"),
        pytest.param("01 02 01 0261", id="size too small"),
        pytest.param("01 05 05 aabb", id="unknown tag beyond the bytes"),
        pytest.param("01 02 ffffffff0f 0261", id="huge size"),
        pytest.param("ffffffff0f 02 02 0261", id="huge count"),
        pytest.param("01 ffffffff1f 00", id="tag of more than 32 bits"),
        pytest.param("01 01 01 00", id="null where no null may be"),
        pytest.param("01", id="no tag"),
    ],
)
def test_malformed_tagged_fields(tags: str) -> None:
    with pytest.raises(MalformedRequest):
        decode(Tagged, bytes.fromhex("00000000" + tags), 1)


def test_a_field_that_became_tagged_stays_in_its_place_before() -> None:
    check(Tagged(plain=1, moved="ab"), 0, "00000001 00026162")
    with pytest.raises(ValueError, match="moved is None"):
        encode(Tagged(), 0)


@pytest.mark.parametrize(
    ("version", "raw"),
    [
        pytest.param(0, "01 000174 00000003 09", id="classic"),
        pytest.param(1, "01 0274 00000003 00 09 00", id="flexible"),
    ],
)
def test_nullable_structs(version: int, raw: str) -> None:
    check(Nullable(cursor=Nullable.Cursor(topic="t", partition=3), after=9), version, raw)
    check(Nullable(after=9), version, "ff09" + "00" * version)


def test_records_come_out_as_views() -> None:
    partition = Batches.Partition(index=1, records=b"batch")
    raw = encode(Batches(partitions=[partition], tail=9), 1)
    assert raw.hex() == "02 00000001 06 6261746368 00 00000009 00".replace(" ", "")
    found = decode(Batches, raw, 1)[0].partitions[0].records
    assert isinstance(found, memoryview)
    assert found.obj is raw


@pytest.mark.parametrize("version", [0, 1])
def test_records_by_reference(version: int) -> None:
    big, payload = bytes(5000), Payload(70000)
    partitions = [
        Batches.Partition(index=1, records=payload),
        Batches.Partition(index=2, records=b"small"),
        Batches.Partition(index=3, records=None),
        Batches.Partition(index=4, records=big),
    ]
    message = Batches(partitions=partitions, tail=9)
    parts = encode_parts(message, version)
    assert len(parts) == 5
    assert parts[1] is payload
    assert parts[3] is big
    partitions[0].records = bytes(70000)
    joined = b"".join(bytes(70000) if part is payload else part for part in parts)  # type: ignore[misc]  # bytes otherwise
    assert joined == encode(message, version)


def test_encode_refuses_records_by_reference() -> None:
    with pytest.raises(ValueError, match="by reference"):
        encode(Batches(partitions=[Batches.Partition(records=Payload(1))]), 0)


@pytest.mark.parametrize(
    ("message", "version"),
    [
        pytest.param(Fixed(tiny=128), 0, id="int8 too large"),
        pytest.param(Fixed(port=-1), 0, id="negative uint16"),
        pytest.param(Fixed(medium="1"), 0, id="not an int"),  # type: ignore[arg-type]  # wrong on purpose
        pytest.param(Fixed(topic_id=bytes(15)), 0, id="short uuid"),
        pytest.param(Lists(ids=[bytes(16), bytes(17)]), 0, id="long uuid in an array"),
        pytest.param(Text(name="\ud800"), 2, id="half a surrogate pair"),
        pytest.param(Fixed(topic_id="x"), 0, id="not bytes"),  # type: ignore[arg-type]  # wrong on purpose
        pytest.param(Text(name=None), 0, id="null"),  # type: ignore[arg-type]  # wrong on purpose
        pytest.param(Text(name="x" * 32768), 0, id="long classic string"),
        pytest.param(Text(name="x" * 32768), 2, id="long compact string"),
        pytest.param(Lists(numbers=[2**31]), 1, id="array element"),
        pytest.param(Lists(ids=None), 1, id="null array"),  # type: ignore[arg-type]  # wrong on purpose
        pytest.param(Tagged(leader=None), 1, id="null struct"),  # type: ignore[arg-type]  # wrong on purpose
        pytest.param(Loose(), 0, id="null records"),
    ],
)
def test_values_that_do_not_fit(message: Message, version: int) -> None:
    with pytest.raises(ValueError):
        encode(message, version)


HOSTILE: list[Any] = [
    pytest.param(Text, 0, "7fff61", id="string beyond the bytes"),
    pytest.param(Text, 0, "ffff", id="null string"),
    pytest.param(Text, 1, "0000 fffe", id="length -2 where null may be"),
    pytest.param(Text, 0, "0000 7fffffff", id="2 GiB of bytes"),
    pytest.param(Text, 0, "0000 80000000", id="smallest length of bytes"),
    pytest.param(Text, 0, "0000 ffffffff", id="null bytes"),
    pytest.param(Text, 1, "0000 ffff 00000000 fffffffe", id="bytes of length -2"),
    pytest.param(Text, 2, "00", id="null compact string"),
    pytest.param(Text, 2, "ffffffff0f", id="compact string of 4 GiB"),
    pytest.param(Text, 2, "ffffffff7f", id="varint of more than 32 bits"),
    pytest.param(Text, 2, "818002" + "61" * 32768, id="compact string over 32767 bytes"),
    pytest.param(Text, 2, "01 00 ffffffff07", id="compact bytes of 2 GiB"),
    pytest.param(Text, 0, "0001ff 00000000 ffff", id="not UTF-8"),
    pytest.param(Text, 2, "03c0af 00 01 00 ffff 00", id="overlong UTF-8"),
    pytest.param(Lists, 0, "7fffffff", id="2 Gi numbers"),
    pytest.param(Lists, 0, "80000000", id="-2 Gi numbers"),
    pytest.param(Lists, 0, "fffffffe", id="-2 numbers"),
    pytest.param(Lists, 0, "00000002 00000001", id="one number short"),
    pytest.param(Lists, 0, "00000000 10000000", id="256 Mi uuids"),
    pytest.param(Lists, 0, "00000000 00000000 7fffffff", id="2 Gi structs"),
    pytest.param(Lists, 0, "00000000 00000000 fffffffe", id="-2 structs, nullable"),
    pytest.param(Lists, 1, "ffffffff0f", id="4 Gi numbers"),
    pytest.param(Lists, 1, "0101 ffffffff0f", id="4 Gi structs"),
    pytest.param(Lists, 1, "0101 02 0005 ffffffff0f", id="4 Gi strings in a struct"),
    pytest.param(Lists, 1, "0101 02 0005 02 00", id="null string in an array"),
    pytest.param(Batches, 0, "00000001 00000000 fffffffe", id="records of length -2"),
    pytest.param(Batches, 0, "00000001 00000000 7fffffff", id="2 GiB of records"),
    pytest.param(Loose, 0, "ffffffff", id="null records"),
    pytest.param(Nullable, 0, "01 0001", id="struct cut short"),
    pytest.param(Rows, 0, "00000002 0001 00000001 0002 0000", id="second row cut short"),
    pytest.param(Rows, 1, "03 0001 00000001 00 0002 00000002 7f", id="tags of the second row"),
    pytest.param(Rows, 1, "ffffffff0f 0001 00000001 00", id="4 Gi rows"),
]


@pytest.mark.parametrize(("message", "version", "raw"), HOSTILE)
def test_hostile_bytes(message: type[Message], version: int, raw: str) -> None:
    with pytest.raises(MalformedRequest):
        decode(message, bytes.fromhex(raw), version)


def test_nothing_is_allocated_from_a_count_alone() -> None:
    raw = bytes.fromhex("7fffffff") + bytes(1000)
    with pytest.raises(BufferUnderflow):
        decode(Lists, raw, 0)  # compiles
    tracemalloc.start()
    for hostile in (raw, bytes(8) + raw, bytes(4) + raw):
        with pytest.raises(BufferUnderflow):
            decode(Lists, hostile, 0)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 50_000


def test_positions_beyond_the_buffer() -> None:
    for version in (0, 1):
        with pytest.raises(BufferUnderflow):
            decode(Lists, b"abc", version, 3)
        with pytest.raises(BufferUnderflow):
            decode(Lists, b"abc", version, 30)
