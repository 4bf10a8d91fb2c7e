"""Removing whole segments, and cutting a log at an offset."""

from __future__ import annotations

from kbroker.log.state.log_state import LogState
from kbroker.log.storage.files import (
    LogFile,
    sync_directory,
)
from kbroker.log.storage.segment import Segment


def remove_segments(
    state: LogState,
    doomed: list[Segment],
    *,
    now_ms: int,
    sync: bool = False,
    defer: bool = False,
) -> None:
    """Remove segments and the snapshots that go with them, delayed. sync: before what is in front
    of them is cut, else a crash of the machine may keep the cut and bring them back behind it.
    defer: their names are changed by who works off `renames`; else all that waits there is done.
    """
    due_ms = now_ms + state.config.file_delete_delay_ms
    for segment in doomed:
        snapshot = state.snapshots.forget(segment.base_offset)
        if snapshot is not None:
            state.segments.doom(snapshot, due_ms=due_ms)
    state.segments.remove(doomed, due_ms=due_ms)
    if not defer:
        state.segments.renames.settle()
    if sync and doomed:
        sync_directory(state.segments.directory)


def cut_segments(state: LogState, offset: int, *, now_ms: int) -> None:
    """Make offset the end of the last segment, which is the active one then: what contains it, and
    what is behind, goes. That is on disk afterwards, so that it can't come back behind what is
    appended next. Blocks.
    """
    segments, config = state.segments, state.config
    remove_segments(state, segments.at_or_after(offset + 1)[::-1], now_ms=now_ms, sync=True)
    active = segments.active
    if offset > active.base_offset and not active.position_of(offset):
        remove_segments(state, [active], now_ms=now_ms, sync=True)
        segments.create_active(offset, config=config, now_ms=now_ms)
        return
    active.truncate_to(offset, index_bytes=config.segment_index_bytes, now_ms=now_ms)
    active.log_file().sync()
    if active.next_offset() < offset:
        # compaction took what lay before offset: a new segment is to say where the log ends
        active.become_inactive()
        for path in active.file_paths():
            LogFile(path).sync()
        segments.create_active(offset, config=config, now_ms=now_ms)
