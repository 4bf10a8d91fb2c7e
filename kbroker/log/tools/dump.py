"""The files of a log directory as lines of text, in the format of kafka-dump-log.

Only reads files, so it can run beside a running broker. `cli/dump_log.py` is the command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from kbroker.log.producer.producer_state import ProducerState, read_snapshot
from kbroker.log.storage import names
from kbroker.log.storage.files import LogFile, exists, file_size, is_directory, read_file
from kbroker.log.storage.index import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    CorruptIndexError,
    OffsetIndex,
    TimeIndex,
)
from kbroker.log.storage.transaction_index import TransactionIndex
from kbroker.protocol.batches.any_magic import check_any_crc, read_any_header
from kbroker.protocol.batches.batch_header import (
    BATCH_OVERHEAD,
    LENGTH_OVERHEAD,
    MAGIC,
    BatchHeader,
)
from kbroker.protocol.batches.control_records import (
    ControlType,
    control_type,
    marker_coordinator_epoch,
)
from kbroker.protocol.batches.legacy_records import iter_unpacked, read_message
from kbroker.protocol.batches.records import Record, iter_records
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.codecs.message_json import json_text, to_json
from kbroker.protocol.codecs.schema import Data
from kbroker.protocol.errors import KafkaError, MalformedRequest
from kbroker.protocol.messages.stored.control_records import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)

RecordText = Callable[[Record], str]
"""How key and value of a data record are shown; the text begins with a blank if not empty."""

CHECKPOINT: Final = ".checkpoint"
MAX_BATCH_BYTES: Final = 1 << 30
TEXT_FILES: Final = (
    names.LEADER_EPOCHS,
    names.PARTITION_METADATA,
    names.RECOVERY_POINTS,
    names.LOG_START_OFFSETS,
    names.HIGH_WATERMARKS,
    names.CLEANER_OFFSETS,
    names.DAMAGED_LOGS,
    names.CLEAN_SHUTDOWN,
    "quorum-state",
    "meta.properties",
)
"""Shown as they are."""
_CONTROL: Final[Mapping[ControlType, tuple[str, type[Data]]]] = {
    ControlType.LEADER_CHANGE: ("LeaderChange:", LeaderChangeMessage),
    ControlType.SNAPSHOT_HEADER: ("SnapshotHeader", SnapshotHeaderRecord),
    ControlType.SNAPSHOT_FOOTER: ("SnapshotFooter", SnapshotFooterRecord),
    ControlType.KRAFT_VERSION: ("KRaftVersion", KRaftVersionRecord),
    ControlType.KRAFT_VOTERS: ("KRaftVoters", VotersRecord),
}


class DumpError(Exception):
    """A file that cannot be shown; one line with file and reason."""


class TornTailError(DumpError):
    """The file ends inside a batch; trailing_bytes: the bytes after the last whole batch."""

    def __init__(self, message: str, trailing_bytes: int) -> None:
        super().__init__(message)
        self.trailing_bytes = trailing_bytes


def dump_file(
    path: Path, *, records: bool = True, record_text: RecordText | None = None
) -> Iterator[str]:
    """The lines of one file, whose kind is chosen by its name.

    records: also show the records of the batches. record_text: how keys and values are shown.
    Raises DumpError for files of an unknown kind, LogDirectoryError.
    """
    if not exists(path) or is_directory(path):
        raise DumpError(f"{path}: no such file")
    name = path.name
    if name in TEXT_FILES:
        yield from (read_file(path) or b"").decode("utf-8", "replace").splitlines()
        return
    if name.endswith(CHECKPOINT):
        yield from _dump_snapshot_header(name)
        yield from dump_batches(path, records=records, record_text=record_text)
        return
    parsed = names.parse_offset_name(name)
    if parsed is None:
        raise DumpError(f"{path}: not a file of a log directory")
    offset, kind, _ = parsed
    if kind == names.LOG:
        yield f"Log starting offset: {offset}"
        yield from dump_batches(path, records=records, record_text=record_text)
    elif kind == names.SNAPSHOT:
        yield from dump_producers(path)
    elif kind in (names.INDEX, names.TIME_INDEX, names.TRANSACTION_INDEX):
        yield from _dump_index(path, offset, kind)
    else:
        raise DumpError(f"{path}: not a file of a log directory")


def _dump_snapshot_header(name: str) -> Iterator[str]:
    offset, _, epoch = name.removesuffix(CHECKPOINT).partition("-")
    if offset.isdigit() and epoch.isdigit():
        yield f"Snapshot end offset: {int(offset)}, epoch: {int(epoch)}"
    else:
        yield "KRaft bootstrap snapshot"


def _dump_index(path: Path, base_offset: int, kind: str) -> Iterator[str]:
    name, size = str(path), file_size(str(path))
    try:
        # Kafka shows the first entry of a file with only preallocation
        if kind == names.INDEX:
            if size < OFFSET_ENTRY_BYTES:
                yield f"{path} is empty."
                return
            entries = OffsetIndex(name, base_offset, size).without_padding().entries()
            for offset, position in entries or [(base_offset, 0)]:
                yield f"offset: {offset} position: {position}"
        elif kind == names.TIME_INDEX:
            times = TimeIndex(name, base_offset, size).without_padding().entries()
            zeros = [(0, base_offset)] if size >= TIME_ENTRY_BYTES else []
            for timestamp, offset in times or zeros:
                yield f"timestamp: {timestamp} offset: {offset}"
        else:
            for entry in TransactionIndex(name, exists=True).entries():
                yield (
                    f"version: 0 producerId: {entry.producer_id} firstOffset: {entry.first_offset} "
                    f"lastOffset: {entry.last_offset} lastStableOffset: {entry.last_stable_offset}"
                )
    except CorruptIndexError as error:
        raise DumpError(str(error)) from error


# -- batches --------------------------------------------------------------------------------------


def batches_of(path: Path, position: int = 0) -> Iterator[tuple[int, BatchHeader, bytes]]:
    """(position, header, bytes) of the batches, or old messages, of a file, valid or not, from
    position, where one begins.

    Raises DumpError for bytes that are no batch, after yielding those before it; TornTailError for
    an incomplete batch.
    """
    file = LogFile(str(path), read_only=True)
    end = file.size()
    while position < end:
        head = file.read_at(position, BATCH_OVERHEAD)
        try:
            header = read_any_header(head)
        except KafkaError as error:
            message = f"{path}: position {position}: {error.message}"
            if end - position < BATCH_OVERHEAD and any(head):
                raise TornTailError(message, end - position) from error
            raise DumpError(message) from error
        size = header.batch_length + LENGTH_OVERHEAD
        if size > min(end - position, MAX_BATCH_BYTES):
            raise TornTailError(
                f"{path}: position {position}: a batch of {size} bytes, {end - position} are left",
                end - position,
            )
        yield position, header, file.read_at(position, size)
        position += size


def dump_batches(
    path: Path, *, records: bool = True, record_text: RecordText | None = None
) -> Iterator[str]:
    """A line for each batch, and with `records` one for each record.

    Raises DumpError; before a TornTailError it yields Kafka's line about the trailing bytes.
    """
    try:
        yield from _batch_and_record_lines(path, records, record_text)
    except TornTailError as error:
        yield f"Found {error.trailing_bytes} invalid bytes at the end of {path.name}"
        raise


def _batch_and_record_lines(
    path: Path, records: bool, record_text: RecordText | None
) -> Iterator[str]:
    for position, header, batch in batches_of(path):
        is_valid = check_any_crc(batch, 0, header)
        is_old = header.magic < MAGIC
        yield (_message_line if is_old else _batch_line)(position, header, is_valid)
        if not records:
            continue
        record_lines = _message_lines if is_old else _record_lines
        try:
            for line in record_lines(header, batch, record_text or plain_text):
                yield "| " + line
        except KafkaError as error:
            raise DumpError(f"{path}: position {position}: {error.message}") from error


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _optional(value: int | None) -> str:
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


def _time_type(header: BatchHeader) -> str:
    if header.magic == 0:
        return "NoTimestampType"
    return "LogAppendTime" if header.is_log_append_time else "CreateTime"


def _batch_line(position: int, header: BatchHeader, is_valid: bool) -> str:
    horizon = header.base_timestamp if header.has_delete_horizon else None
    return (
        f"baseOffset: {header.base_offset} lastOffset: {header.last_offset} "
        f"count: {header.record_count} baseSequence: {header.base_sequence} "
        f"lastSequence: {header.last_sequence} producerId: {header.producer_id} "
        f"producerEpoch: {header.producer_epoch} "
        f"partitionLeaderEpoch: {header.partition_leader_epoch} "
        f"isTransactional: {_bool(header.is_transactional)} isControl: {_bool(header.is_control)} "
        f"deleteHorizonMs: {_optional(horizon)} position: {position} "
        f"{_time_type(header)}: {header.max_timestamp} size: {header.size_bytes} "
        f"magic: {header.magic} compresscodec: {header.codec.name.lower()} crc: {header.crc} "
        f"isvalid: {_bool(is_valid)}"
    )


def _message_line(position: int, header: BatchHeader, is_valid: bool) -> str:
    return (
        f"offset: {header.base_offset} position: {position} "
        f"{_time_type(header)}: {header.max_timestamp} size: {header.size_bytes} "
        f"magic: {header.magic} compresscodec: {header.codec.name.lower()} crc: {header.crc} "
        f"isvalid: {_bool(is_valid)}"
    )


def _message_lines(header: BatchHeader, batch: bytes, record_text: RecordText) -> Iterator[str]:
    outer, _ = read_message(batch)
    for message in iter_unpacked(outer):
        key_size = -1 if message.key is None else len(message.key)
        value_size = -1 if message.value is None else len(message.value)
        yield (
            f"offset: {message.offset} {_time_type(header)}: {message.timestamp} "
            f"keySize: {key_size} valueSize: {value_size} isValid: {_bool(message.is_valid)} "
            f"crc: {message.crc}"
        ) + record_text(Record(message.offset, message.timestamp, message.key, message.value))


def _record_lines(header: BatchHeader, batch: bytes, record_text: RecordText) -> Iterator[str]:
    for record in iter_records(batch, header):
        yield _record_line(header, record, record_text)


def _record_line(header: BatchHeader, record: Record, record_text: RecordText) -> str:
    sequence = header.base_sequence
    if sequence >= 0:
        sequence = (sequence + record.offset - header.base_offset) & 0x7FFFFFFF
    key_size = -1 if record.key is None else len(record.key)
    value_size = -1 if record.value is None else len(record.value)
    header_keys = ",".join(key.decode("utf-8", "replace") for key, _ in record.headers)
    line = (
        f"offset: {record.offset} {_time_type(header)}: {record.timestamp} keySize: {key_size} "
        f"valueSize: {value_size} sequence: {sequence} headerKeys: [{header_keys}]"
    )
    return line + (_control_text(record) if header.is_control else record_text(record))


def plain_text(record: Record) -> str:
    """Key and value as UTF-8."""
    line = ""
    if record.key is not None:
        line += " key: " + record.key.decode("utf-8", "replace")
    if record.value is not None:
        line += " payload: " + record.value.decode("utf-8", "replace")
    return line


def _control_text(record: Record) -> str:
    kind = control_type(record)
    if kind in (ControlType.ABORT, ControlType.COMMIT):
        return f" endTxnMarker: {kind.name} coordinatorEpoch: {marker_coordinator_epoch(record)}"
    if kind not in _CONTROL or record.value is None:
        return f" controlType: {kind.name}"
    label, schema = _CONTROL[kind]
    version = int.from_bytes(record.value[:2], "big")
    try:
        message, _ = decode(schema, record.value, version)
    except (KafkaError, MalformedRequest) as error:
        return f" {label} <{error}>"
    return f" {label} " + json_text(to_json(message, version))


# -- producers ------------------------------------------------------------------------------------


def dump_producers(path: Path) -> Iterator[str]:
    """A line for each producer of a snapshot. Raises DumpError."""
    try:
        states = read_snapshot(read_file(path) or b"")
    except KafkaError as error:
        raise DumpError(f"{path}: {error.message}") from error
    for state in states:
        yield _producer_line(state)


def _producer_line(state: ProducerState) -> str:
    line = (
        f"producerId: {state.producer_id} producerEpoch: {state.producer_epoch} "
        f"coordinatorEpoch: {state.coordinator_epoch} "
        f"currentTxnFirstOffset: {_optional(state.transaction_first_offset)} "
        f"lastTimestamp: {state.last_timestamp} "
    )
    if state.batches:
        last = state.batches[-1]
        line += (
            f"firstSequence: {state.first_sequence} lastSequence: {last.last_sequence} "
            f"lastOffset: {last.last_offset} offsetDelta: {last.offset_delta} "
            f"timestamp: {last.timestamp}"
        )
    return line.rstrip()
