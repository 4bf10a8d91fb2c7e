"""The partition of a record, as the partitioner of Kafka's Java client chooses it for a key."""

from __future__ import annotations

from kbroker.client.producer import partition_for_key


def partition_for(key: bytes | None, value: bytes | None, partition_count: int) -> int:
    """Depends on the row alone, so that a task that is run again puts each row where it was.

    The Java client spreads records without a key at random; here their value decides.
    """
    content = key if key is not None else value
    return partition_for_key(content or b"", partition_count)
