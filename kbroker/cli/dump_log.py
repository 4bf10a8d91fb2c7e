"""`kbroker dump-log`: what is in the files of a log directory."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kbroker.cli.console.output import counted, note, progress
from kbroker.model import StartupError

if TYPE_CHECKING:
    from kbroker.log.tools.dump import RecordText

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
    SHARE_STATE = "share-state"


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("dump-log", epilog=EPILOG)
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
    """Show or verify the files of a log.

    As Kafka's dump tool does: batches, index entries, producer snapshots, checkpoints.
    """
    from kbroker.log.storage.files import LogDirectoryError
    from kbroker.log.tools.dump import DumpError, dump_file

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
    from kbroker.log.storage.files import LogDirectoryError
    from kbroker.log.tools.findings import Problem
    from kbroker.log.tools.verify import data_bytes, verify_folder

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
    found = "nothing is wrong" if not problems else counted(problems, "problem")
    note(f"checked {counted(files, 'file')} with {counted(size_bytes, 'byte')} of batches: {found}")
    if problems:
        raise typer.Exit(1)


def _files(paths: list[Path]) -> list[Path]:
    from kbroker.log.tools.dump import TEXT_FILES

    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = [file for file in sorted(path.iterdir()) if file.is_file()]
            known = [file for file in inside if file.suffix in _KINDS or file.name in TEXT_FILES]
            if not known:
                raise StartupError(
                    f"{path}: no files of a log; name the directory of a partition, or use --verify"
                )
            files += known
        elif path.exists():
            files.append(path)
        else:
            raise StartupError(f"{path}: no such file or directory")
    return files


_KINDS = frozenset({".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".checkpoint"})


def _decoder(decode: Decode) -> RecordText:
    from kbroker.cli import record_decoders

    return {
        Decode.METADATA: record_decoders.metadata_text,
        Decode.OFFSETS: record_decoders.offsets_text,
        Decode.TRANSACTIONS: record_decoders.transactions_text,
        Decode.SHARE_STATE: record_decoders.share_state_text,
    }[decode]
