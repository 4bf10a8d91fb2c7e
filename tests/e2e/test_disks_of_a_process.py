"""A broker process whose disks go: what it says, and how it ends."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.protocol.records import build_batch
from kbroker.testing.process import BrokerProcess
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
    asked = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name="t")], allow_auto_topic_creation=True
    )
    with socket.create_connection((broker.host, broker.port), 10) as connection:
        for _ in range(100):
            answer: Any = call(connection, asked, 12)
            if answer.topics[0].error_code == 0:
                break
        for directory in dirs:
            shutil.rmtree(directory)
        part = ProduceRequest.PartitionProduceData(
            index=0, records=build_batch([(1_700_000_000_000, b"k", b"v", [])])
        )
        data = ProduceRequest.TopicProduceData(name="t", partition_data=[part])
        call(connection, ProduceRequest(acks=1, timeout_ms=1000, topic_data=[data]), 9)
    process = broker._process
    assert isinstance(process, subprocess.Popen)
    assert process.wait(20) == 1
    lines = broker.log.read_text().splitlines()
    assert not [line for line in lines if "Traceback" in line]
    (last,) = [line for line in lines if "CRITICAL" in line]
    assert "checkpoint" in last and "No such file" in last
    broker.kill()
