"""The quorum's APIs on a controller's listener: handed to the driver, refused in their own form."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey, request_class, response_class, valid_versions
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.quorum import DescribeQuorumRequest, VoteRequest, VoteResponse
from kbroker.quorum.raft.effects import RaftRequest, RaftResponse
from kbroker.quorum.raft.requests.messages import refused_partitions
from kbroker.server.api_handler import REFUSED_ITEMS
from kbroker.server.api_policy import ListenerType
from kbroker.server.handlers import all_handlers, controller_handlers, forwarded_apis
from kbroker.server.handlers.cluster.quorum import (
    HANDLERS,
    describe_quorum_in_steps,
    handle_raft_request,
)
from kbroker.server.requests import RequestContext
from kbroker.server.services import ControllerServices
from kbroker.server.session import Session


class Quorum:
    """Answers each request with an empty VoteResponse. asked: (request, listener, version)."""

    def __init__(self) -> None:
        self.asked: list[tuple[RaftRequest, str, int]] = []

    def handle(
        self, request: RaftRequest, *, listener_name: str, version: int
    ) -> Deferred[RaftResponse]:
        self.asked.append((request, listener_name, version))
        return Deferred.of(VoteResponse())


def test_a_request_is_handed_to_the_quorum_with_its_listener_and_version() -> None:
    quorum = Quorum()
    services = cast(ControllerServices, SimpleNamespace(quorum=quorum))
    context = RequestContext(ApiKey.VOTE, 1, session=Session(listener_name="CONTROLLER"))
    request = VoteRequest(topics=[])
    answer = handle_raft_request(services, context, request)
    assert isinstance(answer, Deferred) and answer.value == VoteResponse()
    assert quorum.asked == [(request, "CONTROLLER", 1)]


@pytest.mark.parametrize("handler", HANDLERS, ids=lambda handler: handler.api_key.name)
def test_each_api_is_refused_in_its_own_form(handler: Any) -> None:
    request = request_class(handler.api_key)
    response = handler.error_response(request, ErrorCode.BROKER_NOT_AVAILABLE, "stopping")
    assert type(response) is response_class(handler.api_key)
    assert response.error_code == ErrorCode.BROKER_NOT_AVAILABLE
    assert getattr(response, "error_message", "stopping") == "stopping"


def test_only_controllers_handle_them_in_every_version() -> None:
    keys = {handler.api_key for handler in HANDLERS}
    for handler in HANDLERS:
        assert (handler.min_version, handler.max_version) == valid_versions(handler.api_key)
        assert ListenerType.CONTROLLER in handler.policy.listeners
    assert keys <= {handler.api_key for handler in controller_handlers()}
    assert keys & {handler.api_key for handler in forwarded_apis()} == {
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.ADD_RAFT_VOTER,
        ApiKey.REMOVE_RAFT_VOTER,
    }
    assert keys & {handler.api_key for handler in all_handlers()} == {ApiKey.FETCH}


def describing(*partitions: int) -> DescribeQuorumRequest.TopicData:
    return DescribeQuorumRequest.TopicData(
        topic_name="__cluster_metadata",
        partitions=[DescribeQuorumRequest.PartitionData(partition_index=one) for one in partitions],
    )


def test_very_many_partitions_are_refused_in_steps() -> None:
    """As the quorum refuses them, without it."""
    quorum = Quorum()
    services = cast(ControllerServices, SimpleNamespace(quorum=quorum))
    request = DescribeQuorumRequest(
        topics=[describing(), *[describing(0)] * 3, describing(*range(5 * REFUSED_ITEMS))]
    )
    context = RequestContext(ApiKey.DESCRIBE_QUORUM, 2)
    steps = describe_quorum_in_steps(services, context, request)
    pauses = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            assert end.value == refused_partitions(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            break
        pauses += 1
    assert pauses >= 5 and not quorum.asked


def test_a_large_request_for_the_one_partition_goes_to_the_quorum() -> None:
    quorum = Quorum()
    services = cast(ControllerServices, SimpleNamespace(quorum=quorum))
    request = DescribeQuorumRequest(topics=[describing(0)])
    context = RequestContext(ApiKey.DESCRIBE_QUORUM, 2, session=Session(listener_name="C"))
    with pytest.raises(StopIteration):
        next(describe_quorum_in_steps(services, context, request))
    assert quorum.asked == [(request, "C", 2)]
