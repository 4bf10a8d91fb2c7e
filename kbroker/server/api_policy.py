"""What `dispatch` and the connection need to know of an API before its handler runs, as data.

Each registration in `handlers/` carries an `ApiPolicy`, of a table in `policies/`, which is there
before the handler is imported. Handlers contain none of it; the resources
that only a handler can name (topics of a session, the groups of a response) are listed too, as
`Extent.EACH`, `LISTED` and `SOME`. Sources: `KafkaApis`, `ControllerApis` and `AuthHelper` of Kafka
4.3.1 for authorisation, forwarding and quotas; docs/adr/0016 for memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, Flag
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from kbroker.protocol.acl_operations import (
    AUTHORIZATION_FAILED,
    CLUSTER_NAME,
    AclOperation,
    AclResource,
)
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.server.requests import RequestContext
from kbroker.server.session import Session

if TYPE_CHECKING:
    from kbroker.metadata.image import MetadataImage
    from kbroker.settings.broker import BrokerConfig

PROTOCOLS: Final = "group.coordinator.rebalance.protocols"


class Versions(NamedTuple):
    """Versions of a request, both ends inclusive."""

    min_version: int
    max_version: int


class ListenerType(Flag):
    """Listeners on which a handler serves its API, in the words of Kafka's schemas."""

    BROKER = 1
    CONTROLLER = 2


EVERY_LISTENER: Final = ListenerType.BROKER | ListenerType.CONTROLLER


class Extent(Enum):
    """Which of an API's requests need a permission, and what its absence does to a request."""

    REQUEST = "the whole request is refused; `dispatch` checks"
    EACH = "every named resource without it is refused, the others are served"
    LISTED = "resources without it are left out of the response"
    INSTEAD = "granted on the cluster, it stands for EACH on all resources"
    SOME = "only some requests need it, as noted at the registration"


class Access(NamedTuple):
    """A permission that an API needs. operations: any one of them suffices."""

    extent: Extent
    resource: AclResource
    operations: tuple[AclOperation, ...]


class Forward(Enum):
    """Whether the active controller answers. Its requests travel in an Envelope (KIP-590)."""

    NEVER = "this broker answers"
    TO_CONTROLLER = "the active controller answers"
    CHECKED = "this broker checks what concerns itself, the active controller answers the rest"


class GroupProtocol(NamedTuple):
    """A group type that a broker or its cluster may not serve.

    name: in `group.coordinator.rebalance.protocols`. feature: its finalized level is 0 while the
    cluster does not serve the type.
    """

    name: str
    feature: str


class Quota(Enum):
    """The client quota that a request is charged to (`ClientQuotaManager` of Kafka). All but EXEMPT
    are also charged to the request quota.
    """

    PRODUCE = "produced bytes"
    FETCH = "fetched bytes"
    CONTROLLER_MUTATION = "partition creations and deletions"
    REQUEST = "request time"
    EXEMPT = "sent between brokers, never throttled"


class MemoryClass(Enum):
    """How large a response may be.

    SMALL_RESPONSE: small as a rule (Fetch answers with file ranges), and the API keeps a client
    alive: several responses may be made before they are sent, and the requests do not wait for the
    large responses of others as long as the memory limit is not exceeded.
    LARGE_RESPONSE: one is made only when the earlier ones have been sent, and not while memory is
    nearly used up.
    """

    SMALL_RESPONSE = "small"
    LARGE_RESPONSE = "large"


class ApiPolicy(msgspec.Struct, frozen=True):
    """See the module docstring.

    waits_for_others: the response may wait until another client acts; meanwhile other large
    requests are begun. mostly_records: the request is not kept while its response waits, for it
    would keep its records. Errors of partitions are in the response; a failure of the whole closes
    the connection. (`network/connection` knows by a frame's bytes that it may be so large.)
    group_protocol: UNSUPPORTED_VERSION while it is not served.
    """

    versions: Versions
    authorisation: tuple[Access, ...]
    listeners: ListenerType = ListenerType.BROKER
    forward: Forward = Forward.NEVER
    quota: Quota = Quota.REQUEST
    memory_class: MemoryClass = MemoryClass.LARGE_RESPONSE
    waits_for_others: bool = False
    mostly_records: bool = False
    group_protocol: GroupProtocol | None = None


