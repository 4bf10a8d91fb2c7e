"""A broker process whose disks go: what it says, and how it ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.model import StartupError
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.testing.process import BrokerProcess
from tests.e2e.test_bad_files import create, offsets, produce
from tests.e2e.wire import call

pytestmark = pytest.mark.slow


def test_all_log_directories_are_removed(tmp_path: Path) -> None:
    dirs = [tmp_path / "d1", tmp_path / "d2"]
    overrides = {
        "log.dirs": f"{dirs[0]},{dirs[1]}",
        "metadata.log.dir": str(tmp_path / "meta"),
        "log.flush.offset.checkpoint.interval.ms": "100",
    }
    broker = BrokerProcess(tmp_path / "data", overrides=overrides).start()
    create(broker, "t")
    with socket.create_connection((broker.host, broker.port), 10) as connection:
        for directory in dirs:
            gone = directory.rename(directory.with_suffix(".gone"))  # whole, whatever is written
            shutil.rmtree(gone)
        part = ProduceRequest.PartitionProduceData(
            index=0, records=build_batch([(1_700_000_000_000, b"k", b"v", [])])
        )
        data = ProduceRequest.TopicProduceData(name="t", partition_data=[part])
        with contextlib.suppress(ConnectionError):  # it may have ended before
            call(connection, ProduceRequest(acks=1, timeout_ms=1000, topic_data=[data]), 9)
    process = broker._process
    assert isinstance(process, subprocess.Popen)
    assert process.wait(20) == 1
    lines = broker.log.read_text().splitlines()
    assert not [line for line in lines if "Traceback" in line]
    (last,) = [line for line in lines if "CRITICAL" in line]
    assert f"{tmp_path}/d" in last and "No such file" in last
    broker.kill()


class Disks:
    """File systems of a test: a mount namespace in which folders are disks of a given size."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.overrides = {
            "log.dirs": f"{folder / 'd1'},{folder / 'd2'}",
            "metadata.log.dir": str(folder / "meta"),
            "log.retention.check.interval.ms": "500",
        }
        self._holder = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", "echo ready; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._holder.stdout is not None
        self.works = self._holder.stdout.readline() == b"ready\n"

    @property
    def enter(self) -> tuple[str, ...]:
        return ("nsenter", "-t", str(self._holder.pid), "-m", "--")

    def run(self, *command: str) -> bool:
        return not subprocess.run([*self.enter, *command], capture_output=True).returncode

    def mount(self, name: str, size: str) -> None:
        path = self.folder / name
        path.mkdir(exist_ok=True)
        if not self.run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)):
            pytest.skip("no file system can be mounted here")

    def remount(self, name: str, options: str) -> None:
        assert self.run("mount", "-o", f"remount,{options}", str(self.folder / name))

    def broker(self) -> BrokerProcess:
        command = (*self.enter, sys.executable, "-m", "kbroker")
        return BrokerProcess(self.folder / "data", overrides=self.overrides, command=command)

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()
        for pipe in (self._holder.stdin, self._holder.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Disks]:
    if sys.platform != "linux" or not (shutil.which("unshare") and shutil.which("nsenter")):
        pytest.skip("no mount namespaces on this system")
    made = Disks(tmp_path)
    try:
        if not made.works:
            pytest.skip("mount namespaces need rights that this user does not have")
        yield made
    finally:
        made.close()


def lines_with(broker: BrokerProcess, *words: str) -> list[str]:
    """Its log lines with all these words; there is no traceback."""
    lines = broker.log.read_text().splitlines()
    assert not [line for line in lines if "Traceback" in line]
    return [line for line in lines if all(word in line for word in words)]


def test_a_full_disk_takes_only_its_partitions(disks: Disks) -> None:
    disks.mount("d2", "24m")
    broker = disks.broker()
    acknowledged, error = 0, 0
    with broker:
        for topic in "tu":
            create(broker, topic)
        while not error and acknowledged < 60:
            error = produce(broker, "u", bytes(900_000))
            acknowledged += not error
        assert error == ErrorCode.KAFKA_STORAGE_ERROR
        assert 5 < acknowledged < 60
        for _ in range(3):
            assert produce(broker, "t") == 0
            assert produce(broker, "u") == ErrorCode.KAFKA_STORAGE_ERROR
        assert offsets(broker, "t") == [0, 1, 2]
    assert len(lines_with(broker, "ERROR", str(disks.folder / "d2"), "No space left")) == 1
    assert len(lines_with(broker, "u-0/", "No space left")) == 1

    with disks.broker() as still_full:  # it may have room enough to be read, or not
        assert offsets(still_full, "t") == [0, 1, 2]
    disks.remount("d2", "size=64m")
    with disks.broker() as mended:
        assert offsets(mended, "u") == list(range(acknowledged))
        assert produce(mended, "u") == 0
        assert offsets(mended, "t") == [0, 1, 2]


