"""What a controller logs while it asks to become a voter."""

from __future__ import annotations

import pytest

from kbroker.node.join_refusals import JoinRefusals
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.quorum import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    VoteRequest,
)
from kbroker.quorum.raft.effects import Destination, RaftRequest, RaftResponse, Send

REFUSED = AddRaftVoterResponse(
    error_code=ErrorCode.REQUEST_TIMED_OUT, error_message="The voter does not answer ApiVersions."
)


class Answers:
    """A transport that gives the answers it was told."""

    def __init__(self) -> None:
        self.answers: list[RaftResponse | KafkaError] = []
        self.is_closed = False

    def send(self, effect: Send) -> Deferred[RaftResponse]:
        answer = self.answers.pop(0)
        if isinstance(answer, KafkaError):
            return Deferred.failed(answer)
        return Deferred.of(answer)

    def close(self) -> None:
        self.is_closed = True


class World:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO")
        self.caplog = caplog
        self.answers = Answers()
        self.transport = JoinRefusals(self.answers, 2)

    def lines(self, request: RaftRequest, *answers: RaftResponse | KafkaError) -> list[str]:
        self.caplog.clear()
        for answer in answers:
            self.answers.answers.append(answer)
            effect = Send(1, Destination(7, "a", 9093), request, 1000)
            outcome = self.transport.send(effect)
            assert outcome.error is answer or outcome.value is answer
        return [record.getMessage() for record in self.caplog.records]


def test_a_refusal_is_logged_until_another_answer_comes(caplog: pytest.LogCaptureFixture) -> None:
    world = World(caplog)
    lost = KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "lost")
    later = AddRaftVoterResponse(error_code=32_000)
    lines = world.lines(
        AddRaftVoterRequest(), REFUSED, REFUSED, lost, lost, later, AddRaftVoterResponse(), REFUSED
    )
    refused = "Node 2: node 7 does not add this controller to the voters (ADD_RAFT_VOTER): "
    timed_out = f"{refused}REQUEST_TIMED_OUT: The voter does not answer ApiVersions."
    assert lines[:2] == [timed_out, f"{refused}BROKER_NOT_AVAILABLE: lost"]
    assert lines[2].startswith(f"{refused}UNKNOWN_SERVER_ERROR")
    assert lines[3:] == ["Node 2: node 7 agrees to add this controller to the voters", timed_out]


def test_the_former_directory(caplog: pytest.LogCaptureFixture) -> None:
    world = World(caplog)
    (line,) = world.lines(
        RemoveRaftVoterRequest(), RemoveRaftVoterResponse(error_code=ErrorCode.VOTER_NOT_FOUND)
    )
    assert line.startswith(
        "Node 2: node 7 does not remove the voter that had this controller's former directory "
        "(REMOVE_RAFT_VOTER): VOTER_NOT_FOUND"
    )


def test_other_requests_are_passed_on(caplog: pytest.LogCaptureFixture) -> None:
    world = World(caplog)
    assert not world.lines(VoteRequest(), KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "lost"))
    world.transport.close()
    assert world.answers.is_closed
