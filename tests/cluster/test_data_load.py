"""What producers of the load send."""

from __future__ import annotations

from tests.cluster.data_load import Values, data_of, drawn_partitions
from tests.cluster.history_lines import value_of


def test_values_count_per_partition_and_epoch() -> None:
    values = Values("p")
    values.begin_epoch()
    first, second, other = values.next("t", 0), values.next("t", 0), values.next("t", 1)
    values.begin_epoch()
    assert [str(each) for each in (first, second, other, values.next("t", 0))] == [
        "p:0:t:0:0",
        "p:0:t:0:1",
        "p:0:t:1:0",
        "p:1:t:0:0",
    ]


def test_the_value_is_read_from_a_record() -> None:
    values = Values("p")
    values.begin_epoch()
    for _ in range(20):
        value = values.next("t", 0)
        assert value_of(data_of(value)) == str(value)
    assert len({len(data_of(values.next("t", 0))) for _ in range(20)}) > 10


def test_transactions_write_to_distinct_partitions() -> None:
    drawn = [drawn_partitions() for _ in range(200)]
    assert all(len(set(each)) == len(each) for each in drawn)
    assert {len(each) for each in drawn} == {1, 2, 3}
