"""The policies of groups, transactions and share groups: a table for each module of `handlers/`.

They stand apart from the handlers, which are imported when the first request for them arrives.
"""

from __future__ import annotations

from typing import Final

from kbroker.protocol.acl_operations import AclOperation, AclResource
from kbroker.protocol.apis import ApiKey
from kbroker.server.api_policy import (
    CLUSTER_ACTION,
    CONSUMER_PROTOCOL,
    DELETE_GROUP,
    DESCRIBE_EACH_GROUP,
    DESCRIBE_EACH_TOPIC,
    READ_EACH_TOPIC,
    READ_GROUP,
    STREAMS_PROTOCOL,
    WRITE_TRANSACTIONAL_ID,
    Access,
    ApiPolicy,
    Extent,
    MemoryClass,
    Policies,
    Quota,
    Versions,
)

INIT_PRODUCER_ID: Final[Policies] = {
    ApiKey.INIT_PRODUCER_ID: ApiPolicy(
        # Without a transactional id: IDEMPOTENT_WRITE, or WRITE on any topic.
        Versions(0, 5),
        (
            WRITE_TRANSACTIONAL_ID,
            Access(Extent.SOME, AclResource.TRANSACTIONAL_ID, (AclOperation.TWO_PHASE_COMMIT,)),
            Access(Extent.SOME, AclResource.CLUSTER, (AclOperation.IDEMPOTENT_WRITE,)),
            Access(Extent.SOME, AclResource.TOPIC, (AclOperation.WRITE,)),
        ),
        memory_class=MemoryClass.SMALL_RESPONSE,
    ),
}

FIND_COORDINATOR: Final[Policies] = {
    ApiKey.FIND_COORDINATOR: ApiPolicy(
        # CLUSTER_ACTION: keys of share partitions.
        Versions(0, 6),
        (
            DESCRIBE_EACH_GROUP,
            Access(Extent.EACH, AclResource.TRANSACTIONAL_ID, (AclOperation.DESCRIBE,)),
            Access(Extent.SOME, AclResource.CLUSTER, (AclOperation.CLUSTER_ACTION,)),
        ),
        memory_class=MemoryClass.SMALL_RESPONSE,
    ),
}

