"""Which Java a Spark of this installation will run on, found out before Spark prints forty lines
about it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache

SUPPORTED = (17, 21)
"""Java releases that Spark 4.0 runs on."""

ADVICE = (
    "Spark needs Java 17 or 21{found}: install one "
    "(Debian, Ubuntu: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17) or point JAVA_HOME at it"
)


def java_command() -> str | None:
    """The java program Spark would start: JAVA_HOME's if set, else the one on PATH; None if there
    is none.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        candidate = os.path.join(home, "bin", "java")
        return candidate if os.access(candidate, os.X_OK) else None
    return shutil.which("java")


@cache
def java_major_version(command: str) -> int | None:
    """The major version `command -version` prints (8 for 1.8), None if it can't be run or read.
    Asked of each command once in a process, since it starts a JVM.
    """
    try:
        run = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', run.stderr + run.stdout)
    return int(match.group(1)) if match else None


def java_problem() -> str | None:
    """None if Spark can start, else one line that says what is missing and how to get it."""
    command = java_command()
    if command is None:
        home = os.environ.get("JAVA_HOME")
        return ADVICE.format(
            found=f"; JAVA_HOME={home} has none" if home else " and there is none on PATH"
        )
    version = java_major_version(command)
    if version not in SUPPORTED:
        return ADVICE.format(
            found=f"; {command} is {version if version else 'of an unknown version'}"
        )
    return None
