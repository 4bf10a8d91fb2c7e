"""`partitioner.partition_for` as an expression of Spark's SQL, so that no row passes through Python
only to learn its partition. Spark has CRC-32, but no murmur2 of Kafka's.

It is text, which Spark parses in one call: built from Spark's functions in Python it took 0.3 s of
each batch, a call into the JVM for each of some hundred nodes. Hashes are longs of 32 bits without
sign: a product of two stays below 2^63. Columns must not have the names of the lambdas' arguments.
"""

from __future__ import annotations

from typing import Final

from kbroker.client.producer import murmur2

_SEED: Final = 0x9747B28C
_FACTOR: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_SIGN: Final = 0x7FFFFFFF


def partition_expression(key: str | None, value: str, partition_count: str) -> str:
    """The partition of each row, as `partition_for` gives it. All are expressions; key and value
    are binary.
    """
    chosen = f"coalesce(crc32({value}), {murmur2(b'') & _SIGN}L)"
    if key is not None:
        chosen = f"if({key} is not null, ({_murmur2(key)}) & {_SIGN}L, {chosen})"
    return f"cast(pmod({chosen}, {partition_count}) as int)"


def _murmur2(key: str) -> str:
    """MurmurHash2 with Java's seed, unsigned. See `kbroker.client.producer.murmur2`."""
    words = f"shiftright(length({key}), 2)"
    word = _little_endian(f"hex(substr({key}, index * 4 + 1, 4))")
    indexes = f"if({words} > 0, sequence(0, {words} - 1), cast(array() as array<int>))"
    hashed = (
        f"aggregate(transform({indexes}, index -> {_times(word)}), "
        f"{_SEED}L ^ cast(length({key}) as bigint), "
        f"(hash, each) -> {_times('hash')} ^ {_times('each ^ shiftright(each, 24)')})"
    )
    rest = f"substr({key}, {words} * 4 + 1, 4)"
    last = _little_endian(f"rpad(hex({rest}), 8, '0')")
    hashed = _bound(hashed, f"if(length({rest}) = 0, bound, {_times(f'bound ^ {last}')})")
    hashed = _bound(hashed, _times("bound ^ shiftright(bound, 13)"))
    return _bound(hashed, "bound ^ shiftright(bound, 15)")


def _times(number: str) -> str:
    return f"((({number}) * {_FACTOR}L) & {_MASK}L)"


def _little_endian(digits: str) -> str:
    """The number of four bytes, which are given in hexadecimal digits."""
    number = f"cast(conv({digits}, 16, 10) as bigint)"
    return _bound(
        number,
        "shiftleft(bound & 255L, 24) | shiftleft(bound & 65280L, 8) "
        "| (shiftright(bound, 8) & 65280L) | shiftright(bound, 24)",
    )


def _bound(value: str, use: str) -> str:
    """`use`, in which `bound` is a value that is computed once, however often `use` has it."""
    return f"get(transform(array({value}), bound -> {use}), 0)"
