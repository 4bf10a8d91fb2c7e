"""A table of all calls of an AdminClient: what Kafka answers to each, and the code that shows it.

    calls = AdminTable("some client")

    @calls.row("create_topics")
    def _(scene: Scene) -> None: ...

    @calls.row("create_acls", outcome="SECURITY_DISABLED")
    def _(scene: Scene) -> str: ...

Each module of tests has one table, one test that runs a row, and one that compares the rows with
the methods the client has: a new release of the client with a new method fails until it has a row.
docs/clients.md is written from the tables (`tests/clients/admin/document.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, NamedTuple, TypeVar

SERVED: Final = "served"
"""The call did what its name says, and a second look (often another call) found it done."""
LOCAL: Final = "local"
"""The call sends nothing to a broker by itself, or closes the client."""

S = TypeVar("S")


class Row(NamedTuple, Generic[S]):
    """One call. outcome: `SERVED`, `LOCAL` or the name of Kafka's error. check: makes the call and
    asserts what came of it; returns the name of the error where outcome is one, else None.
    """

    outcome: str
    check: Callable[[S], Any]


class AdminTable(Generic[S]):
    """client: its name in the documentation."""

    def __init__(self, client: str) -> None:
        self.client = client
        self.rows: dict[str, Row[S]] = {}

    def row(
        self, method: str, *, outcome: str = SERVED
    ) -> Callable[[Callable[[S], Any]], Callable[[S], Any]]:
        """Decorates what checks a method."""
        assert method not in self.rows, f"two rows of {method}"

        def keep(check: Callable[[S], Any]) -> Callable[[S], Any]:
            self.rows[method] = Row(outcome, check)
            return check

        return keep

    @property
    def outcomes(self) -> dict[str, str]:
        """The outcome of each call."""
        return {method: row.outcome for method, row in self.rows.items()}

    def run(self, method: str, scene: S) -> None:
        """Run a row. Raises AssertionError where the outcome is another one."""
        outcome, check = self.rows[method]
        assert_outcome(outcome, check(scene))


def assert_outcome(expected: str, found: str | None) -> None:
    """found: what a check returned."""
    assert found == (None if expected in (SERVED, LOCAL) else expected)


def methods_of(kind: type, *, without: Iterable[str] = ()) -> set[str]:
    """The public methods of a class, inherited ones too. without: names that are none of its
    interface.
    """
    found = {name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")}
    missing = set(without) - found
    assert not missing, f"{kind.__name__} has no {missing}"
    return found - set(without)


def expected_outcomes(served: str, *, local: str = "", **refused: str) -> dict[str, str]:
    """The table of a client that a program of another language drives: outcomes by call. Each value
    is the names of calls, between spaces; refused: by the name of Kafka's error.
    """
    found: dict[str, str] = {}
    for outcome, names in {SERVED: served, LOCAL: local, **refused}.items():
        for name in names.split():
            assert name not in found, f"two rows of {name}"
            found[name] = outcome
    return found


class Report(NamedTuple):
    """What such a program printed. methods: that the client has. outcomes: of the calls made."""

    methods: set[str]
    outcomes: dict[str, str]


def read_report(printed: str) -> Report:
    """Lines of words between tabs: `method` and a name, or `call`, a name and its outcome."""
    report = Report(set(), {})
    for line in printed.splitlines():
        match line.split("\t"):
            case ["method", name]:
                report.methods.add(name)
            case ["call", name, outcome]:
                report.outcomes[name] = outcome
            case _:
                raise ValueError(f"not a line of a report: {line}")
    return report
