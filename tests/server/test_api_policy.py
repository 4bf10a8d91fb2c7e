"""Every registered API's policy against the schemas of Kafka 4.3.1, and the authorisation check."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from kbroker.protocol.acl_operations import (
    AUTHORIZATION_FAILED,
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    AclOperation,
    AclResource,
)
from kbroker.protocol.apis import ApiKey, request_class
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.server.api_handler import ApiHandler, small_responses
from kbroker.server.api_policy import (
    NO_AUTHORISATION,
    RESOURCE_FIELDS,
    STREAMS_PROTOCOL,
    Access,
    ApiPolicy,
    Extent,
    Forward,
    ListenerType,
    Quota,
    Versions,
    authorisation_check,
    group_protocol_check,
)
from kbroker.server.handlers import (
    all_handlers,
    controller_handlers,
    forwarded_apis,
    telemetry_handlers,
)
from kbroker.server.handlers.cluster.envelope import envelope_handler
from kbroker.server.requests import RequestContext
from kbroker.server.session import Session

DATA: Final = Path(__file__).parents[1] / "data" / "kafka"
APIS: Final = {api["id"]: api for api in json.loads((DATA / "apis.json").read_text())["apis"]}
MESSAGES: Final = {
    message["name"]: message
    for message in json.loads((DATA / "messages.json").read_text())["messages"]
}
OF_BROKERS: Final = [*all_handlers(), *telemetry_handlers()]
CONTROLLERS_OWN: Final = [
    handler for handler in controller_handlers() if handler not in OF_BROKERS
] + [envelope_handler(cast(Any, None))]
"""With what brokers forward and have no handler for."""

HANDLERS: Final = [
    pytest.param(handler, id=f"{handler.api_key.name}-{handler.policy.listeners.name}")
    for handler in sorted([*OF_BROKERS, *CONTROLLERS_OWN], key=lambda handler: handler.api_key)
]
ENTITY_TYPES: Final = {
    AclResource.TOPIC: "topicName",
    AclResource.GROUP: "groupId",
    AclResource.TRANSACTIONAL_ID: "transactionalId",
}
NOT_MARKED: Final = {
    (ApiKey.DESCRIBE_CONFIGS, AclResource.TOPIC),
    (ApiKey.DESCRIBE_CONFIGS, AclResource.GROUP),
    (ApiKey.ALTER_CONFIGS, AclResource.TOPIC),
    (ApiKey.ALTER_CONFIGS, AclResource.GROUP),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, AclResource.TOPIC),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, AclResource.GROUP),
    (ApiKey.FIND_COORDINATOR, AclResource.GROUP),
    (ApiKey.FIND_COORDINATOR, AclResource.TRANSACTIONAL_ID),
}
"""Resources whose name stands in a field of several types, so that the schema has no entityType."""


CONTEXT: Final = RequestContext(ApiKey.METADATA, 0)


def message_of(handler: ApiHandler, kind: str) -> dict[str, Any]:
    message: dict[str, Any] = MESSAGES[f"{APIS[handler.api_key]['name']}{kind}"]
    return message


def fields_of(fields: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for field in fields:
        yield field
        yield from fields_of(field.get("fields", []))


def test_every_api_is_registered_once_for_each_type_of_listener() -> None:
    for handlers in (all_handlers(), controller_handlers()):
        keys = [handler.api_key for handler in handlers]
        assert len(set(keys)) == len(keys)


def test_what_a_module_registers_for_both_types_of_listener_is_served_on_both() -> None:
    both = {h.api_key for h in all_handlers() if ListenerType.CONTROLLER in h.policy.listeners}
    assert both <= {h.api_key for h in controller_handlers()}
    for handler in all_handlers():
        assert ListenerType.BROKER in handler.policy.listeners


@pytest.mark.parametrize("handler", HANDLERS)
def test_versions_and_listeners_are_within_kafkas(handler: ApiHandler) -> None:
    api = APIS[handler.api_key]
    assert handler.min_version <= api["minVersion"]
    assert handler.max_version == api["maxVersion"]
    of_kafka = {ListenerType[name.upper()] for name in api["listeners"]}
    assert set(handler.policy.listeners) <= of_kafka


@pytest.mark.parametrize("handler", HANDLERS)
def test_what_the_controller_answers_is_what_kafka_forwards(handler: ApiHandler) -> None:
    is_forwarded = handler.policy.forward is not Forward.NEVER
    assert is_forwarded == APIS[handler.api_key]["forwardable"]


def test_brokers_have_every_api_that_controllers_answer_for_them() -> None:
    """Those for which a broker has a handler, for a node that is its whole cluster, and others."""
    forwarded = {handler.api_key for handler in forwarded_apis()}
    checked = {h.api_key for h in OF_BROKERS if h.policy.forward is Forward.CHECKED}
    of_kafka = {
        key for key, each in APIS.items() if each["forwardable"] and "broker" in each["listeners"]
    }
    assert forwarded | checked == of_kafka & {handler.api_key for handler in controller_handlers()}
    for handler in OF_BROKERS:
        assert (handler.policy.forward is Forward.TO_CONTROLLER) == (handler.api_key in forwarded)


@pytest.mark.parametrize("handler", HANDLERS)
def test_a_request_is_throttled_if_its_response_can_say_so(handler: ApiHandler) -> None:
    fields = message_of(handler, "Response")["fields"]
    can_say_so = any(field["name"] == "ThrottleTimeMs" for field in fields)
    assert can_say_so == (handler.policy.quota is not Quota.EXEMPT)


@pytest.mark.parametrize("handler", HANDLERS)
def test_permissions_exist_and_their_resources_are_named(handler: ApiHandler) -> None:
    entities = {
        field.get("entityType") for field in fields_of(message_of(handler, "Request")["fields"])
    }
    ids = {field["name"] for field in fields_of(message_of(handler, "Request")["fields"])}
    for access in handler.policy.authorisation:
        supported = set(SUPPORTED_OPERATIONS[access.resource])
        if access.extent is Extent.INSTEAD:
            supported.add(AclOperation.DELETE)  # which Kafka asks for and only ALL can grant
        assert set(access.operations) <= supported
        if access.extent is Extent.REQUEST and access.resource is not AclResource.CLUSTER:
            assert hasattr(request_class(handler.api_key)(), RESOURCE_FIELDS[access.resource])
        if access.extent in (Extent.REQUEST, Extent.EACH):
            is_named = (
                access.resource is AclResource.CLUSTER
                or ENTITY_TYPES[access.resource] in entities
                or (access.resource is AclResource.TOPIC and "TopicId" in ids)
                or (handler.api_key, access.resource) in NOT_MARKED
            )
            assert is_named, access


@pytest.mark.parametrize("handler", HANDLERS)
def test_what_stands_in_for_other_permissions_is_on_the_cluster(handler: ApiHandler) -> None:
    accesses = handler.policy.authorisation
    for access in accesses:
        if access.extent is Extent.INSTEAD:
            assert access.resource is AclResource.CLUSTER
            assert any(
                (
                    other.resource is not AclResource.CLUSTER
                    and set(other.operations) & set(access.operations)
                )
                or other.extent is Extent.EACH
                for other in accesses
                if other is not access
            )


@pytest.mark.parametrize("handler", HANDLERS)
def test_requests_between_brokers_need_a_permission_on_the_cluster(handler: ApiHandler) -> None:
    needed = {access.resource for access in handler.policy.authorisation}
    if APIS[handler.api_key]["clusterAction"]:
        assert needed == {AclResource.CLUSTER}


def test_apis_without_permissions() -> None:
    """Kafka asks for nothing before it answers these. DescribeCluster and Metadata look at
    permissions only to fill in authorized operations.
    """
    free = {handler.api_key for handler in all_handlers() if not handler.policy.authorisation}
    assert free == {ApiKey.API_VERSIONS, ApiKey.DESCRIBE_CLUSTER}


def test_requests_that_keep_a_client_alive_have_small_responses() -> None:
    """docs/adr/0016: these do not wait for the large responses of others."""
    small = small_responses(all_handlers())
    kept_alive = {
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.SHARE_FETCH,
        ApiKey.SHARE_ACKNOWLEDGE,
        ApiKey.OFFSET_COMMIT,
        ApiKey.FIND_COORDINATOR,
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.SHARE_GROUP_HEARTBEAT,
        ApiKey.STREAMS_GROUP_HEARTBEAT,
        ApiKey.API_VERSIONS,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.END_TXN,
        ApiKey.WRITE_TXN_MARKERS,
    }
    assert small == kept_alive


@pytest.mark.parametrize("handler", HANDLERS)
def test_apis_of_a_group_protocol_check_that_it_is_served(handler: ApiHandler) -> None:
    """Kafka: isConsumerGroupProtocolEnabled, isStreamsGroupProtocolEnabled."""
    kind = handler.api_key.name.partition("_GROUP_")[0].lower()
    protocol = handler.policy.group_protocol
    assert (protocol is not None) == (kind in ("consumer", "streams"))
    if protocol is not None:
        assert protocol.name == kind


@pytest.mark.parametrize(
    ("served", "level", "message"),
    [
        pytest.param(["classic", "streams"], 1, None, id="served"),
        pytest.param(["classic"], 1, "has no streams", id="not configured"),
        pytest.param(["classic", "streams"], 0, "streams.version is 0", id="feature is off"),
    ],
)
def test_a_group_protocol_that_is_not_served(
    served: list[str], level: int, message: str | None
) -> None:
    policy = ApiPolicy(Versions(0, 0), NO_AUTHORISATION, group_protocol=STREAMS_PROTOCOL)
    broker: Any = SimpleNamespace(
        config=SimpleNamespace(get_list=lambda name: served),
        image=SimpleNamespace(features={"streams.version": level}),
    )
    check = group_protocol_check(policy, broker)
    assert check is not None
    if message is None:
        check(CONTEXT, None)
        return
    with pytest.raises(KafkaError, match=message) as caught:
        check(CONTEXT, None)
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


class Recorded:
    """An authorizer that allows what a test says, and tells what it was asked."""

    def __init__(self, *allowed: tuple[AclOperation, str]) -> None:
        self.allowed = allowed
        self.asked: list[tuple[AclOperation, AclResource, str]] = []

    def allows(
        self, session: Session, operation: AclOperation, resource: AclResource, name: str
    ) -> bool:
        self.asked.append((operation, resource, name))
        return (operation, name) in self.allowed


def request_of(handler: ApiHandler) -> Any:
    request: Any = request_class(handler.api_key)()
    for resource, name in RESOURCE_FIELDS.items():
        if hasattr(request, name):
            setattr(request, name, resource.name)
    if handler.api_key is ApiKey.PRODUCE:
        request.acks = 1  # with 0 a refused request ends the connection
    return request


def needed_for_all(handler: ApiHandler) -> list[Access]:
    return [each for each in handler.policy.authorisation if each.extent is Extent.REQUEST]


@pytest.mark.parametrize("handler", HANDLERS)
def test_a_request_without_its_permissions_is_refused(handler: ApiHandler) -> None:
    """With the error of the first resource that is denied, which the API's response can carry."""
    check = authorisation_check(handler.policy, Recorded())
    needed = needed_for_all(handler)
    assert (check is None) == (not needed)
    if check is None:
        return
    request = request_of(handler)
    with pytest.raises(KafkaError) as caught:
        check(CONTEXT, request)
    assert caught.value.code is AUTHORIZATION_FAILED[needed[0].resource]
    assert handler.error_response(request, caught.value.code, "") is not None


@pytest.mark.parametrize("handler", HANDLERS)
def test_a_request_with_one_of_each_of_its_permissions_passes(handler: ApiHandler) -> None:
    needed = needed_for_all(handler)
    names = [
        CLUSTER_NAME if each.resource is AclResource.CLUSTER else each.resource.name
        for each in needed
    ]
    allowed = [(each.operations[-1], name) for each, name in zip(needed, names, strict=True)]
    authorizer = Recorded(*allowed)
    check = authorisation_check(handler.policy, authorizer)
    if check is not None:
        check(CONTEXT, request_of(handler))
        assert authorizer.asked


def test_a_resource_that_the_request_does_not_name_needs_no_permission() -> None:
    """A Produce request without a transactional id."""
    (produce,) = [handler for handler in all_handlers() if handler.api_key is ApiKey.PRODUCE]
    authorizer = Recorded()
    check = authorisation_check(produce.policy, authorizer)
    assert check is not None
    check(CONTEXT, request_class(ApiKey.PRODUCE)(transactional_id=None))
    assert not authorizer.asked


@pytest.mark.parametrize("handler", HANDLERS)
def test_nothing_is_checked_without_an_authorizer(handler: ApiHandler) -> None:
    assert authorisation_check(handler.policy, None) is None
