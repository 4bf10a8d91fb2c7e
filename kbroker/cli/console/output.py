"""Prints rows (a table on a terminal, tab-separated lines or JSON in a pipe), notes and
progress.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Final, Protocol

import typer

Cell = str | int | float | Sequence[str | int] | None
"""A list is an array in JSON; as text its items stand behind one another, commas between."""


def show(
    rows: Sequence[Mapping[str, Cell]],
    columns: Sequence[str],
    *,
    as_json: bool,
    wide: Collection[str] = (),
    sections: Collection[str] = (),
) -> None:
    """Print rows. columns: their keys, in order; all of them are in the JSON too. wide: columns
    whose cells are broken into lines where the table does not fit on the terminal. sections:
    columns that stand above a table of their own there, for rows that have the same in them.
    """
    if as_json:
        for row in rows:
            print(json.dumps({name: row.get(name) for name in columns}, ensure_ascii=False))
    elif sys.stdout.isatty():
        _sections(rows, columns, wide, sections)
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


def _items_below_one_another(cell: Cell) -> str:
    """A list with a line for each item."""
    if not isinstance(cell, Sequence) or isinstance(cell, str) or not cell:
        return _plain(cell)
    return ",\n".join(_plain(item) for item in cell)


GAP: Final = 2
MIN_WIDE: Final = 8
"""Columns between two cells, and of a cell that is broken into lines."""


def _sections(
    rows: Sequence[Mapping[str, Cell]],
    columns: Sequence[str],
    wide: Collection[str],
    sections: Collection[str],
) -> None:
    inner = [name for name in columns if name not in sections]

    def title(row: Mapping[str, Cell]) -> str:
        return "  ".join(_plain(row.get(name)) for name in columns if name in sections)

    if not sections or not rows:
        _table(rows, inner, wide)
    for count, (text, found) in enumerate(groupby(rows, title) if sections else ()):
        print(f"\n{text}" if count else text)
        _table(list(found), inner, wide)


def _table(
    rows: Sequence[Mapping[str, Cell]], columns: Sequence[str], wide: Collection[str]
) -> None:
    """Wider than the terminal where it has to be: a name that is cut or wrapped is no longer a
    name that can be copied. Before that headings, lists and the cells of wide columns get more
    lines.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, emoji=False, highlight=False)
    cells = [[_plain(row.get(name)) for name in columns] for row in rows]
    headings = [name.replace("_", " ") for name in columns]
    widths = _widths(headings, cells)
    if sum(widths) > console.width:
        headings = [heading.replace(" ", "\n") for heading in headings]
        cells = [[_items_below_one_another(row.get(name)) for name in columns] for row in rows]
        widths = _widths(headings, cells)
        for index in sorted(range(len(columns)), key=lambda index: -widths[index]):
            if columns[index] in wide:
                excess = max(sum(widths) - console.width, 0)
                widths[index] = max(widths[index] - excess, min(widths[index], MIN_WIDE + GAP))
    console.width = max(console.width, sum(widths))
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    for index, name in enumerate(columns):
        table.add_column(
            headings[index],
            justify="right" if _is_numeric([row.get(name) for row in rows]) else "left",
            no_wrap=name not in wide,
            overflow="fold",
            width=widths[index] - GAP,
        )
    for line in cells:
        table.add_row(*line)
    console.print(table)


def _widths(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    """Columns on the screen that each column of a table takes, the gap behind it included."""
    from rich.cells import cell_len

    return [
        GAP
        + max(
            *(cell_len(word) for word in heading.split("\n")),
            *(cell_len(part) for line in cells for part in line[index].split("\n")),
            1,
        )
        for index, heading in enumerate(headings)
    ]


def _is_numeric(cells: Sequence[Cell]) -> bool:
    return any(cell is not None for cell in cells) and all(
        cell is None or (isinstance(cell, int | float) and not isinstance(cell, bool))
        for cell in cells
    )


def note(text: str) -> None:
    """Print a note for the user on standard error."""
    print(text, file=sys.stderr)


def counted(count: int, noun: str) -> str:
    """`1 record`, `2,000 records`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def report(
    rows: Sequence[Mapping[str, Cell]], text: Callable[[Mapping[str, Cell]], str], *, as_json: bool
) -> None:
    """Say what was done: a note for each row, or its JSON on standard output. text: the note."""
    for row in rows:
        if as_json:
            print(json.dumps(row, ensure_ascii=False))
        else:
            note(text(row))


def report_failures(failures: Sequence[Exception]) -> None:
    """A line for each of several things that could not be done, and exit code 1 if there is one.

    For commands that are given several names: what was done for the others was said before.
    """
    for failure in failures:
        note(f"kbroker: {failure}")
    if failures:
        raise typer.Exit(1)


class ProgressDisplay(Protocol):
    """Shows progress."""

    def advance(self, count: int = 1) -> None:
        """Count items as done."""
        ...


class _Silent:
    def advance(self, count: int = 1) -> None:
        """Show nothing: standard error is no terminal."""


@contextmanager
def progress(what: str, total: int | None = None, *, visible: bool) -> Iterator[ProgressDisplay]:
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
