"""kill -9 of a process that appends: what it had acknowledged is there, in order."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from kbroker.log.partition_log import PartitionLog
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.records import iter_records
from kbroker.settings.views.log_config import LogConfig

WRITER = """
import sys
from pathlib import Path
from kbroker.log.append_request import AppendRequest
from kbroker.log.partition_log import PartitionLog
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.settings.views.log_config import LogConfig

log = PartitionLog.open(
    Path(sys.argv[1]), TopicPartition("topic", 0), LogConfig(segment_bytes=20_000), now_ms=0
)
request = AppendRequest(1, 0, 0)
while True:
    number = log.log_end_offset
    batch = build_batch([(number, None, b"%d" % number, [])])
    log.append(batch, 0, request)
    print(number, flush=True)
"""


def test_acknowledged_records_survive_kill_9_again_and_again(tmp_path: Path) -> None:
    directory = tmp_path / "topic-0"
    acknowledged = -1
    for round_number in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(directory)], stdout=subprocess.PIPE
        )
        assert writer.stdout is not None
        for _ in range(100 + 150 * round_number):
            acknowledged = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().splitlines(keepends=True)
        acknowledged = max([acknowledged, *(int(line) for line in rest if line.endswith(b"\n"))])
        writer.wait()
        writer.stdout.close()
    log = PartitionLog.open(
        directory, TopicPartition("topic", 0), LogConfig(segment_bytes=20_000), now_ms=0
    )
    assert log.log_end_offset > acknowledged >= 500
    offset = 0
    while offset < log.log_end_offset:
        info = log.read(offset, max_bytes=10_000)
        assert not isinstance(info.records, bytes)
        data = info.records.read()
        for position, header in iter_batches(data):
            batch = data[position : position + header.size_bytes]
            for record in iter_records(batch, header):
                assert (record.offset, record.value) == (offset, b"%d" % offset)
                offset += 1
