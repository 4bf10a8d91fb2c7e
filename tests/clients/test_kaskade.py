"""kaskade, a terminal UI for Kafka, in tmux: a topic, its group and messages on its screen."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.adapters import wait_until
from tests.clients.admin.subjects import Subjects
from tests.clients.admin.toolchains import python_packages

pytestmark = [
    pytest.mark.clients,
    pytest.mark.slow,
    pytest.mark.timeout(900),  # the first run installs fifty packages
    pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux"),
]

REQUIREMENTS = Path(__file__).parents[2] / "requirements" / "kaskade.txt"
SCREEN_S = 60.0


class Terminal:
    """One program in a tmux of its own, 140 columns wide."""

    def __init__(self, socket: Path, command: list[str]) -> None:
        self._tmux = ["tmux", "-f", os.devnull, "-S", str(socket)]
        size = ("-x", "140", "-y", "40")
        self._run("new-session", "-d", *size, shlex.join(command))

    def _run(self, *arguments: str, check: bool = True) -> str:
        words = [*self._tmux, *arguments]
        return subprocess.run(words, check=check, capture_output=True, text=True).stdout

    def screen(self) -> str:
        """What is on it; empty once the program has ended."""
        return self._run("capture-pane", "-p", check=False)

    def press(self, *keys: str) -> None:
        self._run("send-keys", *keys)

    def shows(self, *texts: str) -> None:
        """Wait until all of these are on the screen."""
        deadline = time.monotonic() + SCREEN_S
        while not all(text in (screen := self.screen()) for text in texts):
            assert time.monotonic() < deadline, f"{texts} are not all on\n{screen}"
            time.sleep(0.2)

    def close(self) -> None:
        self._run("kill-server", check=False)


@pytest.fixture
def kaskade(tmp_path: Path, bootstrap: str) -> Iterator[Callable[..., Terminal]]:
    packages = python_packages("kaskade", REQUIREMENTS)
    opened: list[Terminal] = []

    def start(mode: str, *options: str) -> Terminal:
        program = [sys.executable, str(packages / "bin" / "kaskade"), mode, "-b", bootstrap]
        # COLUMNS and LINES of the process that runs the tests are not the terminal's.
        env = ["env", "-u", "COLUMNS", "-u", "LINES", f"PYTHONPATH={packages}"]
        command = [*env, *program, *options]
        opened.append(Terminal(tmp_path / f"tmux-{len(opened)}", command))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def row_of(screen: str, name: str) -> list[str]:
    """The cells of a table's row, without its frame."""
    rows = (line.strip("│ ").split() for line in screen.splitlines())
    return next((row[1:] for row in rows if row[:1] == [name]), [])


def test_topics_and_groups(
    kaskade: Callable[..., Terminal], bootstrap: str, new_name: Callable[[str], str]
) -> None:
    subjects = Subjects(bootstrap, lambda stem: new_name(f"kaskade-{stem}"))
    topic = subjects.topic(2, records=5)
    group = subjects.group(topic, 3)
    terminal = kaskade("admin")
    terminal.shows(topic)
    # Partitions, replicas, in sync, groups, members, records, lag.
    expected = ["2", "1", "1", "1", "0", "≈5", "≈2"]
    wait_until(lambda: row_of(terminal.screen(), topic) == expected, SCREEN_S, "the topic's row")
    terminal.press("/")
    terminal.shows("Apply Filter")
    terminal.press("-l", topic)
    wait_until(lambda: terminal.screen().count(topic) > 1, SCREEN_S, "the topic in the field")
    terminal.press("Enter")
    terminal.shows(f"Topics [*{topic}*][1]")
    terminal.press("Enter")
    terminal.shows(f"Topic Details [{topic}]", "Partitions [2]", "Groups [1]")
    for _ in range(2):
        terminal.press("Right")
    terminal.shows(group)


def test_messages(
    kaskade: Callable[..., Terminal], bootstrap: str, new_name: Callable[[str], str]
) -> None:
    from confluent_kafka import Producer

    topic = Subjects(bootstrap, lambda stem: new_name(f"kaskade-{stem}")).topic()
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in range(3):
        producer.produce(topic, f"message number {number}", key=f"key-{number}")
    assert producer.flush(20) == 0
    terminal = kaskade("consumer", "-t", topic, "--earliest", "-k", "string", "-v", "string")
    terminal.shows(*(f"message number {number}" for number in range(3)), "key-2")
