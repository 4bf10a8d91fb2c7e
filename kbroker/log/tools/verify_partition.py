"""Checks all files of one partition's folder against each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from kbroker.log.producer.producer_state import ProducerState, ProducerStateManager, read_snapshot
from kbroker.log.storage import names
from kbroker.log.storage.checkpoint import (
    CheckpointError,
    parse_number,
    read_entries,
    read_topic_id,
)
from kbroker.log.storage.files import LogDirectoryError, exists, list_directory, read_file
from kbroker.log.storage.index import CorruptIndexError
from kbroker.log.storage.index_entries import AbortedTransaction
from kbroker.log.tools.findings import Finding, Problem, Progress
from kbroker.log.tools.verify_node_files import (
    CHECKPOINT,
    IS_A_FOLDER,
    QUORUM_STATE,
    check_quorum_state,
    check_text,
    verify_metadata_snapshot,
    without_path,
)
from kbroker.log.tools.verify_segment import SegmentCheck
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_header import BatchHeader
from kbroker.protocol.errors import KafkaError

_FOREVER_MS: Final = 1 << 62


class PartitionCheck:
    """One partition's folder. `run` yields the findings; after it, `log_end_offset` and
    `has_segments` describe the log. was_cleaned: compaction may have left gaps. synced_offset: the
    recovery point of a folder without a clean shutdown, from which on derived files may lag behind
    the log and files may be deleted; None after a clean shutdown.
    """

    def __init__(
        self,
        folder: Path,
        *,
        log_start_offset: int,
        records: bool,
        was_cleaned: bool = False,
        synced_offset: int | None = None,
    ) -> None:
        self.folder = folder
        self.log_start_offset = log_start_offset
        self.log_end_offset = 0
        self.has_segments = False
        self._records = records
        self._has_gaps = was_cleaned
        self._synced_offset = synced_offset
        self._between: list[Problem] = []  # gaps between segments
        self._epochs: list[tuple[int, int]] = []
        self._begun: dict[int, int] = {}
        self._visible: dict[int, int] = {}
        parsed = names.parse_directory_name(folder.name)
        self._producers = ProducerStateManager(
            parsed[0] if parsed else TopicPartition(folder.name, 0), expiration_ms=_FOREVER_MS
        )

    def run(self) -> Iterator[Finding]:
        """All findings."""
        try:
            entries = list_directory(self.folder)
        except LogDirectoryError as error:
            if not self._is_deleted(self.folder):
                yield Problem(self.folder, str(error))
            return
        found: dict[tuple[int, str], int] = {}
        plain: list[str] = []
        for name, size, is_directory in entries:
            parsed = names.parse_offset_name(name)
            if is_directory and (name == QUORUM_STATE or (parsed is not None and not parsed[2])):
                yield Problem(self.folder / name, IS_A_FOLDER)
            elif parsed is not None and not parsed[2]:
                found[parsed[0], parsed[1]] = size
            elif not is_directory:
                plain.append(name)
        yield from self._text_files(plain)
        bases = sorted(offset for offset, kind in found if kind == names.LOG)
        self.has_segments = bool(bases)
        for offset, kind in sorted(found):
            if kind in SegmentCheck.INDEX_KINDS and (offset, names.LOG) not in found:
                yield Problem(
                    self.folder / names.offset_name(offset, kind), "there is no log beside it"
                )
        snapshots = sorted(offset for offset, kind in found if kind == names.SNAPSHOT)
        for slot, base in enumerate(bases):
            following = bases[slot + 1] if slot + 1 < len(bases) else None
            due = [o for o in snapshots if o >= base and (following is None or o < following)]
            yield from self._segment(base, following, found, due)
        if not self._has_gaps:  # otherwise it was compacted
            yield from self._between
        for offset in snapshots:
            if offset > self.log_end_offset:
                yield Problem(self._snapshot_path(offset), f"the log ends at {self.log_end_offset}")
            elif not bases or offset < bases[0]:
                yield from self._snapshot(offset, replayed=False)
        for epoch, start in self._epochs:
            if bases and start > self.log_end_offset:
                yield Problem(
                    self.folder / names.LEADER_EPOCHS,
                    f"epoch {epoch} begins at {start}, the log ends at {self.log_end_offset}",
                )

    def _is_deleted(self, path: Path) -> bool:
        """Whether the broker that uses the folder has deleted the file meanwhile."""
        return self._synced_offset is not None and not exists(path)

    def _may_lag(self, header: BatchHeader, known_epoch: int | None) -> bool:
        """Whether the epoch of a batch may be missing in the leader epoch checkpoint."""
        is_newer = known_epoch is None or known_epoch < header.partition_leader_epoch
        return self._synced_offset is not None and (
            is_newer and header.next_offset > self._synced_offset
        )

    # -- small files ------------------------------------------------------------------------------

    def _text_files(self, plain: list[str]) -> Iterator[Finding]:
        path = self.folder / names.LEADER_EPOCHS
        for file, read in (
            (path, self._read_epochs),
            (self.folder / names.PARTITION_METADATA, self._read_topic_id),
        ):
            try:
                read()
            except CheckpointError as error:
                yield Problem(file, without_path(error, file))
            except LogDirectoryError as error:
                yield Problem(file, str(error))
        for one, other in zip(self._epochs, self._epochs[1:], strict=False):
            if other[0] <= one[0] or other[1] <= one[1]:
                yield Problem(path, f"epoch {other[0]} at {other[1]} follows {one[0]} at {one[1]}")
        if QUORUM_STATE in plain:
            yield from check_text(self.folder / QUORUM_STATE, check_quorum_state)
        for name in plain:
            if name.endswith(CHECKPOINT):
                yield from verify_metadata_snapshot(self.folder / name)

    def _read_epochs(self) -> None:
        path = self.folder / names.LEADER_EPOCHS
        for epoch, start in read_entries(path, 2):
            self._epochs.append((parse_number(path, epoch), parse_number(path, start)))

    def _read_topic_id(self) -> None:
        read_topic_id(self.folder)

    def _epoch_at(self, offset: int) -> int | None:
        found = None
        for epoch, start in self._epochs:
            if start > offset:
                break
            found = epoch
        return found

    # -- segments ---------------------------------------------------------------------------------

    def _segment(
        self,
        base: int,
        following: int | None,
        found: Mapping[tuple[int, str], int],
        snapshots: list[int],
    ) -> Iterator[Finding]:
        if base < self.log_end_offset:
            yield Problem(
                self.folder / names.offset_name(base, names.LOG),
                f"it begins at {base}, the one before ends at {self.log_end_offset}",
            )
        elif self.has_segments and base > self.log_end_offset > 0:
            first, last = self.log_end_offset, base - 1
            self._between.append(
                Problem(
                    self.folder / names.offset_name(first, names.LOG),
                    f"the records from offset {first} to {last} are missing",
                )
            )
        check = SegmentCheck(
            self.folder,
            base,
            following=following,
            producers=self._producers,
            records=self._records,
            is_in_use=self._synced_offset is not None,
        )
        self.log_end_offset = max(self.log_end_offset, base)
        wrong_epoch = False
        due = list(snapshots)
        for header in check.batches():
            while due and due[0] <= header.base_offset:
                yield from self._snapshot(due.pop(0), replayed=True)
            epoch = header.partition_leader_epoch
            known = self._epoch_at(header.base_offset)
            # after DeleteRecords the log start offset in the checkpoint may lag behind
            is_before = known is None and (
                bool(self._epochs) or header.base_offset < self.log_start_offset
            )
            is_fine = is_before or self._may_lag(header, known)
            if epoch >= 0 and epoch != known and not wrong_epoch and not is_fine:
                wrong_epoch = True  # report it once
                yield Problem(
                    self.folder / names.LEADER_EPOCHS,
                    f"offset {header.base_offset} was written in epoch {epoch}, "
                    f"here it is {'none' if known is None else known}",
                )
            self._note_visible(header)
            check.take(header)
            self._has_gaps |= header.base_offset > self.log_end_offset
            self.log_end_offset = header.next_offset
        for offset in due:
            if offset <= self.log_end_offset or following is not None:
                yield from self._snapshot(offset, replayed=offset >= self.log_end_offset)
        wrong = [*check.problems, *check.index_problems(found)]
        yield from (Problem(path, what) for path, what in wrong if not self._is_deleted(path))
        yield from self._aborted(check, found)
        yield Progress(check.path, check.size_bytes)

    def _note_visible(self, header: BatchHeader) -> None:
        """With each batch, the first record of its transaction that a reader can see; with a
        marker, the first offsets of the transaction that it completes.
        """
        if header.is_control:
            first = self._begun.pop(header.producer_id, None)
            if first is not None:
                self._visible[header.base_offset] = first
        elif header.is_transactional and header.next_offset > self.log_start_offset:
            self._begun.setdefault(header.producer_id, header.base_offset)

    def _aborted(
        self, check: SegmentCheck, found: Mapping[tuple[int, str], int]
    ) -> Iterator[Finding]:
        path = self.folder / names.offset_name(check.base_offset, names.TRANSACTION_INDEX)
        stored: dict[int, AbortedTransaction] = {}
        if (check.base_offset, names.TRANSACTION_INDEX) in found:
            try:
                stored = {item.last_offset: item for item in check.aborted_in_file(path)}
            except (CorruptIndexError, LogDirectoryError) as error:
                if not self._is_deleted(path):
                    yield Problem(path, without_path(error, path))
                return
        for item in check.aborted:
            mine = stored.pop(item.last_offset, None)
            # recovery replays from the log start: earlier batches may be missing in it
            visible = self._visible.pop(item.last_offset, None)
            if mine is None:
                if visible is not None:
                    yield Problem(
                        path,
                        f"the transaction of producer {item.producer_id} that was aborted at "
                        f"{item.last_offset} is not in it",
                    )
            elif mine.producer_id != item.producer_id or (
                visible is not None and mine.first_offset > visible
            ):
                yield Problem(
                    path,
                    f"the transaction aborted at {item.last_offset} is of producer "
                    f"{item.producer_id} from {item.first_offset} on, it says {mine.producer_id} "
                    f"from {mine.first_offset} on",
                )
        for item in stored.values():
            if not check.may_have_aborted(item):
                yield Problem(path, f"no marker at {item.last_offset} ends a transaction")

    # -- producers --------------------------------------------------------------------------------

    def _snapshot_path(self, offset: int) -> Path:
        return self.folder / names.offset_name(offset, names.SNAPSHOT)

    def _snapshot(self, offset: int, *, replayed: bool) -> Iterator[Finding]:
        """Check a snapshot by itself, and with `replayed` against the producers replayed up to its
        offset.

        Producers in only one of the two are no fault: they expire, and retention removes their
        records.
        """
        path = self._snapshot_path(offset)
        if self._is_deleted(path):
            return
        try:
            states = read_snapshot(read_file(path) or b"")
        except LogDirectoryError as error:
            yield Problem(path, str(error))
            return
        except KafkaError as error:
            yield Problem(path, error.message)
            return
        for state in states:
            mine = self._producers.active_producers.get(state.producer_id)
            if state.last_offset >= offset or (state.transaction_first_offset or -1) >= offset:
                yield Problem(
                    path, f"producer {state.producer_id} has offsets at or after {offset}"
                )
            elif replayed and mine is not None and _contradicts(mine, state):
                yield Problem(
                    path,
                    f"producer {state.producer_id}: {_described(state)}; "
                    f"the log says {_described(mine)}",
                )


def _contradicts(mine: ProducerState, state: ProducerState) -> bool:
    """Whether a snapshot's producer contradicts the log. Compaction may have removed batches from
    the log since, so only states that end with the same batch are compared.
    """
    if mine.last_offset != state.last_offset:
        return mine.last_offset > state.last_offset >= 0
    # the transaction start may differ: DeleteRecords removes its first batches
    is_open = state.transaction_first_offset is not None
    return (mine.producer_epoch, mine.last_sequence, mine.transaction_first_offset is not None) != (
        state.producer_epoch,
        state.last_sequence,
        is_open,
    )


def _described(state: ProducerState) -> str:
    text = f"epoch {state.producer_epoch}, last sequence {state.last_sequence}"
    text += f" at offset {state.last_offset}"
    first = state.transaction_first_offset
    return text + ("" if first is None else f", transaction from {first}")
