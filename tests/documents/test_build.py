"""`mkdocs build --strict`, where mkdocs is installed (`make docs` installs it)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents.pages import ROOT


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: make docs")
    pytest.importorskip("material", reason="mkdocs-material is not installed: make docs")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    commands = (tmp_path / "commands.html").read_text()
    assert 'id="kbroker-topics-create"' in commands
    for page in ("index", "compatibility", "configuration-keys", "adr/0001-compiled-codecs"):
        text = (tmp_path / f"{page}.html").read_text()
        assert "<h1" in text
        assert 'src="http' not in text and 'rel="stylesheet" href="http' not in text