TRANSACTIONS: Final[Policies] = {
    ApiKey.ADD_PARTITIONS_TO_TXN: ApiPolicy(
        # CLUSTER_ACTION from version 4 on, which brokers send; WRITE before.
        Versions(0, 5),
        (
            Access(Extent.SOME, AclResource.CLUSTER, (AclOperation.CLUSTER_ACTION,)),
            Access(Extent.SOME, AclResource.TRANSACTIONAL_ID, (AclOperation.WRITE,)),
            Access(Extent.SOME, AclResource.TOPIC, (AclOperation.WRITE,)),
        ),
        memory_class=MemoryClass.SMALL_RESPONSE,
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: ApiPolicy(
        Versions(0, 4),
        (WRITE_TRANSACTIONAL_ID, READ_GROUP),
        memory_class=MemoryClass.SMALL_RESPONSE,
    ),
    ApiKey.TXN_OFFSET_COMMIT: ApiPolicy(
        Versions(0, 5),
        (WRITE_TRANSACTIONAL_ID, READ_GROUP, READ_EACH_TOPIC),
        memory_class=MemoryClass.SMALL_RESPONSE,
    ),
    ApiKey.END_TXN: ApiPolicy(
        Versions(0, 5), (WRITE_TRANSACTIONAL_ID,), memory_class=MemoryClass.SMALL_RESPONSE
    ),
}

TRANSACTION_TOOLS: Final[Policies] = {
    ApiKey.WRITE_TXN_MARKERS: ApiPolicy(
        Versions(1, 2),
        (
            Access(
                Extent.REQUEST,
                AclResource.CLUSTER,
                (
                    AclOperation.ALTER,
                    AclOperation.CLUSTER_ACTION,
                ),
            ),
        ),
        quota=Quota.EXEMPT,
        memory_class=MemoryClass.SMALL_RESPONSE,
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: ApiPolicy(
        Versions(0, 0),
        (
            Access(Extent.EACH, AclResource.TRANSACTIONAL_ID, (AclOperation.DESCRIBE,)),
            Access(Extent.LISTED, AclResource.TOPIC, (AclOperation.DESCRIBE,)),
        ),
    ),
    ApiKey.LIST_TRANSACTIONS: ApiPolicy(
        Versions(0, 2),
        (Access(Extent.LISTED, AclResource.TRANSACTIONAL_ID, (AclOperation.DESCRIBE,)),),
    ),
}

GROUPS: Final[Policies] = {
    ApiKey.JOIN_GROUP: ApiPolicy(
        Versions(0, 9),
        (READ_GROUP,),
        memory_class=MemoryClass.SMALL_RESPONSE,
        waits_for_others=True,
    ),
    ApiKey.SYNC_GROUP: ApiPolicy(
        Versions(0, 5),
        (READ_GROUP,),
        memory_class=MemoryClass.SMALL_RESPONSE,
        waits_for_others=True,
    ),
    ApiKey.HEARTBEAT: ApiPolicy(
        Versions(0, 4), (READ_GROUP,), memory_class=MemoryClass.SMALL_RESPONSE
    ),
    ApiKey.LEAVE_GROUP: ApiPolicy(
        Versions(0, 5), (READ_GROUP,), memory_class=MemoryClass.SMALL_RESPONSE
    ),
    ApiKey.LIST_GROUPS: ApiPolicy(
        Versions(0, 5),
        (
            Access(Extent.INSTEAD, AclResource.CLUSTER, (AclOperation.DESCRIBE,)),
            Access(Extent.LISTED, AclResource.GROUP, (AclOperation.DESCRIBE,)),
        ),
    ),
    ApiKey.DESCRIBE_GROUPS: ApiPolicy(Versions(0, 6), (DESCRIBE_EACH_GROUP,)),
}

CONSUMER_GROUPS: Final[Policies] = {
    ApiKey.CONSUMER_GROUP_HEARTBEAT: ApiPolicy(
        # DESCRIBE: all subscribed topics, or the whole request is refused.
        Versions(0, 1),
        (READ_GROUP, Access(Extent.SOME, AclResource.TOPIC, (AclOperation.DESCRIBE,))),
        memory_class=MemoryClass.SMALL_RESPONSE,
        group_protocol=CONSUMER_PROTOCOL,
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: ApiPolicy(
        # DESCRIBE on topics: all of a group's, or the group is refused.
        Versions(0, 1),
        (DESCRIBE_EACH_GROUP, Access(Extent.SOME, AclResource.TOPIC, (AclOperation.DESCRIBE,))),
        group_protocol=CONSUMER_PROTOCOL,
    ),
}

STREAMS_GROUPS: Final[Policies] = {
    ApiKey.STREAMS_GROUP_HEARTBEAT: ApiPolicy(
        # DESCRIBE: all topics of the topology, or the whole request is refused. CREATE: of
        # internal topics.
        Versions(0, 0),
        (
            READ_GROUP,
            Access(Extent.SOME, AclResource.TOPIC, (AclOperation.DESCRIBE,)),
            Access(Extent.INSTEAD, AclResource.CLUSTER, (AclOperation.CREATE,)),
            Access(Extent.SOME, AclResource.TOPIC, (AclOperation.CREATE,)),
        ),
        memory_class=MemoryClass.SMALL_RESPONSE,
        group_protocol=STREAMS_PROTOCOL,
    ),
    ApiKey.STREAMS_GROUP_DESCRIBE: ApiPolicy(
        # DESCRIBE on topics: all of a group's, or the group is refused.
        Versions(0, 0),
        (DESCRIBE_EACH_GROUP, Access(Extent.SOME, AclResource.TOPIC, (AclOperation.DESCRIBE,))),
        group_protocol=STREAMS_PROTOCOL,
    ),
}

DELETE_GROUPS: Final[Policies] = {
    ApiKey.DELETE_GROUPS: ApiPolicy(
        Versions(0, 2), (Access(Extent.EACH, AclResource.GROUP, (AclOperation.DELETE,)),)
    ),
    ApiKey.OFFSET_DELETE: ApiPolicy(
        Versions(0, 0),
        (DELETE_GROUP, READ_EACH_TOPIC),
    ),
}

SHARE_GROUPS: Final[Policies] = {
    ApiKey.SHARE_GROUP_HEARTBEAT: ApiPolicy(
        # DESCRIBE: all subscribed topics, or the whole request is refused.
        Versions(1, 1),
        (READ_GROUP, Access(Extent.SOME, AclResource.TOPIC, (AclOperation.DESCRIBE,))),
        memory_class=MemoryClass.SMALL_RESPONSE,
    ),
    ApiKey.SHARE_GROUP_DESCRIBE: ApiPolicy(
        # DESCRIBE on topics: all of a group's, or the group is refused.
        Versions(1, 1),
        (DESCRIBE_EACH_GROUP, Access(Extent.SOME, AclResource.TOPIC, (AclOperation.DESCRIBE,))),
    ),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: ApiPolicy(
        Versions(0, 1),
        (DESCRIBE_EACH_GROUP, DESCRIBE_EACH_TOPIC),
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: ApiPolicy(
        Versions(0, 0),
        (READ_GROUP, READ_EACH_TOPIC),
    ),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: ApiPolicy(
        Versions(0, 0),
        (DELETE_GROUP, READ_EACH_TOPIC),
    ),
}

SHARE_FETCH: Final[Policies] = {
    ApiKey.SHARE_FETCH: ApiPolicy(
        Versions(1, 2),
        (READ_GROUP, READ_EACH_TOPIC),
        quota=Quota.FETCH,
        memory_class=MemoryClass.SMALL_RESPONSE,
        waits_for_others=True,
    ),
    ApiKey.SHARE_ACKNOWLEDGE: ApiPolicy(
        Versions(1, 2),
        (READ_GROUP, READ_EACH_TOPIC),
        memory_class=MemoryClass.SMALL_RESPONSE,
    ),
}

SHARE_STATE: Final[Policies] = {
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: ApiPolicy(
        Versions(0, 0), (CLUSTER_ACTION,), quota=Quota.EXEMPT
    ),
    ApiKey.READ_SHARE_GROUP_STATE: ApiPolicy(Versions(0, 0), (CLUSTER_ACTION,), quota=Quota.EXEMPT),
    ApiKey.WRITE_SHARE_GROUP_STATE: ApiPolicy(
        Versions(0, 1), (CLUSTER_ACTION,), quota=Quota.EXEMPT
    ),
    ApiKey.DELETE_SHARE_GROUP_STATE: ApiPolicy(
        Versions(0, 0), (CLUSTER_ACTION,), quota=Quota.EXEMPT
    ),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: ApiPolicy(
        Versions(0, 1), (CLUSTER_ACTION,), quota=Quota.EXEMPT
    ),
}

OFFSETS: Final[Policies] = {
    ApiKey.OFFSET_COMMIT: ApiPolicy(
        Versions(0, 10),
        (READ_GROUP, READ_EACH_TOPIC),
        memory_class=MemoryClass.SMALL_RESPONSE,
    ),
    ApiKey.OFFSET_FETCH: ApiPolicy(
        Versions(0, 10),
        (DESCRIBE_EACH_GROUP, DESCRIBE_EACH_TOPIC),
    ),
}
