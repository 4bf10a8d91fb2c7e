"""The conversation about client quotas, SCRAM credentials and ACLs, on one broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.messages.admin.acls import (
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from kbroker.protocol.messages.admin.quotas import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
)
from kbroker.protocol.messages.authentication import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
)
from tests.reference.step import State, Step

EXACT, DEFAULT, SPECIFIED = 0, 1, 2
SHA_256, SHA_512 = 1, 2
Entity = dict[str, str | None]


def alter(
    *entries: tuple[Entity, dict[str, float | None]], validate_only: bool = False
) -> Callable[[State], Message]:
    """entries: entity, and the value of each key; None removes it."""
    kind = AlterClientQuotasRequest
    asked = [
        kind.EntryData(
            entity=[
                kind.EntityData(entity_type=each, entity_name=name) for each, name in entity.items()
            ],
            ops=[
                kind.OpData(key=key, value=value or 0.0, remove=value is None)
                for key, value in values.items()
            ],
        )
        for entity, values in entries
    ]
    return lambda _: kind(entries=asked, validate_only=validate_only)


def describe(
    *components: tuple[str, int, str | None], strict: bool = False
) -> Callable[[State], Message]:
    kind = DescribeClientQuotasRequest
    asked = [
        kind.ComponentData(entity_type=each, match_type=match_type, match=match)
        for each, match_type, match in components
    ]
    return lambda _: kind(components=asked, strict=strict)


def quota_steps() -> Iterator[Step]:
    """Each answer names one entity, since Kafka's order is that of a hash map."""
    alice: Entity = {"user": "alice"}
    for name, entity in (
        ("user", alice),
        ("default user", {"user": None}),
        ("client id", {"client-id": "app"}),
        ("default client id", {"client-id": None}),
        ("ip", {"ip": "127.0.0.1"}),
        ("default ip", {"ip": None}),
    ):
        key = "connection_creation_rate" if "ip" in name.split() else "producer_byte_rate"
        yield Step(f"set: {name}", 1, alter((entity, {key: 1000.0})))
    yield Step("set: v0", 0, alter(({"client-id": "old"}, {"request_percentage": 1.5})))
    for name, entity, values in (
        ("no parts", {}, {"producer_byte_rate": 1.0}),
        ("unknown type", {"group": "g"}, {"producer_byte_rate": 1.0}),
        ("empty name", {"user": ""}, {"producer_byte_rate": 1.0}),
        ("ip and user", {"ip": "127.0.0.1", "user": "u"}, {"producer_byte_rate": 1.0}),
        ("unknown key", alice, {"nosuch": 1.0}),
        ("a key of ips", alice, {"connection_creation_rate": 1.0}),
        ("a key of users", {"ip": None}, {"producer_byte_rate": 1.0}),
        ("zero", alice, {"producer_byte_rate": 0.0}),
        ("fraction", alice, {"consumer_byte_rate": 1.5}),
        ("fraction of a double", alice, {"controller_mutation_rate": 1.5}),
        ("beyond a long", alice, {"producer_byte_rate": 1e19}),
        ("beyond an int", {"ip": None}, {"connection_creation_rate": 2.0**31}),
        ("removal of nothing", alice, {"request_percentage": None}),
        ("removal of an unknown key", alice, {"nosuch": None}),
        ("no operation", alice, {}),
    ):
        asked: Entity = dict(entity)
        yield Step(f"alter: {name}", 1, alter((asked, dict(values))))
    yield Step(
        "alter: twice", 1, alter((alice, {"producer_byte_rate": 7.0}), (alice, {"nosuch": 1.0}))
    )
    yield Step(
        "alter: validated only", 1, alter((alice, {"consumer_byte_rate": 9.0}), validate_only=True)
    )


