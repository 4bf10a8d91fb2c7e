"""The examples of the guides, run as they stand but for the broker's address."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.settings.broker import BrokerConfig
from kbroker.settings.properties import parse_properties
from kbroker.testing.process import BrokerProcess
from scripts.ports import free_port, free_ports
from tests.documents.pages import GUIDES, ROOT, blocks, sections, text_of
from tests.nested_pytest import run_pytest

pytestmark = pytest.mark.clients

ADDRESS = "localhost:9092"


def free_address() -> str:
    """An address of this machine at which no process listens."""
    return f"localhost:{free_port()}"


def shell(script: str, folder: Path, address: str, *, messages: bool = False) -> str:
    """Run commands in a folder, with the address in place of the documented one. Returns what they
    print on standard output, and with messages what they say on standard error after it.
    """
    binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"KBROKER_BOOTSTRAP": address, "KBROKER_PROFILES_FILE": str(folder / "profiles.json")}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script.replace(ADDRESS, address)],
        cwd=folder,
        env={**os.environ, **own, "PATH": binaries, "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + (done.stderr if messages else "")


def elsewhere(text: str) -> str:
    """The text with free ports in place of all documented ones but that of `ADDRESS`."""
    addresses = sorted(set(re.findall(r"\blocalhost:\d+\b", text)) - {ADDRESS})
    for address, port in zip(addresses, free_ports(len(addresses)), strict=True):
        text = text.replace(address, f"localhost:{port}")
    return text


def commands(text: str) -> Iterator[str]:
    """The blocks for a shell that end by themselves."""
    for language, block in blocks(text):
        if not language and block != "kbroker serve\n":
            yield block


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as process:
        yield process


def test_getting_started(broker: BrokerProcess, tmp_path: Path) -> None:
    """In the order of the page, with one broker."""
    printed = []
    for language, block in blocks(text_of("getting-started")):
        if language == "python":
            code = block.replace(ADDRESS, broker.bootstrap_servers)
            script = tmp_path / "client.py"
            script.write_text(code)
            block = f"{sys.executable} {script}"
        elif language or block == "kbroker serve\n":
            continue
        printed.append(shell(block, tmp_path, broker.bootstrap_servers))
    assert printed[0] == "hello\n"
    assert printed[1].startswith("hello\nreaders\t")
    assert printed[2].startswith("greetings b'")
    assert "Log starting offset: 0" in printed[-1]


def test_concepts(broker: BrokerProcess, tmp_path: Path) -> None:
    (block,) = commands(text_of("concepts"))
    printed = shell(block, tmp_path, broker.bootstrap_servers)
    assert "cleanup.policy\tcompact" in printed
    assert "metadata.version" in printed


SCRIPTS = [
    pytest.param(guide, title, id=f"{guide}-{title}".replace(" ", "-"))
    for guide in ("operations", "failure-drills")
    for title, text in sections(guide).items()
    if any(commands(text))
]
EXPECTED = {
    "Three nodes": "node 2 is missed",
    "Backup": "nothing is wrong",
    "The process is killed": "one\ntwo\nthree\n",
    "The broker hangs": "the cluster does not answer\norders",
    "A file is damaged": "nothing is wrong",
    "A directory is lost": "something is offline",
}
"""What a section of that title must print somewhere."""


@pytest.mark.parametrize(("guide", "title"), SCRIPTS)
def test_scripts(guide: str, title: str, tmp_path: Path) -> None:
    """Each section in a folder of its own; it starts and stops its brokers itself."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    address = free_address()
    text = elsewhere("".join(sections(guide)[title]))
    stopping = "trap 'kill -9 $(jobs -p) 2> /dev/null || true' EXIT\n"
    printed = [
        shell(stopping + block, tmp_path, address, messages=True) for block in commands(text)
    ]
    assert EXPECTED.get(title, "") in "".join(printed)


def test_every_expectation_has_its_section() -> None:
    titles = {title for guide in ("operations", "failure-drills") for title in sections(guide)}
    assert set(EXPECTED) <= titles


TESTS = [block for language, block in blocks(text_of("testing")) if language == "python"]


def test_the_tests_of_the_guide_pass(tmp_path: Path) -> None:
    """Each block is a module of tests of a project that has nothing else."""
    for number, block in enumerate(TESTS):
        (tmp_path / f"test_{number}.py").write_text(block)
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout
    assert re.search(rf"^{len(TESTS)} passed", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize("guide", GUIDES)
def test_configurations_are_valid(guide: str) -> None:
    """Those of a block of properties, and those that a command writes to a file."""
    found = [block for language, block in blocks(text_of(guide)) if language == "properties"]
    found += re.findall(r"<<'END'\n(.*?)^END$", text_of(guide), re.MULTILINE | re.DOTALL)
    for block in found:
        config = BrokerConfig.from_properties(parse_properties(block, source=guide))
        assert config.warnings == ()
