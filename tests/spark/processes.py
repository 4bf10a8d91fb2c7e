"""Processes of Spark: their Python, which have started which (Linux), and the end of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path


def process_parents() -> dict[int, int]:
    """Id of each process to that of its parent."""
    found: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        found[int(path.parent.name)] = int(fields[1])
    return found


def is_below(pid: int, ancestor: int, parents: Mapping[int, int]) -> bool:
    """Whether a process was started by another, or by one that is below that."""
    while pid in parents:
        pid = parents[pid]
        if pid == ancestor:
            return True
    return False


def write_python(path: Path, *folders: Path) -> None:
    """Write a Python that knows the installed packages and those in `folders`, but no package that
    is installed by a link to its sources, as kbroker is in a checkout.
    """
    known = os.pathsep.join((*map(str, folders), sysconfig.get_path("purelib")))
    command = f'PYTHONPATH="$PYTHONPATH:{known}" exec {sys.executable} -S "$@"'
    path.write_text(f"#!/bin/sh\n{command}\n")
    path.chmod(0o755)


def kill_with_children(process: subprocess.Popen[bytes]) -> None:
    """kill -9 of a process and all that it has started, and wait for it."""
    parents = process_parents()
    for pid in [process.pid, *(pid for pid in parents if is_below(pid, process.pid, parents))]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()
