"""AlterUserScramCredentials: what the controller decides, and the keys that it stores."""

from __future__ import annotations

import pytest

from kbroker.controller.configs.scram_credentials import MAX_ITERATIONS, derive_keys
from kbroker.metadata.scram_credentials import MECHANISMS, SCRAM_LEVEL
from kbroker.ports import at_once
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.authentication import AlterUserScramCredentialsRequest
from tests.controller.cluster import Cluster
from tests.controller.decisions import cases

SHA_256, SHA_512 = 1, 2
CONVERSATIONS = 120

Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion


def upsertion(name: str, *, mechanism: int = SHA_256, iterations: int = 4096) -> Upsertion:
    return Upsertion(
        name=name,
        mechanism=mechanism,
        iterations=iterations,
        salt=b"salt",
        salted_password=b"salted",
    )


def alter(cluster: Cluster, *alterations: Deletion | Upsertion) -> list[tuple[str, int, str]]:
    """(user, error, message) of each result."""
    request = AlterUserScramCredentialsRequest(
        deletions=[each for each in alterations if isinstance(each, Deletion)],
        upsertions=[each for each in alterations if isinstance(each, Upsertion)],
    )
    response = cluster.run(at_once(cluster.controller.alter_scram_credentials(request)))
    return [(each.user, each.error_code, each.error_message or "") for each in response.results]


def test_the_stored_keys_are_those_of_kafka() -> None:
    by_name = {mechanism.name: mechanism for mechanism in MECHANISMS.values()}
    compared = 0
    for number, case in cases("scram"):
        if "storedKey" not in case:
            continue
        compared += 1
        keys = derive_keys(by_name[case["mechanism"]], bytes.fromhex(case["saltedPassword"]))
        expected = bytes.fromhex(case["storedKey"]), bytes.fromhex(case["serverKey"])
        assert keys == expected, number
    assert compared == CONVERSATIONS


def test_a_credential_is_stored_replaced_and_deleted() -> None:
    cluster = Cluster()
    assert alter(cluster, upsertion("alice")) == [("alice", 0, "")]
    record = cluster.image.scram_credentials[SHA_256, "alice"]
    assert (record.iterations, record.salt) == (4096, b"salt")
    assert (record.stored_key, record.server_key) == derive_keys(MECHANISMS[SHA_256], b"salted")
    alter(cluster, upsertion("alice", iterations=8192))
    assert cluster.image.scram_credentials[SHA_256, "alice"].iterations == 8192
    assert alter(cluster, Deletion(name="alice", mechanism=SHA_256)) == [("alice", 0, "")]
    assert not cluster.image.scram_credentials


@pytest.mark.parametrize(
    ("alteration", "error", "message"),
    [
        (upsertion(""), ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"),
        (
            upsertion("a", mechanism=3),
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            "Unknown SCRAM mechanism",
        ),
        (upsertion("a", iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"),
        (
            upsertion("a", iterations=MAX_ITERATIONS + 1),
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            "Too many iterations",
        ),
        (
            Upsertion(name="a", mechanism=SHA_512, iterations=4096, salt=b"s"),
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            "The salted password is empty",
        ),
        (
            Deletion(name="a", mechanism=SHA_256),
            ErrorCode.RESOURCE_NOT_FOUND,
            "Attempt to delete a user credential that does not exist",
        ),
        (
            Deletion(name="", mechanism=SHA_256),
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            "Username must not be empty",
        ),
    ],
)
def test_what_is_refused(alteration: Deletion | Upsertion, error: ErrorCode, message: str) -> None:
    cluster = Cluster()
    assert alter(cluster, alteration) == [(alteration.name, error, message)]
    assert not cluster.image.scram_credentials


def test_a_user_named_twice_is_refused_and_others_are_not() -> None:
    cluster = Cluster()
    alter(cluster, upsertion("alice"))
    twice = "A user credential cannot be altered twice in the same request"
    results = alter(
        cluster,
        Deletion(name="alice", mechanism=SHA_256),
        upsertion("alice", iterations=9000),
        upsertion("bob"),
        upsertion("carol", iterations=1),
        upsertion("carol"),
    )
    assert results == [
        ("alice", ErrorCode.DUPLICATE_RESOURCE, twice),
        ("bob", 0, ""),
        ("carol", ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"),
    ]
    assert set(cluster.image.scram_credentials) == {(SHA_256, "alice"), (SHA_256, "bob")}


def test_an_old_metadata_version_stores_none() -> None:
    cluster = Cluster()
    cluster.level(SCRAM_LEVEL - 1)
    ((_, error, message),) = alter(cluster, upsertion("alice"))
    assert error == ErrorCode.UNSUPPORTED_VERSION
    assert message == "The current metadata.version does not support SCRAM"


def test_a_decision_on_many_users_is_made_in_steps() -> None:
    cluster = Cluster()
    request = AlterUserScramCredentialsRequest(
        upsertions=[upsertion(f"u{number}") for number in range(1000)]
    )
    assert sum(1 for _ in cluster.controller.alter_scram_credentials(request)) > 20
