"""Compaction with little memory: how much a round takes, and what it does without enough."""

from __future__ import annotations

import logging
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from msgspec.structs import replace

from kbroker.log.cleaner import compaction
from kbroker.log.cleaner import round as cleaning_round
from kbroker.log.cleaner.offset_map import OffsetMap
from kbroker.protocol.batches.compression import Compression
from kbroker.server.network.memory_pool import MemoryPool
from tests.log.cleaner.cleaning import DAY_MS, FILLED_CLEAN, Bench, batch, filled, view
from tests.sim.offload import HeldOffload


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "data")


def with_map(folder: Path, map_bytes: int) -> Bench:
    """A bench whose cleaner has a smaller offset map than the settings allow."""
    bench = Bench(folder)
    bench.cleaner.config = replace(
        bench.cleaner.config, map_bytes=map_bytes, sure_map_bytes=map_bytes
    )
    return bench


def test_a_full_map_takes_more_rounds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = with_map(tmp_path, 1530)
    for number in range(40):
        bench.append(batch((f"k{number % 20}", str(number)), (f"l{number}", "x")))
    bench.roll()
    bench.append(batch(("end", "1")))
    with caplog.at_level(logging.INFO, logger="kbroker.log.cleaner.cleaner"):
        bench.clean()
    offsets = [record.args[1] for record in caplog.records if record.args]
    assert len(offsets) > 5 and offsets == sorted(offsets) and offsets[-1] == 80
    assert [key for _, key, _ in view(bench) if key[0] == "k"] == [f"k{n}" for n in range(20)]
    assert len([key for _, key, _ in view(bench) if key[0] == "l"]) == 40


def test_a_batch_that_unpacks_to_too_much_stays_and_cleaning_goes_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_unpacked_bytes=5_000)
    bench.append(batch(("a", "1"), ("big", "1")))
    bench.replay(
        batch(("big", "2" * 9_000), ("a", "2"), compression=Compression.ZSTD, base_offset=2)
    )
    bench.append(batch(("b", "1"), ("b", "2")))
    bench.append(batch(("a", "3")))
    bench.roll()
    bench.append(batch(("end", "1")))
    bench.clean()
    assert [(offset, key) for offset, key, _ in view(bench)] == [
        (1, "big"),  # its later record is not indexed
        (2, "big"),
        (3, "a"),  # nor is any record of that batch removed
        (5, "b"),
        (6, "a"),
        (7, "end"),
    ]
    assert not bench.cleaner.uncleanable
    assert bench.log.cleaner_offset == 7


def test_a_long_batch_is_gone_through_twice_with_the_same_outcome(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of record positions is not kept meanwhile."""
    monkeypatch.setattr(compaction, "LISTED_RECORDS", 1)
    filled(bench).clean()
    assert view(bench) == FILLED_CLEAN


def test_a_batch_with_more_keys_than_the_map_has_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maps: list[OffsetMap] = []

    def new_map(limit_bytes: int) -> OffsetMap:
        maps.append(OffsetMap(limit_bytes))
        return maps[-1]

    monkeypatch.setattr(cleaning_round, "OffsetMap", new_map)
    bench = with_map(tmp_path, 1530)
    bench.append(batch(*((f"k{number}", "old") for number in range(50))))
    bench.append(batch(*((f"k{number}", "new") for number in range(50))))
    bench.roll()
    bench.append(batch(("end", "1")))
    bench.clean()
    assert max(map(len, maps)) == 10, "not the batch decides how much memory there is"
    values = {key: value for _, key, value in view(bench)}
    assert values == {f"k{number}": "new" for number in range(50)} | {"end": "1"}
    assert len(view(bench)) == 51


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_tombstones_of_a_batch_with_more_keys_than_the_map_stay_until_older_values_are_gone(
    tmp_path: Path, compression: Compression
) -> None:
    """The batch is the first of its round: the next round begins within it."""
    bench = with_map(tmp_path, 1530)
    bench.append(batch(*((f"k{number}", "old") for number in range(8))))
    bench.roll()
    bench.append(batch(("kept", "1")))
    bench.clean()
    bench.append(
        batch(
            *((f"x{number}", None) for number in range(20)),
            *((f"k{number}", None) for number in range(8)),
            compression=compression,
        )
    )
    bench.roll()
    for number in range(4):
        bench.append(batch((f"f{number}", "1")))
        bench.roll()
        bench.append(batch((f"g{number}", "1")))
        bench.clean()
        if number == 0:  # the tombstones have their horizon, which has not passed
            assert sum(value is None for _, _, value in view(bench)) == 28
        assert "old" not in {value for _, _, value in view(bench)}
        bench.timers.wall_jump_ms += 2 * DAY_MS
    others = {f"{letter}{number}" for letter in "fg" for number in range(4)}
    assert {key for _, key, _ in view(bench)} == others | {"kept"}


def test_a_map_without_memory_takes_one_key_in_each_round(tmp_path: Path) -> None:
    properties = {"log.cleaner.io.buffer.load.factor": "0"}
    bench = filled(Bench(tmp_path, properties=properties))
    assert bench.cleaner.config.map_bytes == 0
    bench.clean()
    for _ in range(20):
        bench.cleaner.look()
    assert view(bench) == FILLED_CLEAN


def test_a_map_has_a_sure_share_of_the_memory_limit_and_more_if_there_is(tmp_path: Path) -> None:
    memory = MemoryPool(44 << 20)
    limit = {"kbroker.memory.limit.bytes": str(64 << 20)}
    held = HeldOffload()
    bench = Bench(tmp_path, properties=limit, memory=memory, offload=held)
    assert bench.cleaner.config.sure_map_bytes == 4 << 20
    filled(bench).clean()
    wanted = bench.cleaner.config.map_bytes - (4 << 20)
    assert memory.kept_limit / 2 <= memory.kept < memory.kept_limit < wanted
    while held.held:
        held.run()
    assert view(bench) == FILLED_CLEAN
    assert memory.kept == 0


def test_a_map_with_no_memory_to_spare_is_its_sure_share(tmp_path: Path) -> None:
    memory = MemoryPool(44 << 20)
    assert memory.keep(memory.kept_limit)
    bench = Bench(tmp_path, memory=memory)
    filled(bench).clean()
    assert view(bench) == FILLED_CLEAN
    bench.stop()
    assert memory.kept == memory.kept_limit


def test_a_stop_in_the_middle_of_a_round_gives_its_memory_back(tmp_path: Path) -> None:
    memory = MemoryPool(44 << 20)
    bench = Bench(tmp_path, memory=memory, offload=HeldOffload())
    filled(bench).clean()
    assert memory.kept
    bench.stop()
    assert memory.kept == 0


def test_one_worker_at_a_time_unpacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacking = Lock()
    held: list[bool] = []

    def unpack(*arguments: Any) -> bytes:
        held.append(unpacking.locked())
        return compaction_unpack(*arguments)

    compaction_unpack = compaction.unpack_records
    monkeypatch.setattr(compaction, "unpack_records", unpack)
    bench = Bench(tmp_path, unpacking=unpacking)
    filled(bench).clean()
    assert view(bench) == FILLED_CLEAN
    assert len(held) > 5 and all(held)
