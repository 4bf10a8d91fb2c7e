"""The disk of a node, full and slow."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.disk import SlowSync, SmallDisk, strace_problem
from tests.cluster.network import network_problem
from tests.cluster.run_names import MOUNTS, new_run_name

pytestmark = pytest.mark.skipif(network_problem() is not None, reason=network_problem() or "")

SYNC_FOREVER = """
import os, sys, time
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
print("ready", flush=True)
for line in sys.stdin:
    before = time.monotonic()
    os.fsync(fd)
    print(time.monotonic() - before, flush=True)
"""


def test_a_full_disk_takes_nothing_until_it_is_freed(tmp_path: Path) -> None:
    with SmallDisk(f"{new_run_name()}-d", tmp_path / "disk", 1 << 20) as disk:
        (disk.path / "kept").write_bytes(b"kept")
        disk.fill()
        with pytest.raises(OSError) as raised:
            (disk.path / "more").write_bytes(bytes(5000))
        assert raised.value.errno == errno.ENOSPC
        disk.free()
        (disk.path / "more").write_bytes(bytes(5000))
        assert (disk.path / "kept").read_bytes() == b"kept"
    assert str(tmp_path) not in MOUNTS.read_text()


@pytest.mark.skipif(strace_problem() is not None, reason=strace_problem() or "")
def test_fsync_takes_long_meanwhile(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SYNC_FOREVER, os.fspath(tmp_path / "file")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    assert process.stdin is not None and process.stdout is not None

    def sync_s() -> float:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\n")
        return float(process.stdout.readline())

    with process:
        assert process.stdout.readline() == "ready\n"
        with SlowSync(process.pid, 300):
            deadline = time.monotonic() + 10
            while sync_s() < 0.3:  # strace attaches soon
                assert time.monotonic() < deadline
        assert min(sync_s() for _ in range(3)) < 0.3
        process.stdin.close()
        assert process.wait(10) == 0
