"""`kbroker topics snapshot`, `restore` and `clone`: arguments and what is said. What they do is in
`stopped_node`, `online` and `restoring`.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kbroker.cli.console.output import Cell, counted, note, progress, report, show
from kbroker.cli.records.produce import CompressionOption
from kbroker.cli.session import (
    DEFAULT_BOOTSTRAP,
    INT16_MAX,
    Bootstrap,
    Json,
    Yes,
    confirm,
    not_empty,
    run,
)
from kbroker.model import StartupError

if TYPE_CHECKING:
    from kbroker.cli.console.output import ProgressDisplay
    from kbroker.cli.snapshots.restoring import CheckedSnapshot, Restoring
    from kbroker.log.tools.snapshot_manifest import SnapshotManifest

SNAPSHOT_EPILOG = """
Without --data the topic is read from the running cluster up to its end as it is now. --data names
the log directories of a stopped node, all of them: full segments are linked, which takes no space
on the same disk, and the rest is copied.

\b
Examples:
  kbroker topics snapshot orders --output /backup/orders
  kbroker topics snapshot orders --data /var/lib/kbroker --output /var/lib/snapshots/orders
"""
RESTORE_EPILOG = """
The whole snapshot is checked before anything is written. Offsets are kept where the partition is
empty and the snapshot has no gap; each partition's line says whether they were. --dry-run checks
the snapshot, shows what is in it, and needs no cluster.

\b
Examples:
  kbroker topics restore /backup/orders
  kbroker topics restore /backup/orders orders-restored --replication-factor 3
  kbroker topics restore /backup/orders --dry-run
"""
CLONE_EPILOG = """
NEW gets the partitions, the replication factor and the configurations of TOPIC, and the records
that TOPIC has now, but those of aborted and open transactions.

\b
Examples:
  kbroker topics clone orders orders-test
  kbroker topics clone orders orders-test --compression zstd
"""
Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="DIR", help="A new or an empty directory.")
]
Data = Annotated[
    list[Path] | None,
    typer.Option("--data", metavar="DIR", help="Of a stopped node; repeatable."),
]
Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic to copy.", callback=not_empty)
]


def snapshot(
    topic: Topic,
    output: Output,
    data: Data = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Write a topic to a directory, online or of a stopped node."""
    linked: int | None
    with _one_line(), ExitStack() as stack:
        now_ms = time.time_ns() // 1_000_000
        if data:
            from kbroker.cli.snapshots.stopped_node import snapshot_stopped

            taken = snapshot_stopped(
                data,
                topic,
                output,
                created_ms=now_ms,
                say=note,
                bar=lambda total: _bar(stack, f"bytes of {topic}", total),
            )
            manifest, linked = taken.manifest, taken.linked_bytes
        else:
            from kbroker.cli.snapshots.online import snapshot_running

            manifest = run(
                snapshot_running(
                    bootstrap,
                    topic,
                    output,
                    created_ms=now_ms,
                    say=note,
                    bar=lambda total: _bar(stack, f"offsets of {topic}", total),
                ),
                spinner=False,
            )
            linked = 0
    row: dict[str, Cell] = {
        "topic": topic,
        "output": str(output),
        "partitions": len(manifest.partitions),
        "size_bytes": manifest.size_bytes,
        "linked_bytes": linked,
    }
    report([row], _snapshot_text, as_json=as_json)


def _bar(stack: ExitStack, what: str, total: int) -> ProgressDisplay:
    return stack.enter_context(progress(what, total, visible=True))


def _snapshot_text(row: Mapping[str, Cell]) -> str:
    def count(key: str, noun: str) -> str:
        value = row[key]
        return counted(value if isinstance(value, int) else 0, noun)

    of_them = f", {count('linked_bytes', 'byte')} of them linked" if row["linked_bytes"] else ""
    return (
        f"{row['topic']}: {count('partitions', 'partition')}, {count('size_bytes', 'byte')} in "
        f"{row['output']}{of_them}"
    )


@contextmanager
def _one_line() -> Iterator[None]:
    """An error of the disk as one that names the file."""
    from kbroker.log.storage.files import LogDirectoryError

    try:
        yield
    except LogDirectoryError as error:
        raise StartupError(str(error)) from error


def restore(
    directory: Annotated[Path, typer.Argument(metavar="SNAPSHOT", help="Its directory.")],
    topic: Annotated[
        str | None,
        typer.Argument(metavar="TOPIC", help="Named as before.", callback=not_empty),
    ] = None,
    existing: Annotated[
        bool, typer.Option("--existing", help="Write into a topic that exists.")
    ] = False,
    replication_factor: Annotated[
        int,
        typer.Option(
            *("--replication-factor", "-r"),
            max=INT16_MAX,
            min=-1,
            help="Copies; -1 for the broker's default.",
        ),
    ] = -1,
    compression: CompressionOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check and show the snapshot.")
    ] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Write a snapshot to a topic of a running cluster."""
    from kbroker.cli.snapshots.restoring import CheckedSnapshot, Restoring
    from kbroker.log.tools.snapshot_manifest import read_manifest

    manifest = read_manifest(directory)
    checked = CheckedSnapshot(directory, manifest)
    with _one_line():
        checked.check()
    if dry_run:
        _show(manifest, as_json=as_json)
        return
    name = topic or manifest.topic
    if existing:
        confirm(f"write the records of {directory} into {name}", yes=yes)
    _note_open(checked)
    restoring = Restoring(bootstrap, name, compression)
    _fill(
        restoring,
        restoring.restore(checked, is_new=not existing, replication_factor=replication_factor),
        as_json=as_json,
    )


def _show(manifest: SnapshotManifest, *, as_json: bool) -> None:
    rows: list[dict[str, Cell]] = [
        {
            "topic": manifest.topic,
            "partition": each.partition,
            "start": each.log_start_offset,
            "end": each.log_end_offset,
            "high_watermark": each.high_watermark,
            "files": len(each.files),
            "bytes": sum(file.size_bytes for file in each.files),
        }
        for each in manifest.partitions
    ]
    show(rows, list(rows[0]), as_json=as_json, sections=("topic",))


def _note_open(snapshot: CheckedSnapshot) -> None:
    for partition, content in snapshot.contents.items():
        if content.open_transactions:
            note(
                f"{snapshot.manifest.folder(partition)}: "
                f"{counted(content.open_transactions, 'transaction')} had no end in the snapshot "
                "and is left out"
            )


def clone(
    topic: Topic,
    new: Annotated[
        str, typer.Argument(metavar="NEW", help="The name of the copy.", callback=not_empty)
    ],
    compression: CompressionOption = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Copy a topic with its records to a new topic."""
    from kbroker.cli.snapshots.restoring import Restoring

    restoring = Restoring(bootstrap, new, compression)
    _fill(restoring, restoring.clone(topic), as_json=as_json)


# Any: what asyncio gives a coroutine
def _fill(restoring: Restoring, work: Coroutine[Any, Any, None], *, as_json: bool) -> None:
    from kbroker.cli.snapshots.filling import row_text

    began = time.monotonic()
    try:
        run(work, spinner=False)
    except BaseException:  # say what stands there
        written = [each.row() for each in restoring.filled.values() if each.records]
        report(written, row_text, as_json=as_json)
        raise
    rows = list(restoring.filled.values())
    report([each.row() for each in rows], row_text, as_json=as_json)
    count = counted(sum(each.records for each in rows), "record")
    seconds = max(time.monotonic() - began, 0.001)
    note(f"{count} to {restoring.topic} in {seconds:.1f} s")
