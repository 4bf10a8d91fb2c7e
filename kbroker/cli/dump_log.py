"""`kbroker dump-log`: what is in the files of a log directory."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kbroker.cli.message_json import message_json
from kbroker.cli.output import note, progress
from kbroker.model import StartupError

if TYPE_CHECKING:
    from kbroker.log.dump import RecordText
    from kbroker.protocol.records import Record

EPILOG = """
A directory stands for all files in it. Reads only, also beside a running broker.

\b
Examples:
  kbroker dump-log data/orders-0 --records
  kbroker dump-log data/__cluster_metadata-0 --decode metadata
  kbroker dump-log data/__consumer_offsets-7 --decode offsets
  kbroker dump-log data --verify
"""


class Decode(StrEnum):
    """What keys and values are read as."""

    METADATA = "metadata"
    OFFSETS = "offsets"
    TRANSACTIONS = "transactions"


def dump_log(
    paths: Annotated[list[Path], typer.Argument(help="Segments, indexes, snapshots; directories.")],
    records: Annotated[
        bool, typer.Option("--records", "--print-data-log", "-r", help="The records too.")
    ] = False,
    decode: Annotated[
        Decode | None, typer.Option("--decode", "-d", help="Read keys and values as these.")
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Check whole data folders; with --records unpack every record too."
        ),
    ] = False,
) -> None:
    """Show the batches and index entries of log files, as Kafka's dump tool does."""
    from kbroker.log.dump import DumpError, dump_file
    from kbroker.log.files import LogDirectoryError

    if verify:
        _verify(paths, records=records)
        return
    text = None if decode is None else _decoder(decode)
    files = _files(paths)
    failures = 0
    with progress("files", len(files), visible=not sys.stdout.isatty()) as done:
        for path in files:
            try:
                print(f"Dumping {path}")
                for line in dump_file(
                    path, records=records or decode is not None, record_text=text
                ):
                    print(line)
            except (DumpError, LogDirectoryError) as error:
                failures += 1
                note(f"kbroker: {error}")
            done.advance()
    if failures:
        raise typer.Exit(1)


def _verify(paths: list[Path], *, records: bool) -> None:
    """A line for each thing that is wrong, and a last one that counts; exit code 1 if there was
    any.
    """
    from kbroker.log.files import LogDirectoryError
    from kbroker.log.verify import Problem, data_bytes, verify_folder

    for path in paths:
        if not path.is_dir():
            raise StartupError(f"{path}: no such directory; --verify checks whole data folders")
    problems = files = size_bytes = 0
    try:
        total = sum(data_bytes(path) for path in paths)
        with progress("bytes", total, visible=True) as done:
            for path in paths:
                for finding in verify_folder(path, records=records):
                    if isinstance(finding, Problem):
                        problems += 1
                        print(finding, flush=True)
                    else:
                        files += 1
                        size_bytes += finding.size_bytes
                        done.advance(finding.size_bytes)
    except LogDirectoryError as error:
        raise StartupError(str(error)) from error
    found = "nothing is wrong" if not problems else f"{problems} things are wrong"
    note(f"{files} files with {size_bytes} bytes of batches checked: {found}")
    if problems:
        raise typer.Exit(1)


def _files(paths: list[Path]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = [file for file in sorted(path.iterdir()) if file.is_file()]
            files += [file for file in inside if file.suffix in _KINDS or file.name in _NAMES]
        elif path.exists():
            files.append(path)
        else:
            raise StartupError(f"{path}: no such file or directory")
    return files


_KINDS = frozenset({".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".checkpoint"})
_NAMES = frozenset({"leader-epoch-checkpoint", "partition.metadata", "quorum-state"})


def _decoder(decode: Decode) -> RecordText:
    match decode:
        case Decode.METADATA:
            return _metadata_text
        case Decode.OFFSETS:
            return _offsets_text
        case Decode.TRANSACTIONS:
            return _transactions_text


def _metadata_text(record: Record) -> str:
    from kbroker.metadata.records import decode_record

    return " payload: " + message_json(decode_record(bytes(record.value or b"")))


def _offsets_text(record: Record) -> str:
    from kbroker.coordinator.records import decode_record

    decoded = decode_record(record.key, record.value)
    if decoded is None:
        return f" key: {_hex(record.key)} payload: {_hex(record.value)}"
    return f" key: {message_json(decoded.key)} payload: {message_json(decoded.value)}"


def _transactions_text(record: Record) -> str:
    from kbroker.protocol.codec import decode
    from kbroker.protocol.messages.transaction_records import (
        TransactionLogKey,
        TransactionLogValue,
    )

    key, value = record.key or b"", record.value
    decoded_key, _ = decode(TransactionLogKey, key, int.from_bytes(key[:2], "big"), 2)
    if value is None:
        return f" key: {message_json(decoded_key)} payload: null"
    decoded_value, _ = decode(TransactionLogValue, value, int.from_bytes(value[:2], "big"), 2)
    return f" key: {message_json(decoded_key)} payload: {message_json(decoded_value)}"


def _hex(data: bytes | None) -> str:
    return "null" if data is None else json.dumps(bytes(data).hex())
