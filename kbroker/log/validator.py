"""Validation of batches before they are appended, and the fields that the broker changes in them.

The leader checks what clients send batch by batch, by header and CRC; records are decoded only
where Kafka itself would have to reject or change one of them (see docs/adr/0002). Producer
sequences and epochs are checked afterwards, in producer_state.py. Sources: KIP-32, KIP-98, KIP-110,
KIP-390, KIP-467 (errors per record), KIP-937 (timestamp bounds).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NoReturn, Protocol

from kbroker.protocol.batches.any_magic import check_any_crc, read_any_header
from kbroker.protocol.batches.batch_builder import recompress
from kbroker.protocol.batches.batch_header import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    LEADER_FIELDS,
    LENGTH_FIELD,
    LENGTH_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    NO_TIMESTAMP,
    BatchHeader,
    check_crc,
    read_batch_header,
    set_max_timestamp,
)
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.batches.legacy_records import is_legacy
from kbroker.protocol.batches.record_conversion import MAX_CONVERTED_BYTES, to_record_batch
from kbroker.protocol.batches.records import iter_records, most_records
from kbroker.protocol.errors import ErrorCode, KafkaError

BATCHES_SINCE_PRODUCE_VERSION: Final = 3
"""Earlier Produce versions may carry message sets of magic 0 and 1."""
ZSTD_SINCE_PRODUCE_VERSION: Final = 7
SHOWN_RECORD_ERRORS: Final = 3
MAX_RECORD_ERRORS: Final = 1_000
"""The maximum number of rejected records listed for a batch; Kafka has no limit. A client gives the
remaining records the error of the batch.
"""
RECORD_ERROR_BYTES: Final = 320
"""Memory that an entry for a rejected record takes until its response is encoded."""
LOG_APPEND_TIME: Final = "LogAppendTime"
NO_KEY: Final = "a compacted topic takes no record without a key"

CODEC_NAMES: Final[Mapping[int, str]] = {
    0: "uncompressed",
    1: "gzip",
    2: "snappy",
    3: "lz4",
    4: "zstd",
}


class AppendOrigin(Enum):
    """The source of a batch that the leader appends: clients have most restrictions. A follower
    checks neither these nor producers: it accepts every batch of its leader.
    """

    CLIENT = "client"
    COORDINATOR = "coordinator"


class ValidationConfig(Protocol):
    """The part of LogConfig that validation reads."""

    @property
    def segment_bytes(self) -> int: ...
    @property
    def max_message_bytes(self) -> int: ...
    @property
    def compression_type(self) -> str: ...
    @property
    def compression_gzip_level(self) -> int: ...
    @property
    def compression_lz4_level(self) -> int: ...
    @property
    def compression_zstd_level(self) -> int: ...
    @property
    def message_timestamp_type(self) -> str: ...
    @property
    def message_timestamp_before_max_ms(self) -> int: ...
    @property
    def message_timestamp_after_max_ms(self) -> int: ...
    @property
    def max_unpacked_bytes(self) -> int: ...


class RecordError:
    """One rejected record: its index in the batch, from 0, and the reason."""

    __slots__ = ("batch_index", "code", "message")

    def __init__(self, batch_index: int, code: ErrorCode, message: str) -> None:
        self.batch_index = batch_index
        self.code = code
        self.message = message

    def __repr__(self) -> str:
        return f"RecordError({self.batch_index}, {self.code.name}, {self.message!r})"


class InvalidRecords(KafkaError):
    """A batch rejected because of some of its records; the Produce response names them
    (KIP-467).
    """

    def __init__(self, errors: list[RecordError]) -> None:
        timestamps = any(error.code is ErrorCode.INVALID_TIMESTAMP for error in errors)
        shown = "; ".join(error.message for error in errors[:SHOWN_RECORD_ERRORS])
        more = f" and {len(errors) - SHOWN_RECORD_ERRORS} more"
        super().__init__(
            ErrorCode.INVALID_TIMESTAMP if timestamps else ErrorCode.INVALID_RECORD,
            shown + (more if len(errors) > SHOWN_RECORD_ERRORS else ""),
        )
        self.record_errors = errors


class ValidatedBatches:
    """Batches ready to be written. Offsets are inclusive.

    batches: the bytes to write: the caller's own buffer, changed in place, unless the codec had to
    be changed. log_append_time_ms: -1 unless the topic has LogAppendTime.
    """

    __slots__ = (
        "base_offset",
        "batches",
        "headers",
        "last_offset",
        "log_append_time_ms",
        "max_timestamp",
    )

    def __init__(
        self,
        batches: memoryview,
        headers: list[BatchHeader],
        *,
        log_append_time_ms: int = NO_TIMESTAMP,
    ) -> None:
        self.batches = batches
        self.headers = headers
        self.base_offset = headers[0].base_offset
        self.log_append_time_ms = log_append_time_ms
        last = headers[-1]
        self.last_offset = last.base_offset + last.last_offset_delta
        latest = last if len(headers) == 1 else max(headers, key=_max_timestamp)
        self.max_timestamp = latest.max_timestamp

    def place(self, next_offset: int, leader_epoch: int) -> None:
        """Assign offsets from next_offset on: the batches were checked before it was known."""
        shift = next_offset - self.base_offset
        position = 0
        for header in self.headers:
            header.base_offset += shift
            header.partition_leader_epoch = leader_epoch
            LEADER_FIELDS.pack_into(
                self.batches, position, header.base_offset, header.batch_length, leader_epoch
            )
            position += header.size_bytes
        self.base_offset += shift
        self.last_offset += shift


def _max_timestamp(header: BatchHeader) -> int:
    return header.max_timestamp


def validate_batches(
    batches: bytes | bytearray | memoryview,
    *,
    next_offset: int,
    leader_epoch: int,
    now_ms: int,
    config: ValidationConfig,
    origin: AppendOrigin,
    compacted: bool,
    produce_version: int | None = None,
    validate_records: bool = False,
) -> ValidatedBatches:
    """Check batches for an append as leader and give them offsets from next_offset on, in place.

    batches: copied if read-only; a message set of magic 0 or 1, in an old Produce version, is first
    converted to one batch (docs/adr/0011). compacted: every record needs a key. produce_version:
    that of the request, None without a Produce request. validate_records: decode every record, as
    Kafka does. Raises InvalidRecords, or KafkaError of CORRUPT_MESSAGE (length, CRC, codec),
    INVALID_RECORD, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_TIMESTAMP or
    UNSUPPORTED_COMPRESSION_TYPE; the batches may then be partly changed and must not be written.
    """
    view = _writable_batches(batches, config, produce_version)
    stamps = config.message_timestamp_type == LOG_APPEND_TIME
    headers: list[BatchHeader] = []
    pieces: list[memoryview] | None = None
    position = 0
    size = len(view)
    if size == 0:
        _refuse("there must be at least one record batch per partition")
    while position < size:
        header = _checked_header(view, position, config.max_message_bytes)
        end = position + header.batch_length + LENGTH_OVERHEAD
        batch = piece = view[position:end]
        changed = stamps
        if origin is AppendOrigin.CLIENT:
            if end != size:
                _refuse(f"one record batch per partition, here are {size - end} bytes more")
            _check_client_batch(header, produce_version)
            changed |= _check_records(batch, header, config, now_ms, compacted, validate_records)
        if config.compression_type != "producer" and not header.is_control:
            recompressed = _recompressed(batch, header, config)
            if recompressed is not None:
                changed = True
                piece = memoryview(recompressed)
                pieces = [view[:position]] if pieces is None else pieces
        if stamps:
            set_max_timestamp(piece, 0, now_ms, log_append_time=True)
        if changed:
            header = read_batch_header(piece)
        header.base_offset = next_offset
        header.partition_leader_epoch = leader_epoch
        LEADER_FIELDS.pack_into(piece, 0, next_offset, header.batch_length, leader_epoch)
        if pieces is not None:
            pieces.append(piece)
        next_offset += header.last_offset_delta + 1
        headers.append(header)
        position = end
    result = view if pieces is None else memoryview(bytearray().join(pieces))
    if len(result) > config.segment_bytes:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"{len(result)} bytes do not fit into a segment of {config.segment_bytes}",
        )
    return ValidatedBatches(result, headers, log_append_time_ms=now_ms if stamps else NO_TIMESTAMP)


def _writable_batches(
    batches: bytes | bytearray | memoryview, config: ValidationConfig, produce_version: int | None
) -> memoryview:
    """The batches to check: a message set of an old Produce version is converted, read-only bytes
    are copied.
    """
    if (
        produce_version is not None
        and produce_version < BATCHES_SINCE_PRODUCE_VERSION
        and is_legacy(batches)
    ):
        batches = to_record_batch(
            batches,
            max_message_bytes=config.max_message_bytes,
            max_decompressed_bytes=min(MAX_CONVERTED_BYTES, config.max_unpacked_bytes),
        )
    return memoryview(bytearray(batches)) if memoryview(batches).readonly else memoryview(batches)


def validate_replicated(
    batches: bytes | bytearray | memoryview, *, next_offset: int
) -> ValidatedBatches:
    """Check batches that have the leader's offsets: complete, valid CRC, offsets that ascend from
    next_offset.

    Gaps are allowed, since compaction leaves them. Raises KafkaError(CORRUPT_MESSAGE), and
    KafkaError(OFFSET_OUT_OF_RANGE) for a batch below next_offset.
    """
    view = memoryview(batches)
    headers: list[BatchHeader] = []
    position = 0
    size = len(view)
    if size == 0:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "no record batch")
    while position < size:
        header = (
            _checked_message(view, position)
            if is_legacy(view, position)
            else _checked_header(view, position, None)
        )
        if header.base_offset < next_offset or header.last_offset_delta < 0:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"a batch of offsets {header.base_offset} to {header.last_offset}, "
                f"{next_offset} is next",
            )
        next_offset = header.next_offset
        headers.append(header)
        position += header.size_bytes
    return ValidatedBatches(view, headers)


def _refuse(why: str) -> NoReturn:
    raise KafkaError(ErrorCode.INVALID_RECORD, why)


def _checked_header(view: memoryview, position: int, max_message_bytes: int | None) -> BatchHeader:
    """The header of a batch that is complete in view, not too large, and has a valid CRC."""
    left = len(view) - position
    if left <= MAGIC_POSITION:
        _refuse(f"{left} bytes are no record batch")
    magic = view[position + MAGIC_POSITION]
    if magic < MAGIC:
        _refuse(f"only record batches of magic {MAGIC} are taken, not of magic {magic}")
    if left < BATCH_OVERHEAD:
        (length,) = LENGTH_FIELD.unpack_from(view, position)
        if length >= BATCH_OVERHEAD - LENGTH_OVERHEAD:
            _refuse(f"a batch is cut short: {left} bytes")
    header = read_batch_header(view, position)
    if header.size_bytes > left:
        _refuse(f"a batch is cut short: {left} bytes of {header.size_bytes}")
    if max_message_bytes is not None and header.size_bytes > max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {header.size_bytes} bytes, max.message.bytes is {max_message_bytes}",
        )
    if not check_crc(view, position, header):
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"the CRC is not {header.crc}, as the batch says"
        )
    return header


def _checked_message(view: memoryview, position: int) -> BatchHeader:
    """The header of a message of magic 0 or 1 that a leader has in its log, with a valid CRC."""
    header = read_any_header(view, position)
    if not check_any_crc(view, position, header):
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"a message of offset {header.base_offset} is not sound"
        )
    return header


def _check_client_batch(header: BatchHeader, produce_version: int | None) -> None:
    """Reject batches that a client may not send, by the header alone."""
    if header.base_offset != 0:
        _refuse(f"the base offset must be 0, not {header.base_offset}")
    if header.last_offset_delta < 0:
        _refuse(f"the last offset delta is {header.last_offset_delta}")
    if header.record_count <= 0:
        _refuse(f"a batch of {header.record_count} records")
    if header.record_count != header.last_offset_delta + 1:
        _refuse(
            f"{header.record_count} records with a last offset delta of {header.last_offset_delta}"
        )
    if header.is_control:
        _refuse("clients may not write control records")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        _refuse(
            f"producer {header.producer_id} sent epoch {header.producer_epoch} and "
            f"sequence {header.base_sequence}"
        )
    if header.is_log_append_time:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP, "producers may not set the timestamp type LogAppendTime"
        )
    codec = header.attributes & CODEC_MASK
    if codec > Compression.ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression type {codec} is not known"
        )
    if header.record_count > most_records(codec, header.size_bytes):
        _refuse(f"{header.record_count} records in a batch of {header.size_bytes} bytes")
    if (
        codec == Compression.ZSTD
        and produce_version is not None
        and produce_version < ZSTD_SINCE_PRODUCE_VERSION
    ):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"zstd needs Produce version {ZSTD_SINCE_PRODUCE_VERSION}, not {produce_version}",
        )


def _check_records(
    batch: memoryview,
    header: BatchHeader,
    config: ValidationConfig,
    now_ms: int,
    compacted: bool,
    validate_records: bool,
) -> bool:
    """Check timestamps by the header where that suffices, else record by record.

    A lower bound after 1970 requires the timestamp of each record: the header has only the first
    and the largest. Returns whether the max timestamp of the header was wrong and has been
    corrected, in place.
    """
    latest = earliest = None
    if config.message_timestamp_type != LOG_APPEND_TIME:
        latest = now_ms + config.message_timestamp_after_max_ms
        if config.message_timestamp_before_max_ms < now_ms:
            earliest = now_ms - config.message_timestamp_before_max_ms
    too_late = latest is not None and header.max_timestamp > latest
    if not (compacted or validate_records or too_late or earliest is not None):
        return False
    errors: list[RecordError] = []
    max_timestamp = NO_TIMESTAMP
    records = iter_records(batch, header, max_decompressed_bytes=config.max_unpacked_bytes)
    for index, record in enumerate(records):
        timestamp = record.timestamp
        max_timestamp = max(max_timestamp, timestamp)
        if record.offset != index:
            message = f"record {index} has offset {record.offset}"
            errors.append(RecordError(index, ErrorCode.INVALID_RECORD, message))
        elif compacted and record.key is None:
            errors.append(RecordError(index, ErrorCode.INVALID_RECORD, NO_KEY))
        elif timestamp != NO_TIMESTAMP and (
            (latest is not None and timestamp > latest)
            or (earliest is not None and timestamp < earliest)
        ):
            message = (
                f"timestamp {timestamp} of record {index} is not between {earliest or 0} "
                f"and {latest}"
            )
            errors.append(RecordError(index, ErrorCode.INVALID_TIMESTAMP, message))
        if len(errors) >= MAX_RECORD_ERRORS:
            break
    if errors:
        raise InvalidRecords(errors)
    if max_timestamp == header.max_timestamp:
        return False
    set_max_timestamp(batch, 0, max_timestamp, log_append_time=False)
    return True


def _recompressed(
    batch: memoryview, header: BatchHeader, config: ValidationConfig
) -> bytearray | None:
    """The batch in the topic's codec; None if it already has that codec."""
    level = None
    match config.compression_type:
        case "uncompressed":
            target = Compression.NONE
        case "gzip":
            target, level = Compression.GZIP, config.compression_gzip_level
        case "snappy":
            target = Compression.SNAPPY
        case "lz4":
            target, level = Compression.LZ4, config.compression_lz4_level
        case "zstd":
            target, level = Compression.ZSTD, config.compression_zstd_level
        case _:
            return None
    if target is header.codec:
        return None
    limit = config.max_unpacked_bytes
    if target is Compression.NONE:
        limit = min(limit, config.max_message_bytes)  # a larger batch will be rejected
    changed = recompress(batch, header, target, level=level, max_decompressed_bytes=limit)
    if len(changed) > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {len(changed)} bytes in codec {target.name.lower()}, max.message.bytes "
            f"is {config.max_message_bytes}",
        )
    return changed