def test_a_full_metadata_disk_ends_the_broker_and_loses_nothing(disks: Disks) -> None:
    disks.mount("meta", "1m")
    broker = disks.broker().start()
    try:
        create(broker, "t")
        assert produce(broker, "t") == 0
        filler = disks.folder / "meta" / "filler"
        disks.run("dd", "if=/dev/zero", f"of={filler}", "bs=4k")
        made = 1
        with contextlib.suppress(OSError, AssertionError):  # the broker goes in the middle of one
            while made < 500:
                create(broker, f"t{made}")
                made += 1
        assert broker.wait_for_exit(20) == 1
    finally:
        broker.kill()
    assert (
        len(lines_with(broker, "CRITICAL", "fatal error, stopping the broker", "No space left"))
        == 1
    )
    with pytest.raises(StartupError, match="code 1"):
        disks.broker().start()
    (refused,) = lines_with(broker, "kbroker: ", "No space left")
    assert str(disks.folder / "meta") in refused
    assert disks.run("rm", str(filler))
    with disks.broker() as mended:
        assert offsets(mended, "t") == [0]
        assert made < 500
        for number in range(1, made):
            assert offsets(mended, f"t{number}") == []


def test_a_disk_that_can_only_be_read_at_the_start(disks: Disks) -> None:
    disks.mount("d2", "24m")
    with disks.broker() as broker:
        for topic in "tu":
            create(broker, topic)
            assert produce(broker, topic) == 0
    disks.remount("d2", "ro")
    with disks.broker() as read_only:
        assert offsets(read_only, "t") == [0]
        assert produce(read_only, "t") == 0
        assert produce(read_only, "u") == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(lines_with(read_only, str(disks.folder / "d2"), "Read-only file system")) == 1
    disks.remount("d2", "rw")
    with disks.broker() as mended:
        assert (offsets(mended, "t"), offsets(mended, "u")) == ([0, 1], [0])


def test_a_disk_that_turns_read_only_while_it_is_used(disks: Disks) -> None:
    """An ext4 that finds itself damaged and goes on read-only, as such disks end."""
    image, mounted = disks.folder / "image", disks.folder / "d2"
    image.write_bytes(bytes(32 << 20))
    mounted.mkdir()
    if not shutil.which("mkfs.ext4") or not (
        disks.run("mkfs.ext4", "-q", str(image)) and disks.run("mount", str(image), str(mounted))
    ):
        pytest.skip("no ext4 can be made and mounted here")
    disks.overrides["log.flush.interval.messages"] = "1"  # what is acknowledged is on the disk
    with disks.broker() as broker:
        for topic in "tu":
            create(broker, topic)
            assert [produce(broker, topic) for _ in range(3)] == [0, 0, 0]
        disks.remount("d2", "abort")
        for _ in range(3):
            assert produce(broker, "u") == ErrorCode.KAFKA_STORAGE_ERROR
            assert produce(broker, "t") == 0
        assert offsets(broker, "t") == list(range(6))
    assert len(lines_with(broker, "ERROR", str(mounted))) == 1
    assert disks.run("umount", str(mounted))
    assert disks.run("sh", "-c", f"e2fsck -p {image}; test $? -le 1")
    assert disks.run("mount", str(image), str(mounted))
    with disks.broker() as mended:
        assert (offsets(mended, "t"), offsets(mended, "u")) == (list(range(6)), [0, 1, 2])
        assert produce(mended, "u") == 0


NOT_ALMIGHTY = (
    "setpriv",
    "--bounding-set=-dac_override,-dac_read_search",
    "--inh-caps=-dac_override,-dac_read_search",
)


@pytest.mark.parametrize(
    "name",
    ["", "u-0", f"u-0/{0:020}.log", f"u-0/{0:020}.index", "replication-offset-checkpoint"],
    ids=["directory", "partition", "log", "index", "checkpoint"],
)
def test_files_of_another_owner(tmp_path: Path, name: str) -> None:
    command = (sys.executable, "-m", "kbroker")
    if os.getuid() == 0:
        if not shutil.which("setpriv") or subprocess.run([*NOT_ALMIGHTY, "true"]).returncode:
            pytest.skip("root is shut out of no file, and setpriv does not help")
        command = (*NOT_ALMIGHTY, *command)
    overrides = {
        "log.dirs": f"{tmp_path / 'd1'},{tmp_path / 'd2'}",
        "metadata.log.dir": str(tmp_path / "meta"),
    }

    def broker() -> BrokerProcess:
        return BrokerProcess(tmp_path / "data", overrides=overrides, command=command)

    with broker() as first:
        for topic in "tu":
            create(first, topic)
            assert produce(first, topic) == 0
    path = tmp_path / "d2" / name
    mode = path.stat().st_mode
    if os.getuid() == 0:
        os.chown(path, 65534, 65534)
        path.chmod(0o700 if path.is_dir() else 0o600)
    else:
        path.chmod(0)
    with broker() as shut_out:
        assert offsets(shut_out, "t") == [0]
        assert produce(shut_out, "t") == 0
        assert produce(shut_out, "u") == ErrorCode.KAFKA_STORAGE_ERROR
    (line,) = lines_with(shut_out, "Permission denied")
    assert str(path) in line
    if os.getuid() == 0:
        os.chown(path, 0, 0)
    path.chmod(mode)
    with broker() as mended:
        assert (offsets(mended, "t"), offsets(mended, "u")) == ([0, 1], [0])
