"""DescribeCluster over a hand-made image."""

from __future__ import annotations

import pytest

from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.metadata import (
    DescribeClusterRequest,
)
from kbroker.server.handlers.cluster import cluster
from kbroker.server.requests import RequestContext
from tests.server.handlers.metadata_world import (
    broker,
    services,
)


def test_describe_cluster() -> None:
    of = services(brokers=[broker(1), broker(2, fenced=True), broker(3, listeners="OTHER")])
    context = RequestContext(ApiKey.DESCRIBE_CLUSTER, 2)
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    response = cluster.handle_describe_cluster(of, context, request)
    assert (response.cluster_id, response.controller_id) == ("cluster", 1)
    assert [b.broker_id for b in response.brokers] == [1]
    assert response.cluster_authorized_operations == 8096
    request.include_fenced_brokers = True
    response = cluster.handle_describe_cluster(of, context, request)
    assert [(b.broker_id, b.is_fenced) for b in response.brokers] == [(1, False), (2, True)]


@pytest.mark.parametrize(
    ("endpoint_type", "version", "code"),
    [
        (2, 1, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
        (2, 0, ErrorCode.INVALID_REQUEST),
        (9, 1, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
    ],
)
def test_wrong_endpoint_type(endpoint_type: int, version: int, code: ErrorCode) -> None:
    context = RequestContext(ApiKey.DESCRIBE_CLUSTER, version)
    with pytest.raises(KafkaError) as error:
        cluster.handle_describe_cluster(
            services(), context, DescribeClusterRequest(endpoint_type=endpoint_type)
        )
    assert error.value.code == code
    assert cluster.describe_cluster_error(DescribeClusterRequest(), code, "why").error_code == code
