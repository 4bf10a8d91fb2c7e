"""Names of what a run makes outside its process: network namespaces and mounts.

A name says which process owns it, `kbt-PID-START-COUNT-MEMBER`, so a later run can remove what a
killed run left, and leaves alone what belongs to a run that is under way. START is the owner's
start time (field 22 of /proc/PID/stat): process ids are reused.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Final

NAMESPACES: Final = Path("/run/netns")
MOUNTS: Final = Path("/proc/self/mounts")
KILL_TIMEOUT_S: Final = 10.0

_NAME: Final = re.compile(r"kbt-(?P<pid>\d+)-(?P<start>\d+)-\d+-\w+")
_LOCK: Final = Path(tempfile.gettempdir()) / "kbt.lock"
_counts: Final = count()


def new_run_name() -> str:
    """Begins every name of one cluster of this process."""
    pid = os.getpid()
    return f"kbt-{pid}-{start_time_of(pid)}-{next(_counts)}"


def is_abandoned(name: str) -> bool:
    """Whether it is such a name, and its owner has ended."""
    match = _NAME.fullmatch(name)
    return match is not None and start_time_of(int(match["pid"])) != int(match["start"])


def remove_abandoned() -> list[str]:
    """Remove the namespaces and mounts of runs that were killed, and end their processes. Returns
    the names. Runs that begin at the same time take turns.
    """
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        removed = []
        if NAMESPACES.is_dir():
            for path in sorted(NAMESPACES.iterdir()):
                if is_abandoned(path.name):
                    remove_namespace(path.name)
                    removed.append(path.name)
        for line in MOUNTS.read_text().splitlines():
            source, target = line.split(" ")[:2]
            if is_abandoned(source):
                unmount(target)
                removed.append(source)
        return removed


def remove_namespace(name: str) -> None:
    """Kill the processes inside, by their ids, and delete the network namespace."""
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while pids := _pids_inside(name):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {pids} in the network namespace {name} do not end")
        time.sleep(0.02)
    subprocess.run(["ip", "netns", "delete", name], check=True)


def unmount(target: str) -> None:
    """Detach a mount at once, also where a process still has files open in it."""
    subprocess.run(["umount", "--lazy", target], check=True)


def _pids_inside(name: str) -> list[int]:
    found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


def start_time_of(pid: int) -> int | None:
    """In clock ticks since the machine started; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = text.rpartition(")")[2].split()
    return None if state == "Z" else int(fields[18])
