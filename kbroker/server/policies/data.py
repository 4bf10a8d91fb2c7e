"""The policies of metadata, data and client metrics: a table for each module of `handlers/`.

They stand apart from the handlers, which are imported when the first request for them arrives.
"""

from __future__ import annotations

from typing import Final

from kbroker.protocol.acl_operations import AclOperation, AclResource
from kbroker.protocol.apis import ApiKey
from kbroker.server.api_policy import (
    DELETE_EACH_TOPIC,
    DESCRIBE_EACH_TOPIC,
    EVERY_LISTENER,
    NO_AUTHORISATION,
    READ_EACH_TOPIC,
    WRITE_EACH_TOPIC,
    WRITE_TRANSACTIONAL_ID,
    Access,
    ApiPolicy,
    Extent,
    MemoryClass,
    Policies,
    Quota,
    Versions,
)

API_VERSIONS: Final[Policies] = {
    ApiKey.API_VERSIONS: ApiPolicy(
        Versions(0, 4),
        NO_AUTHORISATION,
        listeners=EVERY_LISTENER,
        memory_class=MemoryClass.SMALL_RESPONSE,
    ),
}

METADATA: Final[Policies] = {
    ApiKey.METADATA: ApiPolicy(
        # CREATE: topics that are created automatically.
        Versions(0, 13),
        (
            DESCRIBE_EACH_TOPIC,
            Access(Extent.INSTEAD, AclResource.CLUSTER, (AclOperation.CREATE,)),
            Access(Extent.SOME, AclResource.TOPIC, (AclOperation.CREATE,)),
        ),
    ),
}

TOPIC_PARTITIONS: Final[Policies] = {
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: ApiPolicy(Versions(0, 0), (DESCRIBE_EACH_TOPIC,)),
}

CLUSTER: Final[Policies] = {
    ApiKey.DESCRIBE_CLUSTER: ApiPolicy(Versions(0, 2), NO_AUTHORISATION),
}

PRODUCE: Final[Policies] = {
    ApiKey.PRODUCE: ApiPolicy(
        Versions(0, 13),
        (WRITE_TRANSACTIONAL_ID, WRITE_EACH_TOPIC),
        quota=Quota.PRODUCE,
        memory_class=MemoryClass.SMALL_RESPONSE,
        mostly_records=True,
    ),
}

FETCH: Final[Policies] = {
    ApiKey.FETCH: ApiPolicy(
        # CLUSTER_ACTION: requests of followers, in place of READ.
        Versions(0, 18),
        (
            Access(Extent.SOME, AclResource.CLUSTER, (AclOperation.CLUSTER_ACTION,)),
            READ_EACH_TOPIC,
        ),
        quota=Quota.FETCH,
        memory_class=MemoryClass.SMALL_RESPONSE,
        waits_for_others=True,
    ),
}

LIST_OFFSETS: Final[Policies] = {
    ApiKey.LIST_OFFSETS: ApiPolicy(Versions(0, 11), (DESCRIBE_EACH_TOPIC,)),
}

DELETE_RECORDS: Final[Policies] = {
    ApiKey.DELETE_RECORDS: ApiPolicy(Versions(0, 2), (DELETE_EACH_TOPIC,), waits_for_others=True),
}

LEADER_EPOCHS: Final[Policies] = {
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ApiPolicy(
        Versions(0, 4),
        (
            Access(Extent.INSTEAD, AclResource.CLUSTER, (AclOperation.CLUSTER_ACTION,)),
            DESCRIBE_EACH_TOPIC,
        ),
    ),
}

LOG_DIRS: Final[Policies] = {
    ApiKey.ALTER_REPLICA_LOG_DIRS: ApiPolicy(
        Versions(0, 2), (Access(Extent.REQUEST, AclResource.CLUSTER, (AclOperation.ALTER,)),)
    ),
    ApiKey.DESCRIBE_LOG_DIRS: ApiPolicy(
        Versions(0, 5), (Access(Extent.REQUEST, AclResource.CLUSTER, (AclOperation.DESCRIBE,)),)
    ),
}

PRODUCERS: Final[Policies] = {
    ApiKey.DESCRIBE_PRODUCERS: ApiPolicy(Versions(0, 0), (READ_EACH_TOPIC,)),
}

TELEMETRY: Final[Policies] = {
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: ApiPolicy(
        Versions(0, 0), NO_AUTHORISATION, memory_class=MemoryClass.SMALL_RESPONSE
    ),
    ApiKey.PUSH_TELEMETRY: ApiPolicy(
        Versions(0, 0), NO_AUTHORISATION, memory_class=MemoryClass.SMALL_RESPONSE
    ),
}
