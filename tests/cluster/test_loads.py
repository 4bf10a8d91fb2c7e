"""What clients printed, as what the cluster must have."""

from __future__ import annotations

from tests.cluster.loads import Acknowledged


def test_acknowledged_changes_are_read_from_lines() -> None:
    found = Acknowledged()
    for line in (
        "created java-1\n",
        "set topic java-1 retention.ms 1000001\n",
        "failed set java-1 flush.messages NOT_CONTROLLER: no\n",
        "set group java-2 consumer.session.timeout.ms 45002\n",
        "created java-3\n",
        "WARNING of a library\n",
    ):
        found.take(line)
    assert found.count == 4
    assert found.configs() == {
        (2, "java-1"): {"retention.ms": "1000001"},
        (32, "java-2"): {"consumer.session.timeout.ms": "45002"},
        (2, "java-3"): {},
    }
