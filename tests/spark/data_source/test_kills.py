"""A stream to the format `kbroker` with kills in the middle of batches: each row once, in order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.testing.process import BrokerProcess
from spark_jobs.java import java_problem
from tests.spark.copying.records import content, fill, records_of
from tests.spark.data_source.stream_worker import MODULE
from tests.spark.kill_rounds import ROUNDS, Rounds

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long_spark,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(7200),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

PARTITIONS = 3


@ROUNDS
def test_a_stream_that_writes(
    mortal: BrokerProcess, new_mortal_topic: Callable[[int], str], tmp_path: Path, rounds: int
) -> None:
    bootstrap = mortal.bootstrap_servers
    source, target = new_mortal_topic(PARTITIONS), new_mortal_topic(PARTITIONS)
    runs = Rounds(
        [bootstrap, source, target, str(tmp_path / "cp")],
        lambda numbers: fill(bootstrap, source, numbers, PARTITIONS),
        mortal,
        MODULE,
    )
    count = runs.run(rounds)
    sources, targets = (records_of(bootstrap, name, PARTITIONS) for name in (source, target))
    assert sum(map(len, targets)) == count
    assert [content(one) for one in targets] == [content(one) for one in sources]
