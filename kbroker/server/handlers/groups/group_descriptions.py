"""What DescribeGroups, ConsumerGroupDescribe, ShareGroupDescribe and StreamsGroupDescribe have in
common: groups are described in slices of the loop, and only so much is answered.

A group named again is described once, where Kafka repeats it; one that would go beyond
`kbroker.response.max.bytes` is answered POLICY_VIOLATION. A group of many members is described over
several turns of the loop, so the states of its members may be of different moments. The response
leaves when everything that it shows is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Final

from kbroker.ports import Deferred
from kbroker.protocol.acl_operations import AclResource, authorized_operations
from kbroker.protocol.codecs.schema import Struct
from kbroker.protocol.errors import ErrorCode
from kbroker.replication.time_slices import STEP_ITEMS
from kbroker.server.services import Services
from kbroker.server.slicing.sliced import TOO_LARGE, AnswerSize, once_each

_OBJECT_BYTES: Final = 64
_ENTRY_BYTES: Final = 16


# Any: each of the four APIs has classes of its own for groups and members, of the same shape
def described_groups(
    services: Services,
    group_ids: Iterable[str],
    describe: Callable[[str], tuple[Any, Iterator[Any]]],
    *,
    with_operations: bool,
) -> Generator[Deferred[ErrorCode] | None, None, list[Any]]:
    """The groups of a response, each once; steps of a sliced handler. describe: a group without its
    members, and its members.
    """
    groups: list[Any] = []
    uncommitted: list[tuple[int, Deferred[ErrorCode]]] = []
    with AnswerSize(services) as size:
        named = yield from once_each(group_ids)
        for count, group_id in enumerate(named, 1):
            if count % STEP_ITEMS == 0:
                yield None
            when_committed = services.groups.committed(group_id)
            group, members = describe(group_id)
            fits = size.add(answer_bytes(group))
            for number, member in enumerate(members, 1):
                if number % STEP_ITEMS == 0:
                    yield None
                fits = fits and size.add(answer_bytes(member))
                if not fits:
                    break
                group.members.append(member)
            if not fits:
                group.members = []
                group.error_code, group.error_message = ErrorCode.POLICY_VIOLATION, TOO_LARGE
            if with_operations and group.error_code == ErrorCode.NONE:
                group.authorized_operations = authorized_operations(AclResource.GROUP)
            committed = when_committed()
            if not committed.done or committed.value is not ErrorCode.NONE:
                uncommitted.append((len(groups), committed))
            groups.append(group)
        for place, committed in uncommitted:
            if not committed.done:
                yield committed
            if committed.value is not ErrorCode.NONE:
                group = groups[place]
                groups[place] = type(group)(group_id=group.group_id, error_code=committed.value)
    return groups


def answer_bytes(value: object) -> int:
    """About how much memory a part of a response has."""
    match value:
        case str() | bytes() | memoryview():
            return _OBJECT_BYTES + len(value)
        case list():
            if value and isinstance(value[0], int):
                return _OBJECT_BYTES + _ENTRY_BYTES * len(value)
            return _OBJECT_BYTES + sum(map(answer_bytes, value))
        case Struct():
            fields = (getattr(value, field.name) for field in value.FIELDS)
            return _OBJECT_BYTES + sum(map(answer_bytes, fields))
        case _:
            return _ENTRY_BYTES
