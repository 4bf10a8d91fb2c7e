"""Every verb that `test_terminal` does not look at, as a process: with a terminal of 80 columns for
its standard output, and in a pipe. Together they have every verb of `kbroker`.
"""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from kbroker.testing import EmbeddedBroker
from spark_jobs.java import java_problem
from tests.cli.console.test_output import without_style
from tests.cli.test_app import LEAVES
from tests.cli.test_document import prepare_transactions
from tests.cli.test_terminal import ROWS
from tests.cli.test_transactions import hang

COLUMNS: Final = 80
TOPIC: Final = "orders"
CONFIG: Final = Path(__file__).parents[2] / "config" / "server.properties"


class Verb(NamedTuple):
    """arguments: $N is 1 at a terminal and 2 in a pipe, $FOLDER a folder for files. code: what the
    command ends with. says: is on standard output or error. lines: its lines are not made for a
    terminal, they are as long as what they show. silent: nothing is on standard output.
    """

    arguments: str
    says: str
    code: int = 0
    lines: bool = False
    silent: bool = True


VERBS: Final[Mapping[str, Verb]] = {
    "completion": Verb("bash", "complete", lines=True, silent=False),
    "config check": Verb(str(CONFIG), "a broker can start with it"),
    "configs set": Verb(f"topic {TOPIC} segment.ms=700000$N", "segment.ms"),
    "configs unset": Verb(f"topic {TOPIC} segment.ms", "segment.ms"),
    "dump-log": Verb(f"$FOLDER/data/{TOPIC}-0", "baseOffset: 0", lines=True, silent=False),
    "format": Verb(
        "-o log.dirs=$FOLDER/formatted-$N", "metadata.version", lines=True, silent=False
    ),
    "groups delete": Verb("doomed-$N", "doomed-$N"),
    "groups delete-offsets": Verb(f"forgetful-$N {TOPIC}", "forgetful-$N"),
    "groups translate": Verb("doomed-$N --to-group copy", "kbroker groups: ", code=1),
    "jobs": Verb("", "Usage: kbroker jobs", silent=False),
    "perf latency": Verb("latencies -n 3", "Avg latency", silent=False),
    "perf produce": Verb(f"{TOPIC} -n 3", "3 records sent", lines=True, silent=False),
    "produce": Verb(f"{TOPIC} -f $FOLDER/lines.txt", f"2 records to {TOPIC}"),
    "profile create": Verb("made-$N -b localhost:9092", "made-$N"),
    "profile delete": Verb("doomed-$N --yes", "doomed-$N"),
    "profile set": Verb("kept -X linger.ms=1$N", "kept"),
    "profile use": Verb("kept", "kept"),
    "quotas set": Verb("--user made-$N producer_byte_rate=1048576", "made-$N"),
    "quotas unset": Verb("--user doomed-$N producer_byte_rate", "doomed-$N"),
    "sim": Verb("--seed 3 --minutes 0.02", "seed 3: no anomaly", silent=False),
    "spark-conf": Verb("--packages", "org.apache.spark:", lines=True, silent=False),
    "topics add-partitions": Verb("grown-$N --add 2", "grown-$N has 3 partitions"),
    "topics alter": Verb(f"{TOPIC} --set retention.ms=70000000$N", TOPIC),
    "topics clone": Verb(f"{TOPIC} cloned-$N", "cloned-$N"),
    "topics create": Verb("made-$N -p 2", "made-$N"),
    "topics delete": Verb("doomed-$N --yes", "doomed-$N"),
    "topics snapshot": Verb(f"{TOPIC} --output $FOLDER/snapshot-$N", "$FOLDER/snapshot-$N"),
    "transactions abort": Verb("hanging-$N 0 --start-offset 0", "hanging-$N"),
    "transactions describe": Verb("payments-1", "payments-1", silent=False),
}
SERVE: Final = "serve"
"""Runs until it is stopped, so its tests are below."""


def test_every_verb_is_here() -> None:
    """A new one needs a row, in `VERBS` or in `test_terminal.ROWS`; that it has an example in the
    documents is in `test_document`.
    """
    assert sorted([*VERBS, *ROWS, SERVE]) == sorted(" ".join(path) for path in LEAVES)


class Ran(NamedTuple):
    """A command that has ended. out: with ends of lines as in a pipe."""

    code: int
    out: str
    err: str


