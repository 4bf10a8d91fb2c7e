"""The policies of administration and of the quorum: a table for each module of `handlers/`.

They stand apart from the handlers, which are imported when the first request for them arrives.
"""

from __future__ import annotations

from typing import Final

from kbroker.protocol.acl_operations import AclOperation, AclResource
from kbroker.protocol.apis import ApiKey
from kbroker.server.api_policy import (
    CLUSTER_ACTION,
    DELETE_EACH_TOPIC,
    DESCRIBE_EACH_TOPIC,
    EVERY_LISTENER,
    Access,
    ApiPolicy,
    Extent,
    Forward,
    ListenerType,
    MemoryClass,
    Policies,
    Quota,
    Versions,
)

TOPICS: Final[Policies] = {
    ApiKey.CREATE_TOPICS: ApiPolicy(
        Versions(0, 7),
        (
            Access(Extent.INSTEAD, AclResource.CLUSTER, (AclOperation.CREATE,)),
            Access(Extent.EACH, AclResource.TOPIC, (AclOperation.CREATE,)),
        ),
        listeners=EVERY_LISTENER,
        forward=Forward.TO_CONTROLLER,
        quota=Quota.CONTROLLER_MUTATION,
    ),
    ApiKey.DELETE_TOPICS: ApiPolicy(
        Versions(0, 6),
        (
            Access(Extent.INSTEAD, AclResource.CLUSTER, (AclOperation.DELETE,)),
            DESCRIBE_EACH_TOPIC,
            DELETE_EACH_TOPIC,
        ),
        listeners=EVERY_LISTENER,
        forward=Forward.TO_CONTROLLER,
        quota=Quota.CONTROLLER_MUTATION,
    ),
    ApiKey.CREATE_PARTITIONS: ApiPolicy(
        Versions(0, 3),
        (Access(Extent.EACH, AclResource.TOPIC, (AclOperation.ALTER,)),),
        listeners=EVERY_LISTENER,
        forward=Forward.TO_CONTROLLER,
        quota=Quota.CONTROLLER_MUTATION,
    ),
}


def _leaders_and_replicas_policy(max_version: int, operation: AclOperation) -> ApiPolicy:
    return ApiPolicy(
        Versions(0, max_version),
        (Access(Extent.REQUEST, AclResource.CLUSTER, (operation,)),),
        listeners=EVERY_LISTENER,
        forward=Forward.TO_CONTROLLER,
    )


LEADERS_AND_REPLICAS: Final[Policies] = {
    ApiKey.ELECT_LEADERS: _leaders_and_replicas_policy(2, AclOperation.ALTER),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _leaders_and_replicas_policy(1, AclOperation.ALTER),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _leaders_and_replicas_policy(0, AclOperation.DESCRIBE),
}

CONFIGS: Final[Policies] = {
    ApiKey.DESCRIBE_CONFIGS: ApiPolicy(
        Versions(0, 4),
        (
            Access(Extent.EACH, AclResource.CLUSTER, (AclOperation.DESCRIBE_CONFIGS,)),
            Access(Extent.EACH, AclResource.TOPIC, (AclOperation.DESCRIBE_CONFIGS,)),
            Access(Extent.EACH, AclResource.GROUP, (AclOperation.DESCRIBE_CONFIGS,)),
        ),
        listeners=EVERY_LISTENER,
    ),
}

FEATURES: Final[Policies] = {
    ApiKey.UPDATE_FEATURES: ApiPolicy(
        Versions(0, 2),
        (Access(Extent.REQUEST, AclResource.CLUSTER, (AclOperation.ALTER,)),),
        listeners=EVERY_LISTENER,
        forward=Forward.TO_CONTROLLER,
    ),
}

ALTER_EACH_RESOURCE: Final = (
    Access(Extent.EACH, AclResource.CLUSTER, (AclOperation.ALTER_CONFIGS,)),
    Access(Extent.EACH, AclResource.TOPIC, (AclOperation.ALTER_CONFIGS,)),
    Access(Extent.EACH, AclResource.GROUP, (AclOperation.ALTER_CONFIGS,)),
)

