"""Functions for the server of Spark Connect: they bring this package along, and what they count
comes back. With a server: test_connected_jobs.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from pyspark import cloudpickle

from spark_jobs.checkpoint import format_offsets
from spark_jobs.connect import TALLY, batch_function, data_source_class, job_function, take_tally
from spark_jobs.data_source.source import KafkaDataSource
from spark_jobs.storage import Folder, absolute

LOCAL: Any = object()


class RemoteSession:
    """As one of Spark Connect."""


RemoteSession.__module__ = "pyspark.sql.connect.session"
REMOTE: Any = RemoteSession()

LOADED = """
import pickle, sys
function = pickle.loads(sys.stdin.buffer.read())
print(function({"t": {0: 5}}))
print(sys.modules["spark_jobs"].__file__)
from spark_jobs.wire.client import BlockingClient  # which needs kbroker's
"""


MADE = """
import os, pickle, sys
from pyspark import cloudpickle
format = pickle.loads(sys.stdin.buffer.read())
for made in (format.reader(None), format.streamReader(None)):
    sent = cloudpickle.dumps(made)
    again = pickle.loads(sent)
    print(type(again).__name__, again.bundle == format.bundle, len(sent) > len(format.bundle))
places = ("/proc/self/fd/", os.environ["TMPDIR"])
print(sum(path.startswith(places) for path in sys.path))
"""


class Counting:
    """Counts batches."""

    def __init__(self) -> None:
        self.batches = 0

    def __call__(self, frame: object, batch_id: int) -> None:
        self.batches += 1

    def tally(self) -> dict[str, int]:
        return {"batches": self.batches}

    def take(self, tally: Mapping[str, int]) -> None:
        self.batches += tally["batches"]


def folder(path: Path) -> Folder:
    return Folder(absolute(str(path)))


def test_a_function_finds_its_package_where_it_is_not_installed(tmp_path: Path) -> None:
    function = batch_function(REMOTE, cast("Any", format_offsets))
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", LOADED],
        input=cloudpickle.dumps(function),  # type: ignore[no-untyped-call]
        capture_output=True,
        cwd=tmp_path,
        env={"PYTHONPATH": sysconfig.get_path("purelib"), "TMPDIR": str(tmp_path)},
        check=True,
    )
    told, where = loaded.stdout.decode().splitlines()
    assert told == '{"t": {"0": 5}}'
    assert not where.startswith(str(Path(__file__).parents[2]))
    if Path("/proc/self/fd").exists():
        assert list(tmp_path.iterdir()) == []


def test_a_format_and_what_it_makes_find_their_package(tmp_path: Path) -> None:
    assert data_source_class(LOCAL, KafkaDataSource) is KafkaDataSource
    options = {"kafka.bootstrap.servers": "localhost:9", "subscribe": "t"}
    kind = data_source_class(REMOTE, KafkaDataSource)
    assert (kind.name(), issubclass(kind, KafkaDataSource)) == ("kbroker", True)
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", MADE],
        input=cloudpickle.dumps(kind(options)),  # type: ignore[no-untyped-call]
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        env={"PYTHONPATH": sysconfig.get_path("purelib"), "TMPDIR": str(tmp_path)},
        check=True,
    )
    assert loaded.stdout.decode().splitlines() == [
        "KafkaReader True True",
        "KafkaStreamReader True True",
        "1",  # one bundle, however often it came
    ]
    small = cloudpickle.dumps(KafkaDataSource(options).reader(None))  # type: ignore[no-untyped-call, arg-type]
    assert len(small) < 10_000


def test_a_function_stays_as_it_is_in_a_session_of_its_own(tmp_path: Path) -> None:
    function = Counting()
    assert batch_function(LOCAL, function) is function
    assert job_function(LOCAL, function, folder(tmp_path)) is function
    function.batches = 2
    (tmp_path / TALLY).write_text('{"batches": 7}')
    take_tally(LOCAL, function, folder(tmp_path))
    assert function.batches == 2


def test_what_was_counted_on_the_server_comes_back(tmp_path: Path) -> None:
    (tmp_path / TALLY).write_text('{"batches": 7}')  # of an earlier run
    there, here = Counting(), Counting()
    function = job_function(REMOTE, there, folder(tmp_path))
    take_tally(REMOTE, here, folder(tmp_path))
    assert here.batches == 0
    for number in range(3):
        function(cast("Any", None), number)
    take_tally(REMOTE, here, folder(tmp_path))
    assert here.batches == 3
