"""A run of pytest inside a test, over modules that the test has written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_pytest(folder: Path, *, timeout_s: float = 110.0) -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder as a project of its own. Raises TimeoutExpired.

    The temporary files go below the folder. Without that pytest puts them beside those of the runs
    before and, at its end, removes all but the last three: gigabytes when one was the whole suite.
    """
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--basetemp={folder / 'temporary'}"],
        cwd=folder,
        env={key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
