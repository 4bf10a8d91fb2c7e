"""Control records by offset: the newest take effect at once; truncation and snapshots restore
others.
"""

from __future__ import annotations

from kbroker.quorum.raft.control import QuorumConfiguration, control_batch, snapshot_footer
from kbroker.quorum.raft.offsets import BOOTSTRAP_ID, SnapshotId
from kbroker.quorum.raft.states.control_state import ControlState
from kbroker.quorum.raft.voters.voter_set import VoterSet
from tests.quorum.raft.replicas import voters_of


def batch(base_offset: int, *voter_ids: int) -> bytes:
    records = [snapshot_footer(), *configuration(*voter_ids).records()]
    return bytes(control_batch(records, base_offset=base_offset, epoch=1, timestamp_ms=1))


def configuration(*voter_ids: int) -> QuorumConfiguration:
    return QuorumConfiguration(1, tuple(voters_of(*voter_ids)))


def test_the_configuration_counts_until_the_log_says_something() -> None:
    control = ControlState(voters_of(1, 2))
    assert (control.kraft_version, control.voters.last) == (0, voters_of(1, 2))
    assert control.configuration_at(100) == QuorumConfiguration()
    control.load_snapshot(BOOTSTRAP_ID, configuration(3))
    assert (control.kraft_version, control.voters.last_offset) == (1, -1)
    control.add_batch(batch(10, 3, 4))
    assert (control.voters.last, control.voters.last_offset) == (voters_of(3, 4), 12)
    assert control.configuration_at(11) == configuration(3)
    assert control.configuration_at(12) == configuration(3, 4)


def test_truncation_goes_back() -> None:
    control = ControlState(VoterSet())
    control.add_batch(batch(0, 1))
    control.add_batch(batch(10, 1, 2))
    control.truncate_new(12)
    assert control.voters.last == voters_of(1)
    control.truncate_new(0)
    assert (control.kraft_version, control.voters.last) == (0, VoterSet())


def test_what_is_older_than_the_log_is_forgotten_but_the_last() -> None:
    control = ControlState(VoterSet())
    for index in (1, 2, 3):
        control.add_batch(batch(index * 10, index))
    control.truncate_old(25)
    assert control.voters.value_at(24) == voters_of(2)
    assert control.voters.value_at(20) is None


def test_a_snapshot_replaces_what_was_there() -> None:
    control = ControlState(VoterSet())
    control.add_batch(batch(0, 1))
    control.load_snapshot(SnapshotId(50, 3), configuration(4, 5))
    assert (control.voters.last, control.voters.last_offset) == (voters_of(4, 5), 49)
    control.add_batch(batch(50, 4, 5, 6))
    control.truncate_new(50)
    assert control.voters.last == voters_of(4, 5)
