"""Prints rows (a table on a terminal, tab-separated lines or JSON in a pipe), notes and
progress.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import typer

Cell = str | int | float | Sequence[str | int] | None
"""A list is an array in JSON; as text its items stand behind one another, commas between."""


def show(rows: Sequence[Mapping[str, Cell]], columns: Sequence[str], *, as_json: bool) -> None:
    """Print rows. columns: their keys, in order; all of them are in the JSON too."""
    if as_json:
        for row in rows:
            print(json.dumps({name: row.get(name) for name in columns}, ensure_ascii=False))
    elif sys.stdout.isatty():
        _table(rows, columns)
    else:
        for row in rows:
            print("\t".join(_plain(row.get(name)) for name in columns))


def _plain(cell: Cell) -> str:
    """As text on one line, in which a tab can only end a cell."""
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, Sequence) and not isinstance(cell, str):
        cell = ",".join(map(str, cell)) or None
    if cell is None:
        return "-"
    text = str(cell)
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def _table(rows: Sequence[Mapping[str, Cell]], columns: Sequence[str]) -> None:
    """Wider than the terminal where it has to be: a name that is cut or wrapped is no longer a
    name that can be copied.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        numeric = bool(rows) and all(isinstance(row.get(name), int | None) for row in rows)
        heading = name.replace("_", " ")
        table.add_column(heading, justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(_plain(row.get(name)) for name in columns))
    console = Console(markup=False, emoji=False, highlight=False)
    unbounded = console.options.update(width=_WIDEST, max_width=_WIDEST)
    console.width = max(console.width, Measurement.get(console, unbounded, table).maximum)
    console.print(table)


_WIDEST = 1_000_000


def note(text: str) -> None:
    """Print a note for the user on standard error."""
    print(text, file=sys.stderr)


def counted(count: int, noun: str) -> str:
    """`1 record`, `2,000 records`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def report_failures(failures: Sequence[Exception]) -> None:
    """A line for each of several things that could not be done, and exit code 1 if there is one.

    For commands that are given several names: what was done for the others was said before.
    """
    for failure in failures:
        note(f"kbroker: {failure}")
    if failures:
        raise typer.Exit(1)


class Progress(Protocol):
    """Shows progress."""

    def advance(self, count: int = 1) -> None:
        """Count items as done."""
        ...


class _Silent:
    def advance(self, count: int = 1) -> None:
        """Show nothing: standard error is no terminal."""


@contextmanager
def progress(what: str, total: int | None = None, *, visible: bool) -> Iterator[Progress]:
    """A progress bar (a running count where total is None) on standard error, if that is a
    terminal.
    """
    if not visible or not sys.stderr.isatty():
        yield _Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = [TextColumn("{task.description}"), TextColumn("{task.completed:,.0f}")]
    with Bar(*columns, BarColumn(), TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)

        class _Shown:
            def advance(self, count: int = 1) -> None:
                bar.advance(task, count)

        yield _Shown()


def text_or_base64(name: str, data: bytes | None) -> dict[str, str | None]:
    """`{name: text}`, or `{name_base64: ...}` for bytes that are no UTF-8."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode("ascii")}
