"""Runs of neighbours: no merged file's range has another file in it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.archive.layout import FileRange
from spark_jobs.compact.plan import ArchiveFile, merged_range, runs


def file(
    first: int,
    last: int,
    size_bytes: int = 10,
    *,
    partition: int = 0,
    generation: int = 1,
    is_fixed: bool = False,
    columns: str = "",
) -> ArchiveFile:
    content = FileRange("t", partition, first, last, generation)
    name = f"topic=t/p{partition}-{first}.g{generation}"
    return ArchiveFile(name, content, size_bytes, is_fixed, columns)


def firsts(files: list[ArchiveFile], target: int = 1000, least: int = 2) -> list[list[int]]:
    return [[f.content.first_offset for f in run] for run in runs(files, target, least)]


def test_neighbours_become_one_in_the_order_of_their_offsets() -> None:
    files = [file(20, 29), file(0, 9), file(10, 19)]
    (run,) = runs(files, 1000, 2)
    assert merged_range(run) == FileRange("t", 0, 0, 29)


def test_partitions_and_generations_stay_apart() -> None:
    files = [
        *(file(n, n, partition=1) for n in (0, 1)),
        *(file(n, n) for n in (5, 6)),
        *(file(n, n, generation=2) for n in (5, 6, 7)),
    ]
    assert firsts(files) == [[5, 6], [5, 6, 7], [0, 1]]


def test_the_target_size_and_the_fewest_files() -> None:
    files = [file(n, n, 40) for n in range(7)]
    assert firsts(files, 100) == [[0, 1], [2, 3], [4, 5]]
    assert firsts(files, 100, 3) == []
    assert firsts([file(0, 0, 500), *files[1:3]], 100) == [[1, 2]]


def test_what_stays_ends_a_run() -> None:
    files = [file(n, n, is_fixed=n == 2) for n in range(5)]
    assert firsts(files) == [[0, 1], [3, 4]]


def test_files_of_other_columns_stay_apart() -> None:
    files = [file(n, n, columns="a" if n < 2 else "a, b") for n in range(5)]
    assert firsts(files) == [[0, 1], [2, 3, 4]]
    assert firsts(files, least=3) == [[2, 3, 4]]


@given(
    st.lists(st.tuples(st.integers(1, 50), st.booleans()), max_size=30),
    st.integers(1, 200),
    st.integers(2, 4),
)
def test_runs_are_whole_bounded_and_apart(
    sizes: list[tuple[int, bool]], target: int, least: int
) -> None:
    files = [file(n, n, size, is_fixed=fixed) for n, (size, fixed) in enumerate(sizes)]
    found = firsts(files, target, least)
    for offsets in found:
        assert offsets == list(range(offsets[0], offsets[-1] + 1)) and len(offsets) >= least
        assert sum(files[offset].size_bytes for offset in offsets) <= target
        assert not any(files[offset].is_fixed for offset in offsets)
    merged = [offset for offsets in found for offset in offsets]
    assert merged == sorted(set(merged))
