"""Where a share group begins that nothing is known of."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.replication.reads.offsets import ListedOffset
from kbroker.settings.views.share_groups import ShareGroupConfig
from kbroker.share.partitions import SharePartitions
from tests.sim.timers import START_MS, SimTimers


class AskedReplicas:
    """Answers with the timestamp it was asked for."""

    def offset_of(self, partition: TopicPartition, timestamp: int) -> Deferred[ListedOffset]:
        return Deferred.of(ListedOffset(offset=timestamp, timestamp=timestamp))


@pytest.mark.parametrize(
    ("age_ms", "asked"),
    [(0, START_MS), (1000, START_MS - 1000), (START_MS, 0), (START_MS + 1, 0), (START_MS + 2, 0)],
)
def test_an_age_beyond_the_epoch_is_no_name_of_an_offset(age_ms: int, asked: int) -> None:
    """share.auto.offset.reset=by_duration: and a time before 1970 would be -1, the latest."""
    reset = f"by_duration:PT{age_ms // 1000}.{age_ms % 1000:03d}S"
    partitions = SharePartitions.__new__(SharePartitions)
    partitions._timers = SimTimers()
    partitions._replicas = AskedReplicas()  # type: ignore[assignment]  # a stand-in
    partitions._config_of = lambda group_id: replace(ShareGroupConfig(), auto_offset_reset=reset)
    assert partitions._first_offset("g", TopicPartition("t", 0)).value.timestamp == asked
