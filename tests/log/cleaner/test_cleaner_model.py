"""Compaction against a model, through drawn appends, transactions, rolls and restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.batches.records import iter_records
from tests.log.cleaner.cleaning import DAY_MS, Bench, batch, batches_of, end_transaction, records_of

KEYS = st.sampled_from(["a", "b", "c", "d"])
ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"),
            st.lists(st.tuples(KEYS, st.sampled_from(["1", "2", None])), min_size=1, max_size=4),
            st.sampled_from(list(Compression)),
        ),
        st.tuples(st.just("begin"), st.integers(1, 2), KEYS),
        st.tuples(st.just("end"), st.integers(1, 2), st.booleans()),
        st.tuples(st.just("roll")),
        st.tuples(st.just("clean")),
        st.tuples(st.just("wait"), st.sampled_from([1000, DAY_MS])),
        st.tuples(st.just("restart"), st.booleans()),
    ),
    max_size=25,
)


class Model:
    """The written records, and those that a reader must and may get."""

    def __init__(self) -> None:
        self.records: dict[int, tuple[str, str | None]] = {}
        self.decided: dict[int, bool] = {}
        self.open: dict[int, list[int]] = {}
        self.epochs = {1: 0, 2: 0}

    def committed(self) -> dict[int, tuple[str, str | None]]:
        return {o: r for o, r in self.records.items() if self.decided.get(o, True)}


def committed_view(bench: Bench) -> dict[int, tuple[str, str | None]]:
    """The visible records, as a read_committed consumer computes them from batches and aborted
    transactions.
    """
    log = bench.log
    unstable = log.first_unstable_offset
    end = log.log_end_offset if unstable is None else unstable
    aborted = log.aborted_transactions(0, end)
    seen = {}
    for header, data in batches_of(log):
        gone = any(
            t.producer_id == header.producer_id
            and t.first_offset <= header.base_offset <= t.last_offset
            for t in aborted
        )
        if header.is_control or header.base_offset >= end or gone:
            continue
        for r in iter_records(data, header):
            value = None if r.value is None else r.value.decode()
            seen[r.offset] = ((r.key or b"").decode(), value)
    return seen


def apply(bench: Bench, model: Model, action: tuple[Any, ...]) -> None:
    end = bench.log.log_end_offset
    match action:
        case ("append", items, codec):
            bench.append(batch(*items, compression=codec))
            model.records |= {end + i: item for i, item in enumerate(items)}
        case ("begin", producer_id, key):
            offsets = model.open.setdefault(producer_id, [])
            bench.append(
                batch((key, f"t{end}"), producer_id=producer_id, is_transactional=True,
                      producer_epoch=model.epochs[producer_id], base_sequence=len(offsets))
            )  # fmt: skip
            model.records[end] = (key, f"t{end}")
            model.decided[end] = False
            offsets.append(end)
        case ("end", producer_id, commit) if producer_id in model.open:
            model.epochs[producer_id] += 1
            end_transaction(bench, producer_id, model.epochs[producer_id], commit=commit)
            for offset in model.open.pop(producer_id):
                model.decided[offset] = commit
        case ("roll",):
            bench.roll()
        case ("clean",):
            bench.clean()
        case ("wait", ms):
            bench.timers.wall_jump_ms += ms
        case ("restart", clean):
            bench.stop(clean=clean)
            bench.open()
            bench.log.on_high_watermark(bench.log.log_end_offset)


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(actions=ACTIONS)
def test_a_reader_sees_the_last_value_of_each_key(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[Any, ...]]
) -> None:
    check_model(tmp_path_factory.mktemp("model"), actions)


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(max_examples=3000, deadline=None)
@given(actions=ACTIONS)
def test_a_reader_sees_the_last_value_of_each_key_at_length(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[Any, ...]]
) -> None:
    check_model(tmp_path_factory.mktemp("model"), actions)


def check_model(folder: Path, actions: list[tuple[Any, ...]]) -> None:
    bench = Bench(folder, segment_index_bytes=4096, segment_bytes=700)
    model = Model()
    for action in actions:
        apply(bench, model, action)
        bench.log.on_high_watermark(bench.log.log_end_offset)
        assert not bench.cleaner.uncleanable
        offsets = [r.offset for r in records_of(bench.log)]
        assert offsets == sorted(set(offsets)), "order and no doubles"
        committed = model.committed()
        unstable = min((o[0] for o in model.open.values()), default=bench.log.log_end_offset)
        visible = {o: r for o, r in committed.items() if o < unstable}
        seen = committed_view(bench)
        assert seen.items() <= visible.items()
        last = {key: offset for offset, (key, _) in sorted(visible.items())}
        for key, offset in last.items():
            is_tombstone = visible[offset][1] is None
            assert offset in seen or is_tombstone, f"{key} at {offset}"
        states = bench.log.producers.active_producers
        for producer_id, offsets in model.open.items():
            assert states[producer_id].transaction_first_offset == offsets[0]
            assert states[producer_id].last_sequence == len(offsets) - 1
    bench.stop()
