"""Error codes wherever a response has them."""

from __future__ import annotations

import pytest

from kbroker.protocol.codecs.schema import Response
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.topics import CreateTopicsResponse
from kbroker.protocol.messages.cluster import (
    BrokerHeartbeatResponse,
    EnvelopeResponse,
    ListPartitionReassignmentsResponse,
)
from kbroker.protocol.messages.quorum import DescribeQuorumResponse
from kbroker.protocol.response_errors import error_codes

_Topic = CreateTopicsResponse.CreatableTopicResult
_Quorum = DescribeQuorumResponse
_Listed = ListPartitionReassignmentsResponse


@pytest.mark.parametrize(
    ("response", "codes"),
    [
        pytest.param(BrokerHeartbeatResponse(error_code=41), [41], id="at the top"),
        pytest.param(EnvelopeResponse(error_code=41, response_data=b"\0"), [41], id="beside bytes"),
        pytest.param(CreateTopicsResponse(), [], id="of no topic"),
        pytest.param(
            CreateTopicsResponse(topics=[_Topic(name="a", error_code=36), _Topic(name="b")]),
            [36, 0],
            id="of each topic",
        ),
        pytest.param(
            _Quorum(
                error_code=1,
                topics=[
                    _Quorum.TopicData(
                        topic_name="t",
                        partitions=[
                            _Quorum.PartitionData(partition_index=0, error_code=6),
                            _Quorum.PartitionData(partition_index=1, error_code=7),
                        ],
                    )
                ],
            ),
            [1, 6, 7],
            id="of the response and of its partitions",
        ),
        pytest.param(
            _Quorum(topics=[_Quorum.TopicData(topic_name="t") for _ in range(3)]),
            [0, 0, 0, 0],
            id="NONE of topics without partitions",
        ),
    ],
)
def test_every_code_is_found(response: Response, codes: list[int]) -> None:
    assert sorted(error_codes(response)) == sorted(codes)


def test_a_null_list_has_none() -> None:
    response = CreateTopicsResponse(topics=[_Topic(name="a", configs=None)])
    assert list(error_codes(response)) == [ErrorCode.NONE]


class Unwalked(list[_Listed.OngoingTopicReassignment]):
    """A list that must not be read."""

    def __iter__(self) -> object:  # type: ignore[override]
        raise AssertionError("its items have no error code")


def test_lists_without_codes_are_not_walked() -> None:
    assert list(error_codes(_Listed(error_code=3, topics=Unwalked()))) == [3]