def filter_steps() -> Iterator[Step]:
    for name, component in (
        ("exact user", ("user", EXACT, "alice")),
        ("exact client id", ("client-id", EXACT, "app")),
        ("default client id", ("client-id", DEFAULT, None)),
        ("exact ip", ("ip", EXACT, "127.0.0.1")),
        ("default ip", ("ip", DEFAULT, None)),
        ("unknown user", ("user", EXACT, "nobody")),
        ("empty type", ("", EXACT, "x")),
        ("unknown type", ("group", EXACT, "x")),
        ("exact null", ("user", EXACT, None)),
        ("default with a match", ("user", DEFAULT, "x")),
        ("specified with a match", ("user", SPECIFIED, "x")),
        ("unknown match type", ("user", 3, None)),
    ):
        yield Step(f"describe: {name}", 1, describe(component))
    user, client = ("user", SPECIFIED, None), ("client-id", SPECIFIED, None)
    yield Step("describe: v0", 0, describe(("user", EXACT, "alice")))
    yield Step("describe: a type twice", 1, describe(user, user))
    yield Step("describe: ip and user", 1, describe(("ip", SPECIFIED, None), user))
    yield Step("describe: pairs", 1, describe(user, client))
    yield Step("describe: nothing, strictly", 1, describe(strict=True))
    for name, entity in (("default user", {"user": None}), ("client id", {"client-id": "app"})):
        removed: Entity = dict(entity)
        yield Step(f"remove: {name}", 1, alter((removed, {"producer_byte_rate": None})))
    yield Step("describe: users that are left", 1, describe(user, strict=True))


def credential_steps() -> Iterator[Step]:
    def change(
        *upsertions: tuple[str, int, int], deletions: tuple[tuple[str, int], ...] = ()
    ) -> Callable[[State], Message]:
        kind = AlterUserScramCredentialsRequest
        request = kind(
            deletions=[
                kind.ScramCredentialDeletion(name=name, mechanism=mechanism)
                for name, mechanism in deletions
            ],
            upsertions=[
                kind.ScramCredentialUpsertion(
                    name=name,
                    mechanism=mechanism,
                    iterations=iterations,
                    salt=b"salt",
                    salted_password=b"salted",
                )
                for name, mechanism, iterations in upsertions
            ],
        )
        return lambda _: request

    def describe_users(*names: str, everything: bool = False) -> Callable[[State], Message]:
        kind = DescribeUserScramCredentialsRequest
        users = None if everything else [kind.UserName(name=name) for name in names]
        return lambda _: kind(users=users)

    yield Step("credential: set", 0, change(("alice", SHA_256, 4096)))
    yield Step("credential: another mechanism", 0, change(("alice", SHA_512, 8192)))
    for name, upsertion in (
        ("no name", ("", SHA_256, 4096)),
        ("unknown mechanism", ("bob", 3, 4096)),
        ("too few iterations", ("bob", SHA_256, 4095)),
        ("too many iterations", ("bob", SHA_256, 16385)),
    ):
        yield Step(f"credential: {name}", 0, change(upsertion))
    twice = (("bob", SHA_256, 4096), ("bob", SHA_512, 4096))
    yield Step("credential: a user twice", 0, change(*twice))
    nobody = (("nobody", SHA_256),)
    yield Step("credential: nobody deleted", 0, change(deletions=nobody))
    yield Step(
        "credential: deleted and set", 0, change(("alice", 1, 5000), deletions=(("alice", 1),))
    )
    yield Step("credentials of a user", 0, describe_users("alice"))
    yield Step("credentials of nobody", 0, describe_users("nobody"))
    yield Step("credentials of a user twice", 0, describe_users("alice", "alice"))
    yield Step("credentials of all", 0, describe_users(everything=True))
    yield Step("credential: deleted", 0, change(deletions=(("alice", SHA_512),)))
    yield Step("credentials that are left", 0, describe_users())


def acl_steps() -> Iterator[Step]:
    describing = DescribeAclsRequest(resource_type_filter=1, operation=1, permission_type=1)
    creating = CreateAclsRequest(
        creations=[
            CreateAclsRequest.AclCreation(
                resource_type=2,
                resource_name="t",
                principal="User:alice",
                host="*",
                operation=3,
                permission_type=3,
            )
        ]
        * 2
    )
    deleting = DeleteAclsRequest(
        filters=[
            DeleteAclsRequest.DeleteAclsFilter(
                resource_type_filter=1, operation=1, permission_type=1
            )
        ]
    )
    for version in (1, 3):
        yield Step(f"acls: described v{version}", version, lambda _: describing)
        yield Step(f"acls: created v{version}", version, lambda _: creating)
        yield Step(f"acls: deleted v{version}", version, lambda _: deleting)


def steps() -> Iterator[Step]:
    yield from quota_steps()
    yield from filter_steps()
    yield from credential_steps()
    yield from acl_steps()
