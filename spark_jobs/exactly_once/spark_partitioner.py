"""`partitioner.partition_for` in Spark's expressions, so that no row passes through Python only to
learn its partition. Spark has CRC-32, but no murmur2 of Kafka's.

Hashes are longs of 32 bits without sign: a product of two stays below 2^63.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kbroker.client.producer import murmur2

if TYPE_CHECKING:
    from pyspark.sql import Column

_SEED: Final = 0x9747B28C
_FACTOR: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_SIGN: Final = 0x7FFFFFFF


def partition_column(key: Column | None, value: Column, partition_count: Column) -> Column:
    """The partition of each row, as `partition_for` gives it. key, value: binary."""
    from pyspark.sql import functions as F

    chosen = F.coalesce(F.crc32(value), F.lit(murmur2(b"") & _SIGN).cast("long"))
    if key is not None:
        chosen = F.when(key.isNotNull(), murmur2_column(key).bitwiseAND(F.lit(_SIGN))).otherwise(
            chosen
        )
    return F.pmod(chosen, partition_count).cast("int")


def murmur2_column(key: Column) -> Column:
    """MurmurHash2 with Java's seed, unsigned. See `kbroker.client.producer.murmur2`."""
    from pyspark.sql import functions as F

    words = F.shiftright(F.length(key), 2)
    rest = F.substr(key, words * 4 + 1, F.lit(4))

    def word(index: Column) -> Column:
        return _little_endian(F.hex(F.substr(key, index * 4 + 1, F.lit(4))))

    def mixed(hashed: Column, each: Column) -> Column:
        return _times(hashed).bitwiseXOR(_times(each.bitwiseXOR(F.shiftright(each, 24))))

    def with_rest(hashed: Column) -> Column:
        last = _little_endian(F.rpad(F.hex(rest), 8, "0"))
        return F.when(F.length(rest) == 0, hashed).otherwise(_times(hashed.bitwiseXOR(last)))

    indexes = F.when(words > 0, F.sequence(F.lit(0), words - 1))
    indexes = F.coalesce(indexes, F.array().cast("array<int>"))
    seed = F.lit(_SEED).bitwiseXOR(F.length(key).cast("long"))
    each_word = F.transform(indexes, lambda index: _times(word(index)))
    hashed = _bound(F.aggregate(each_word, seed, mixed), with_rest)
    hashed = _bound(hashed, lambda one: _times(one.bitwiseXOR(F.shiftright(one, 13))))
    return _bound(hashed, lambda one: one.bitwiseXOR(F.shiftright(one, 15)))


def _times(number: Column) -> Column:
    from pyspark.sql import functions as F

    return (number * F.lit(_FACTOR)).bitwiseAND(F.lit(_MASK))


def _little_endian(digits: Column) -> Column:
    """The number of four bytes, which are given in hexadecimal digits."""
    from pyspark.sql import functions as F

    def swapped(number: Column) -> Column:
        second, third = F.lit(0xFF00), F.lit(0xFF)
        return (
            F.shiftleft(number.bitwiseAND(third), 24)
            .bitwiseOR(F.shiftleft(number.bitwiseAND(second), 8))
            .bitwiseOR(F.shiftright(number, 8).bitwiseAND(second))
            .bitwiseOR(F.shiftright(number, 24))
        )

    return _bound(F.conv(digits, 16, 10).cast("long"), swapped)


def _bound(value: Column, use: Callable[[Column], Column]) -> Column:
    """`use(value)` with a value that is computed once, however often `use` has it."""
    from pyspark.sql import functions as F

    return F.get(F.transform(F.array(value), use), F.lit(0))
