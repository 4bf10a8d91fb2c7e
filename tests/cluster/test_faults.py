"""Nodes that end by themselves after a fault."""

from __future__ import annotations

import pytest

from tests.cluster.faults import ends_by_itself


@pytest.mark.parametrize(
    ("log_text", "ends"),
    [
        ("fatal error, stopping the broker: the metadata log failed", True),
        ("/data: the metadata log has failed: No space left", True),
        ("log directory /data is offline with 9 partitions: cannot write x: No space left", True),
        ("kbroker: none of log.dirs can be used: cannot write x: No space left on device", True),
        ("recovered 12 logs in 5.3 s", False),
    ],
)
def test_a_node_whose_disk_was_full_is_waited_for_if_it_ends(log_text: str, ends: bool) -> None:
    assert ends_by_itself(log_text) is ends
