"""The page `tools.md` of the documentation site: the commands of Apache Kafka's tools that are run
against kbroker and compared with what they print against Kafka, and where they differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from scripts.docs_markdown import code, plain, table
from scripts.kafka_jars import KAFKA_VERSION
from tests.clients.compared.row import SCRIPTS, Row
from tests.clients.compared.sessions import SESSIONS

HEAD: Final = f"""# Kafka's tools

Generated from the tests. The command line tools of Apache Kafka {KAFKA_VERSION} work with kbroker.
Each command below is run by the tests against kbroker, and its output and exit code are compared,
line by line, with what the same command prints against Apache Kafka {KAFKA_VERSION}: results, order
and error messages. Addresses, ids, times and measured figures are left out of the comparison.
"""

DIFFERENCES_HEAD: Final = """## Differences

Where kbroker differs, it does so on purpose:
"""

COMMANDS_HEAD: Final = """## Commands

`{bootstrap}` and `{controller}` are addresses, `{folder}` is a folder of files. Commands that only
make and delete what others need are left out.
"""


PREPARES: Final = re.compile(r"(create|delete) \w\w-\S+")
"""Names of rows that make or delete a topic for others."""


def rows() -> Iterator[Row]:
    """All rows, in the order in which they run."""
    for session in SESSIONS.values():
        yield from session.rows


def shell_line(row: Row) -> str:
    """The command as in a shell, without the server's address."""
    text = f"{SCRIPTS[row.tool]} {row.arguments}".replace("--bootstrap-server {bootstrap}", "")
    if row.server.startswith("--bootstrap-controller"):
        text = f"{text} {row.server}"
    return " ".join(re.sub("a{250}", "a...", text).replace("|", "\\|").split())


def differences(found: Iterable[Row]) -> list[str]:
    """One line for each reason, with the commands."""
    reasons: dict[str, list[str]] = {}
    for row in found:
        if row.differs is not None:
            reasons.setdefault(row.differs.reason, []).append(code(shell_line(row)))
    return [f"- {plain(reason)}: {', '.join(lines)}." for reason, lines in reasons.items()]


def commands(tool: str, found: Iterable[Row]) -> list[str]:
    """The table of a tool, each command once."""
    lines: dict[str, Row] = {}
    for row in found:
        if row.tool == tool and not PREPARES.fullmatch(row.name):
            lines.setdefault(shell_line(row), row)
    cells = (
        [plain(row.name), code(line), "differs" if row.differs else ""]
        for line, row in lines.items()
    )
    return table(["what", "command", ""], cells)


def page() -> str:
    """The whole page."""
    found = list(rows())
    parts = [HEAD, DIFFERENCES_HEAD, "\n".join(differences(found)) + "\n", COMMANDS_HEAD]
    for tool, script in SCRIPTS.items():
        parts.append(f"### {script}\n\n" + "\n".join(commands(tool, found)) + "\n")
    return "\n".join(parts)
