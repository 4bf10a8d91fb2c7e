"""Which processes have started which (Linux), and the end of all of them."""

from __future__ import annotations

import os
import signal
import subprocess
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


def kill_with_children(process: subprocess.Popen[bytes]) -> None:
    """kill -9 of a process and all that it has started, and wait for it."""
    parents = process_parents()
    for pid in [process.pid, *(pid for pid in parents if is_below(pid, process.pid, parents))]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()