Policies = Mapping[ApiKey, ApiPolicy]
"""Those of one module of `handlers/`."""

CONSUMER_PROTOCOL: Final = GroupProtocol("consumer", "group.version")
STREAMS_PROTOCOL: Final = GroupProtocol("streams", "streams.version")

# Permissions that more than one API needs

NO_AUTHORISATION: Final[tuple[Access, ...]] = ()
CLUSTER_ACTION: Final = Access(Extent.REQUEST, AclResource.CLUSTER, (AclOperation.CLUSTER_ACTION,))
READ_GROUP: Final = Access(Extent.REQUEST, AclResource.GROUP, (AclOperation.READ,))
DELETE_GROUP: Final = Access(Extent.REQUEST, AclResource.GROUP, (AclOperation.DELETE,))
DESCRIBE_EACH_GROUP: Final = Access(Extent.EACH, AclResource.GROUP, (AclOperation.DESCRIBE,))
READ_EACH_TOPIC: Final = Access(Extent.EACH, AclResource.TOPIC, (AclOperation.READ,))
WRITE_EACH_TOPIC: Final = Access(Extent.EACH, AclResource.TOPIC, (AclOperation.WRITE,))
DESCRIBE_EACH_TOPIC: Final = Access(Extent.EACH, AclResource.TOPIC, (AclOperation.DESCRIBE,))
DELETE_EACH_TOPIC: Final = Access(Extent.EACH, AclResource.TOPIC, (AclOperation.DELETE,))
WRITE_TRANSACTIONAL_ID: Final = Access(
    Extent.REQUEST, AclResource.TRANSACTIONAL_ID, (AclOperation.WRITE,)
)


# The steps of `dispatch`

# Any: each API has a request class of its own
Check = Callable[[RequestContext, Any], None]
"""A step of `dispatch` before the handler: raises KafkaError to refuse the whole request."""


class BrokerView(Protocol):
    """What a check may read of the broker. `Services` is one."""

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def image(self) -> MetadataImage: ...


def group_protocol_check(policy: ApiPolicy, broker: BrokerView) -> Check | None:
    """The check that the API's group protocol is served; None for an API without one."""
    protocol = policy.group_protocol
    if protocol is None:
        return None

    def check(context: RequestContext, request: Any) -> None:
        del context, request
        if protocol.name not in broker.config.get_list(PROTOCOLS):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{PROTOCOLS} has no {protocol.name}")
        if broker.image.features.get(protocol.feature, 0) < 1:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{protocol.feature} is 0")

    return check


class Authorizer(Protocol):
    """Decides whether a client may do something. Kafka: `authorizer.class.name`."""

    def allows(
        self, session: Session, operation: AclOperation, resource: AclResource, name: str
    ) -> bool:
        """Whether the session's principal may perform the operation on the named resource."""
        ...


RESOURCE_FIELDS: Final[Mapping[AclResource, str]] = {
    AclResource.GROUP: "group_id",
    AclResource.TRANSACTIONAL_ID: "transactional_id",
}
"""The field of a request that names the resource of an `Extent.REQUEST` permission."""


def authorisation_check(policy: ApiPolicy, authorizer: Authorizer | None) -> Check | None:
    """The check of an API's `Extent.REQUEST` permissions; None if there is nothing to check.
    authorizer: None authorises every request, as Kafka does without `authorizer.class.name`.
    """
    needed = [access for access in policy.authorisation if access.extent is Extent.REQUEST]
    if authorizer is None or not needed:
        return None

    def check(context: RequestContext, request: Any) -> None:
        for access in needed:
            resource = access.resource
            name: str | None = CLUSTER_NAME
            if resource is not AclResource.CLUSTER:
                name = getattr(request, RESOURCE_FIELDS[resource])
            if name is not None and not any(
                authorizer.allows(context.session, operation, resource, name)
                for operation in access.operations
            ):
                raise KafkaError(AUTHORIZATION_FAILED[resource])

    return check


def checks_of(
    policy: ApiPolicy, broker: BrokerView, authorizer: Authorizer | None
) -> tuple[Check, ...]:
    """The steps between decoding a request and its handler that an API needs, in their order."""
    steps = (group_protocol_check(policy, broker), authorisation_check(policy, authorizer))
    return tuple(check for check in steps if check is not None)
