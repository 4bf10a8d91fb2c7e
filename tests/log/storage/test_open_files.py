"""How many files and how much memory of indexes the segments of a node keep."""

from __future__ import annotations

from kbroker.log.storage.open_files import LoadedIndexes, OpenFiles, default_open_file_limit


class Holder:
    def __init__(self) -> None:
        self.used = True
        self.is_open = True

    def release(self) -> None:
        self.is_open = False


def test_the_file_not_used_since_its_last_turn_is_given_back_first() -> None:
    open_files = OpenFiles(3)
    holders = [Holder() for _ in range(5)]
    for holder in holders[:3]:
        open_files.opened(holder)
    open_files.opened(
        holders[3]
    )  # all were used: the oldest is released, the others lost their mark
    assert [holder.is_open for holder in holders] == [False, True, True, True, True]
    holders[1].used = True
    open_files.opened(holders[4])
    assert [holder.is_open for holder in holders] == [False, True, False, True, True]
    open_files.forget(holders[1])
    open_files.forget(holders[1])


def test_a_single_place_goes_to_the_newest() -> None:
    open_files = OpenFiles(1)
    holders = [Holder() for _ in range(3)]
    for holder in holders:
        open_files.opened(holder)
    assert [holder.is_open for holder in holders] == [False, False, True]


def test_a_holder_that_closed_its_file_itself_is_not_told() -> None:
    open_files = OpenFiles(1)
    first, second = Holder(), Holder()
    open_files.opened(first)
    open_files.forget(first)
    open_files.opened(second)
    assert first.is_open and second.is_open


class Index:
    def __init__(self, size: int) -> None:
        self.held_bytes = size
        self.is_loaded = True

    def unload(self) -> None:
        self.is_loaded = False


def test_the_index_that_was_loaded_first_is_unloaded_first() -> None:
    indexes = LoadedIndexes(100)
    first, second, third = Index(40), Index(60), Index(1)
    indexes.add(first)
    indexes.add(second)
    assert (indexes.used_bytes, first.is_loaded) == (100, True)
    indexes.add(third)
    assert (indexes.used_bytes, first.is_loaded, second.is_loaded) == (61, False, True)


def test_the_newest_index_stays_however_large() -> None:
    indexes = LoadedIndexes(100)
    small, large = Index(10), Index(1000)
    indexes.add(small)
    indexes.add(large)
    assert (small.is_loaded, large.is_loaded, indexes.used_bytes) == (False, True, 1000)


def test_an_index_that_is_loaded_again_counts_once_and_is_the_newest() -> None:
    indexes = LoadedIndexes(100)
    first, second = Index(40), Index(40)
    indexes.add(first)
    indexes.add(second)
    first.held_bytes = 50
    indexes.add(first)
    assert indexes.used_bytes == 90
    indexes.add(Index(20))
    assert (first.is_loaded, second.is_loaded) == (True, False)
    indexes.forget(second)
    indexes.forget(first)
    assert indexes.used_bytes == 20


def test_half_of_the_descriptors_are_left_to_connections() -> None:
    limit = default_open_file_limit()
    assert 64 <= limit <= 1 << 15