ALTER_CONFIGS: Final[Policies] = {
    ApiKey.ALTER_CONFIGS: ApiPolicy(
        Versions(0, 2),
        ALTER_EACH_RESOURCE,
        listeners=EVERY_LISTENER,
        forward=Forward.CHECKED,
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ApiPolicy(
        Versions(0, 1),
        ALTER_EACH_RESOURCE,
        listeners=EVERY_LISTENER,
        forward=Forward.CHECKED,
    ),
    ApiKey.LIST_CONFIG_RESOURCES: ApiPolicy(
        Versions(0, 1),
        (Access(Extent.REQUEST, AclResource.CLUSTER, (AclOperation.DESCRIBE_CONFIGS,)),),
    ),
}

CLIENT_QUOTAS: Final[Policies] = {
    ApiKey.DESCRIBE_CLIENT_QUOTAS: ApiPolicy(
        Versions(0, 1),
        (Access(Extent.REQUEST, AclResource.CLUSTER, (AclOperation.DESCRIBE_CONFIGS,)),),
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: ApiPolicy(
        Versions(0, 1),
        (Access(Extent.REQUEST, AclResource.CLUSTER, (AclOperation.ALTER_CONFIGS,)),),
        listeners=EVERY_LISTENER,
        forward=Forward.TO_CONTROLLER,
    ),
}

SCRAM_CREDENTIALS: Final[Policies] = {
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: ApiPolicy(
        Versions(0, 0),
        (Access(Extent.REQUEST, AclResource.CLUSTER, (AclOperation.DESCRIBE,)),),
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: ApiPolicy(
        Versions(0, 0),
        (Access(Extent.REQUEST, AclResource.CLUSTER, (AclOperation.ALTER,)),),
        listeners=EVERY_LISTENER,
        forward=Forward.TO_CONTROLLER,
    ),
}

ACLS: Final[Policies] = {
    ApiKey.DESCRIBE_ACLS: ApiPolicy(
        Versions(0, 3),
        (Access(Extent.REQUEST, AclResource.CLUSTER, (AclOperation.DESCRIBE,)),),
        listeners=EVERY_LISTENER,
    ),
    ApiKey.CREATE_ACLS: ApiPolicy(
        Versions(0, 3),
        (Access(Extent.REQUEST, AclResource.CLUSTER, (AclOperation.ALTER,)),),
        listeners=EVERY_LISTENER,
        forward=Forward.TO_CONTROLLER,
    ),
    ApiKey.DELETE_ACLS: ApiPolicy(
        Versions(0, 3),
        (Access(Extent.REQUEST, AclResource.CLUSTER, (AclOperation.ALTER,)),),
        listeners=EVERY_LISTENER,
        forward=Forward.TO_CONTROLLER,
    ),
}

CONTROLLERS: Final[Policies] = {
    ApiKey.DESCRIBE_CLUSTER: ApiPolicy(
        Versions(0, 2),
        (Access(Extent.REQUEST, AclResource.CLUSTER, (AclOperation.ALTER,)),),
        listeners=ListenerType.CONTROLLER,
    ),
    ApiKey.CONTROLLER_REGISTRATION: ApiPolicy(
        Versions(0, 0),
        (CLUSTER_ACTION,),
        listeners=ListenerType.CONTROLLER,
        memory_class=MemoryClass.SMALL_RESPONSE,
    ),
}


def _brokers_policy(
    low: int, high: int, memory_class: MemoryClass, forward: Forward = Forward.NEVER
) -> ApiPolicy:
    return ApiPolicy(
        Versions(low, high),
        (CLUSTER_ACTION,),
        listeners=ListenerType.CONTROLLER,
        forward=forward,
        memory_class=memory_class,
    )


BROKERS: Final[Policies] = {
    ApiKey.BROKER_REGISTRATION: _brokers_policy(0, 4, MemoryClass.SMALL_RESPONSE),
    ApiKey.BROKER_HEARTBEAT: _brokers_policy(0, 2, MemoryClass.SMALL_RESPONSE),
    ApiKey.ALTER_PARTITION: _brokers_policy(2, 3, MemoryClass.LARGE_RESPONSE),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: _brokers_policy(0, 0, MemoryClass.LARGE_RESPONSE),
    ApiKey.ALLOCATE_PRODUCER_IDS: _brokers_policy(
        0, 0, MemoryClass.SMALL_RESPONSE, Forward.TO_CONTROLLER
    ),
    ApiKey.UNREGISTER_BROKER: ApiPolicy(
        Versions(0, 0),
        (Access(Extent.REQUEST, AclResource.CLUSTER, (AclOperation.ALTER,)),),
        listeners=EVERY_LISTENER,
        forward=Forward.TO_CONTROLLER,
        memory_class=MemoryClass.SMALL_RESPONSE,
    ),
}

ENVELOPE: Final[Policies] = {
    ApiKey.ENVELOPE: ApiPolicy(
        Versions(0, 0),
        (CLUSTER_ACTION,),
        listeners=ListenerType.CONTROLLER,
        quota=Quota.EXEMPT,
    ),
}

ALTER_CLUSTER: Final = Access(Extent.REQUEST, AclResource.CLUSTER, (AclOperation.ALTER,))
DESCRIBE_CLUSTER: Final = Access(Extent.REQUEST, AclResource.CLUSTER, (AclOperation.DESCRIBE,))


def _raft(
    versions: tuple[int, int],
    access: Access,
    *,
    waits_for_others: bool = False,
    quota: Quota = Quota.REQUEST,
    forward: Forward = Forward.NEVER,
) -> ApiPolicy:
    """forward: TO_CONTROLLER if brokers have the API, too."""
    is_forwarded = forward is Forward.TO_CONTROLLER
    return ApiPolicy(
        Versions(*versions),
        (access,),
        listeners=EVERY_LISTENER if is_forwarded else ListenerType.CONTROLLER,
        forward=forward,
        quota=quota,
        memory_class=MemoryClass.SMALL_RESPONSE,
        waits_for_others=waits_for_others,
    )


QUORUM: Final[Policies] = {
    ApiKey.VOTE: _raft((0, 2), CLUSTER_ACTION, quota=Quota.EXEMPT),
    ApiKey.BEGIN_QUORUM_EPOCH: _raft((0, 1), CLUSTER_ACTION, quota=Quota.EXEMPT),
    ApiKey.END_QUORUM_EPOCH: _raft((0, 1), CLUSTER_ACTION, quota=Quota.EXEMPT),
    ApiKey.FETCH: _raft((4, 18), CLUSTER_ACTION, waits_for_others=True),
    ApiKey.FETCH_SNAPSHOT: _raft((0, 1), CLUSTER_ACTION),
    ApiKey.DESCRIBE_QUORUM: _raft(
        (0, 2), DESCRIBE_CLUSTER, quota=Quota.EXEMPT, forward=Forward.TO_CONTROLLER
    ),
    ApiKey.ADD_RAFT_VOTER: _raft(
        (0, 1), ALTER_CLUSTER, waits_for_others=True, forward=Forward.TO_CONTROLLER
    ),
    ApiKey.REMOVE_RAFT_VOTER: _raft(
        (0, 0), ALTER_CLUSTER, waits_for_others=True, forward=Forward.TO_CONTROLLER
    ),
    ApiKey.UPDATE_RAFT_VOTER: _raft((0, 0), CLUSTER_ACTION),
}
