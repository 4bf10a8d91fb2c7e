"""The manual page and the completion scripts that a wheel installs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts import manual
from tests.cli.test_app import TREE

ROOT = Path(__file__).parents[2]
PAGE = manual.page()
REQUESTS = {".TH", ".SH", ".SS", ".PP", ".TP", ".RS", ".RE", ".nf", ".fi", ".nh", ".ad", r".\""}


@pytest.mark.parametrize("path", list(manual.files()), ids=lambda path: path.name)
def test_files_are_up_to_date(path: Path) -> None:
    """`python -m scripts.manual` writes them."""
    assert path.read_text() == manual.files()[path]


def plain(roff: str) -> str:
    """What is read of a line of roff."""
    for name, sign in (("(aq", "'"), ("(ga", "`"), ("(ha", "^"), ("(ti", "~"), ("-", "-")):
        roff = roff.replace(f"\\{name}", sign)
    return re.sub(r"\\(?:f[BIR]|&)", "", roff).replace(r"\e", "\\")


def test_lines_are_requests_that_man_knows_or_text() -> None:
    for line in PAGE.splitlines():
        assert line
        if line.startswith((".", "'")):
            assert line.split(" ")[0] in REQUESTS, line
        else:
            assert not re.search(r"\\(?!e|-|f[BIR]|&|\((?:aq|ga|ha|ti))", line), line


def test_every_section_is_closed() -> None:
    depth = 0
    is_filled = True
    for line in PAGE.splitlines():
        request = line.split(" ")[0]
        depth += (request == ".RS") - (request == ".RE")
        assert depth in (0, 1)
        if request in (".nf", ".fi"):
            assert is_filled is (request == ".nf"), line
            is_filled = request == ".fi"
        if request in (".SH", ".SS"):
            assert (depth, is_filled) == (0, True), line
    assert (depth, is_filled) == (0, True)
    titles = re.findall(r"^\.SH (.*)$", PAGE, re.MULTILINE)
    assert titles == [
        *("NAME", "SYNOPSIS", "DESCRIPTION", "CLIENT OPTIONS", "COMMANDS"),
        *("ENVIRONMENT", "FILES", "EXIT STATUS"),
    ]


def test_every_command_has_its_section() -> None:
    found = re.findall(r"^\.SS \\fB(.*?)\\fR", PAGE, re.MULTILINE)
    assert list(map(plain, found)) == [" ".join(["kbroker", *path]) for path in TREE if path]


@pytest.mark.parametrize("path", [path for path in TREE if path], ids=" ".join)
def test_a_section_has_the_options(path: tuple[str, ...]) -> None:
    sections = re.split(r"^\.S[HS] ", PAGE, flags=re.MULTILINE)
    title = manual.bold(" ".join(["kbroker", *path]))
    (text,) = [part for part in sections if part.startswith(title)]
    (shared,) = [part for part in sections if part.startswith("CLIENT OPTIONS")]
    is_client = "see CLIENT OPTIONS" in text
    for parameter in TREE[path].params:
        for option in parameter.opts if not hasattr(TREE[path], "commands") else ():
            there = shared if is_client and parameter.name in manual.CLIENT_OPTIONS else text
            if option.startswith("-"):
                assert re.search(rf"(?<![\w-]){option}(?![\w-])", plain(there)), option
    assert "Example" in text


@pytest.mark.parametrize(
    ("text", "roff"),
    [
        (".TH", r"\&.TH"),
        ("'a'", r"\(aqa\(aq"),
        (r"\tab", r"\etab"),
        ("--all", r"\-\-all"),
        ("^18~`", r"\(ha18\(ti\(ga"),
    ],
)
def test_text_is_escaped(text: str, roff: str) -> None:
    assert manual.escape(text) == roff
    assert plain(roff) == text


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_groff_shows_it() -> None:
    run = subprocess.run(
        ["groff", "-man", "-Tascii", "-ww", "-P-c", "-rLL=78n"],
        input=PAGE,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stderr == ""
    shown = re.sub(r".\x08", "", run.stdout)
    assert "kbroker topics create [OPTIONS] names..." in shown
    assert "kbroker consume 'orders-.*' --regex --offset @-1h" in shown
