"""The codes of ACL operations and resources are Kafka's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kbroker.protocol.acl_operations import (
    AUTHORIZATION_FAILED,
    SUPPORTED_OPERATIONS,
    AclOperation,
    AclResource,
    authorized_operations,
)

KAFKA = json.loads((Path(__file__).parents[1] / "data" / "kafka" / "apis.json").read_text())


@pytest.mark.parametrize("operation", AclOperation)
def test_operations_have_kafkas_codes(operation: AclOperation) -> None:
    assert KAFKA["aclOperations"][operation.name] == operation


@pytest.mark.parametrize("resource", AclResource)
def test_resources_have_kafkas_codes_and_an_error(resource: AclResource) -> None:
    assert KAFKA["resourceTypes"][resource.name] == resource
    assert AUTHORIZATION_FAILED[resource].name == f"{resource.name}_AUTHORIZATION_FAILED"


def test_bit_fields_of_authorized_operations() -> None:
    """As a broker of Kafka 4.3.1 without an authorizer answers DescribeCluster, Metadata and
    DescribeGroups.
    """
    assert authorized_operations(AclResource.CLUSTER) == 0b1_1111_1010_0000
    assert authorized_operations(AclResource.TOPIC) == 0b1101_1111_1000
    assert authorized_operations(AclResource.GROUP) == 0b1101_0100_1000
    for operations in SUPPORTED_OPERATIONS.values():
        assert len(set(operations)) == len(operations)
