"""A cleaned group takes the place of its segments: `.cleaned` -> `.swap`, old -> `.deleted`,
`.swap` -> final, in Kafka's order.

Until the first log has become `.swap` a crash loses the cleaned files and nothing else; from then
on the next start finishes the swap (`recovery`). Between the two steps the names are synced, so a
crash of the machine cannot keep the second and lose the first. Runs on the loop, but for `sync`.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.log import names
from kbroker.log.cleaning_round import CleanedSegment
from kbroker.log.files import rename, sync_directory, unlink
from kbroker.log.recovery import LogState
from kbroker.log.segment import Segment


class SegmentSwap:
    """One swap. old: neighbours, none of them active."""

    __slots__ = (
        "_base_offset",
        "_begun",
        "_cleaned",
        "_finishing",
        "_old",
        "_paths",
        "_sizes",
        "_state",
    )

    def __init__(self, state: LogState, old: Sequence[Segment]) -> None:
        self._state = state
        self._old = list(old)
        self._sizes = [segment.size for segment in old]
        self._base_offset = self._old[0].base_offset
        prefix = f"{state.segments.directory}/{names.offset_name(self._base_offset, '')}"
        self._paths = [prefix + kind for kind in (names.LOG, names.INDEX, names.TIME_INDEX)]
        self._paths.append(prefix + names.TRANSACTION_INDEX)
        self._cleaned: CleanedSegment | None = None
        self._begun = False
        self._finishing = False

    @property
    def is_valid(self) -> bool:
        """Whether the segments are still what they were: none gone, none cut, none active."""
        segments = self._state.segments
        first = segments.floor_index(self._base_offset)
        now = list(segments)[first : first + len(self._old)]
        return (
            len(now) == len(self._old)
            and all(each is old for each, old in zip(now, self._old, strict=True))
            and [segment.size for segment in now] == self._sizes
            and now[-1] is not segments.active
        )

    def begin(self, cleaned: CleanedSegment) -> None:
        """The first step. The caller saw that it `is_valid`."""
        self._cleaned = cleaned
        if not cleaned.has_transaction_index:
            self._paths.pop()
        for path in self._paths:
            rename(path + names.CLEANED, path + names.SWAP)
            self._begun = True

    def sync(self) -> None:
        """Sync the names between the steps. Blocks, belongs off the loop."""
        sync_directory(self._state.segments.directory)

    def finish(self, now_ms: int) -> None:
        """The second step: the new segment is in the log afterwards. `is_valid` once more."""
        state, cleaned = self._state, self._cleaned
        if cleaned is None:
            raise RuntimeError("the swap was not begun")
        self._finishing = True
        due_ms = now_ms + state.config.file_delete_delay_ms
        created_ms = self._old[0].created_ms
        state.segments.remove(self._old, due_ms=due_ms)
        for path in self._paths:
            rename(path + names.SWAP, path)
        state.segments.insert(
            Segment(
                state.segments.directory,
                self._base_offset,
                size=cleaned.size,
                config=state.config,
                open_files=state.segments.open_files,
                created_ms=created_ms,
                has_transaction_index=cleaned.has_transaction_index,
            )
        )
        for segment in self._old[1:]:
            snapshot = state.snapshots.mark_deleted(segment.base_offset)
            if snapshot is not None:
                state.segments.doomed_files.append((due_ms, snapshot))

    def undo(self) -> None:
        """Delete what was written, unless `finish` has begun: then only a start can settle it. The
        log's `.swap` first becomes `.cleaned` again: with that beside them the next start takes no
        `.swap` for a finished one.
        """
        if self._finishing:
            return
        if self._begun:
            rename(self._paths[0] + names.SWAP, self._paths[0] + names.CLEANED)
            self._begun = False
        for path in reversed(self._paths):
            unlink(path + names.SWAP)
            unlink(path + names.CLEANED)
