"""Small declarations of our own: each has a feature of the compiled codecs."""

from __future__ import annotations

from kbroker.model import Uuid
from kbroker.protocol.codecs.schema import (
    Binary,
    Data,
    Message,
    Records,
    Struct,
    array,
    binary,
    boolean,
    float64,
    int8,
    int16,
    int32,
    int64,
    records,
    string,
    struct,
    uint16,
    uint32,
    uuid,
)


class Fixed(Data, versions="0"):
    flag: bool = boolean("0+")
    tiny: int = int8("0+")
    small: int = int16("0+")
    medium: int = int32("0+")
    large: int = int64("0+")
    port: int = uint16("0+")
    crc: int = uint32("0+")
    ratio: float = float64("0+")
    topic_id: Uuid = uuid("0+")


class Text(Data, versions="0-2", flexible="2+"):
    name: str = string("0+")
    note: str | None = string("1+", nullable="1+", default=None)
    blob: Binary = binary("0+")
    patch: Binary | None = binary("1+", nullable="1+", default=None)
    always_classic: str | None = string("0+", nullable="0+", default=None, flexible="none")


class Lists(Data, versions="0-1", flexible="1+"):
    class Item(Struct):
        key: int = int16("0+")
        names: list[str] = array("string", "0+")

    numbers: list[int] = array("int32", "0+")
    ids: list[Uuid] = array("uuid", "0+")
    items: list[Lists.Item] | None = array("Item", "0+", nullable="0+")


class Changing(Data, versions="0-2"):
    """Fields that are added and removed."""

    class Pair(Struct):
        left: int = int32("0+", default=-1)
        right: int = int32("0+", default=-1)

    old: int = int32("0-1", default=7)
    new: int = int32("2+", default=-1)
    hint: str = string("2+", ignorable=True)
    tags: list[str] | None = array("string", "2+", nullable="2+", default=None)
    pair: Changing.Pair = struct("Pair", "2+")
    flag: bool = boolean("2+")


class Mostly(Data, versions="0-2", flexible="2+"):
    """A list whose elements are empty but for what has a fixed width, mostly."""

    class Item(Struct):
        number: int = int32("0+")
        errors: list[int] = array("int32", "0+")
        note: str | None = string("0+", nullable="0+", default=None)
        topic_id: Uuid = uuid("1", default=bytes(16))
        late: int = int16("2+", default=-1)
        hint: int = int16("2+", default=-1, ignorable=True)
        leader: int = int32("2+", default=-1, tag=0, tagged="2+")

    items: list[Mostly.Item] = array("Item", "0+")


class Tagged(Data, versions="0-2", flexible="1+"):
    class Leader(Struct):
        id: int = int32("0+", default=-1)
        epoch: int = int32("0+", default=-1)
        host: str | None = string("1+", nullable="1+", tag=3, tagged="1+", default=None)

    plain: int = int32("0+")
    moved: str | None = string(
        "0+", nullable="1+", tag=2, tagged="1+", default=None, ignorable=True
    )
    leader: Tagged.Leader = struct("Leader", "1+", tag=0, tagged="1+", ignorable=True)
    maybe: Tagged.Leader | None = struct(
        "Leader", "1+", nullable="1+", tag=200, tagged="1+", default=None, ignorable=True
    )
    numbers: list[int] = array("int32", "1+", tag=1, tagged="1+", ignorable=True)


class Nullable(Data, versions="0-1", flexible="1+"):
    class Cursor(Struct):
        topic: str = string("0+")
        partition: int = int32("0+")

    cursor: Nullable.Cursor | None = struct("Cursor", "0+", nullable="0+", default=None)
    after: int = int8("0+")


class Batches(Data, versions="0-1", flexible="1+"):
    class Partition(Struct):
        index: int = int32("0+")
        records: Records | None = records("0+", nullable="0+")

    partitions: list[Batches.Partition] = array("Partition", "0+")
    tail: int = int32("0+")


class Rows(Data, versions="0-1", flexible="1+"):
    """Structs of one width, which are read in one pass until one has tagged fields."""

    class Row(Struct):
        key: int = int16("0+")
        gone: int = int32("9+", default=-1)
        extra: int = int8("1+", tag=0, tagged="1+", ignorable=True)
        value: int = int32("0+")

    rows: list[Rows.Row] = array("Row", "0+")
    tail: int = int32("0+")


class Loose(Data, versions="0"):
    """Records that may not be null."""

    records: Records | None = records("0+")


ALL: list[type[Message]] = [Fixed, Text, Lists, Changing, Tagged, Nullable, Batches, Rows, Loose]