def run_at_a_terminal(command: list[str], folder: Path) -> Ran:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm", "NO_COLOR": "1"}
    seen = b""
    with (folder / "stderr.txt").open("w+") as errors:
        process = subprocess.Popen(
            command, stdout=theirs, stderr=errors, stdin=subprocess.DEVNULL, env=environment
        )
        os.close(theirs)
        try:
            while chunk := os.read(ours, 65536):
                seen += chunk
        except OSError:  # Linux ends a terminal that nothing has open any more with EIO
            pass
        finally:
            os.close(ours)
            code = process.wait(60)
        errors.seek(0)
        return Ran(code, without_style(seen.decode()).replace("\r\n", "\n"), errors.read())


def run_in_a_pipe(command: list[str], folder: Path) -> Ran:
    del folder
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("verbs")
    (made / "lines.txt").write_text("one\ntwo\n")
    (made / "data").mkdir()
    return made


@pytest.fixture(scope="module", autouse=True)
def broker(folder: Path) -> Iterator[EmbeddedBroker]:
    """With all that the verbs change, once for each of the two runs."""
    from kbroker.cli.app import run

    with EmbeddedBroker(data=folder / "data") as made, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KBROKER_BOOTSTRAP", made.bootstrap_servers)
        patch.setenv("KBROKER_PROFILES_FILE", str(folder / "profiles.json"))
        for topic in (TOPIC, *(f"{name}-{n}" for n in (1, 2) for name in ("grown", "doomed"))):
            made.create_topic(topic)
        assert run(["produce", TOPIC, "-f", str(folder / "lines.txt")]) == 0
        for n in "12":
            made.create_topic(f"hanging-{n}")
            assert hang(made, f"hanging-{n}") == 0
            for group in ("doomed", "forgetful"):
                assert run(["consume", TOPIC, "-g", f"{group}-{n}", "-e", "-n", "1"]) == 0
            assert run(["quotas", "set", "--user", f"doomed-{n}", "producer_byte_rate=9"]) == 0
            assert run(["profile", "create", f"doomed-{n}", "-b", "localhost:1"]) == 0
        assert run(["profile", "create", "kept", "-b", made.bootstrap_servers]) == 0
        prepare_transactions(made)
        yield made


RUNS: Final[Mapping[str, Callable[[list[str], Path], Ran]]] = {
    "1": run_at_a_terminal,
    "2": run_in_a_pipe,
}


@pytest.mark.parametrize("name", VERBS)
@pytest.mark.parametrize("number", RUNS, ids=["at-80-columns", "in-a-pipe"])
def test_a_verb(folder: Path, name: str, number: str) -> None:
    if name == "spark-conf" and (problem := java_problem()):
        pytest.skip(problem)
    verb = VERBS[name]

    def filled(text: str) -> str:
        return text.replace("$N", number).replace("$FOLDER", str(folder))

    arguments = shlex.split(filled(verb.arguments))
    command = [sys.executable, "-m", "kbroker", *name.split(), *arguments]
    ran = RUNS[number](command, folder)
    assert ran.code == verb.code, ran.err
    assert filled(verb.says) in ran.out + ran.err
    assert bool(ran.out) is not verb.silent
    assert "\x1b" not in ran.out + ran.err
    if number == "1":
        too_long = [line for line in ran.out.splitlines() if len(line) > COLUMNS]
        assert verb.lines or not too_long, too_long
    else:
        assert "\u2500" not in ran.out
    if verb.code:
        assert ran.err.count("\n") == 1


@pytest.mark.parametrize("is_terminal", [True, False], ids=["at-80-columns", "in-a-pipe"])
def test_serve(tmp_path: Path, is_terminal: bool) -> None:
    """Its lines say where it listens, and it stops in order. Log lines are on standard error."""
    ours, theirs = pty.openpty() if is_terminal else os.pipe()
    command = [sys.executable, "-m", "kbroker", "serve", "-o", f"log.dirs={tmp_path}"]
    command += ["-o", "listeners=PLAINTEXT://127.0.0.1:0"]
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm"}
    process = subprocess.Popen(
        command, stdout=theirs, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=environment
    )
    os.close(theirs)
    try:
        seen = b""
        while b"listening on PLAINTEXT://127.0.0.1:" not in seen:
            chunk = os.read(ours, 65536)
            assert chunk, seen
            seen += chunk
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait(60)
        os.close(ours)
    assert b"\x1b" not in seen
