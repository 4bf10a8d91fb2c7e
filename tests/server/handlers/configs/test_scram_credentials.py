"""DescribeUserScramCredentials and AlterUserScramCredentials as the dispatcher calls them."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.metadata.image import MetadataImage
from kbroker.metadata.layered_map import LayeredMap
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.authentication import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from kbroker.protocol.messages.stored.metadata_records import UserScramCredentialRecord
from kbroker.server.handlers.configs.scram_credentials import HANDLERS
from kbroker.server.requests import RequestContext
from kbroker.server.slicing.sliced import TOO_LARGE
from tests.server.slices import Sliced

DESCRIBE, ALTER = HANDLERS
UserName = DescribeUserScramCredentialsRequest.UserName


def image(*users: str) -> MetadataImage:
    credentials = {
        (mechanism, user): UserScramCredentialRecord(
            name=user, mechanism=mechanism, iterations=4096 * mechanism, stored_key=b"secret"
        )
        for user in users
        for mechanism in (1, 2)
    }
    return MetadataImage(scram_credentials=LayeredMap(credentials))


def describe(
    *users: str, known: tuple[str, ...] = ("alice", "bob"), limit: int = 1 << 20
) -> DescribeUserScramCredentialsResponse:
    sliced = Sliced(limit=limit, image=image(*known))
    request = DescribeUserScramCredentialsRequest(users=[UserName(name=name) for name in users])
    context = RequestContext(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0)
    response = sliced.answer(DESCRIBE.handle(sliced.services, context, request))
    assert isinstance(response, DescribeUserScramCredentialsResponse)
    return response


def lines(response: DescribeUserScramCredentialsResponse) -> list[tuple[Any, ...]]:
    return [
        (
            each.user,
            each.error_code,
            each.error_message,
            [(info.mechanism, info.iterations) for info in each.credential_infos],
        )
        for each in response.results
    ]


BOTH = [(1, 4096), (2, 8192)]


def test_all_users_are_described_if_none_is_named() -> None:
    expected = [("alice", 0, "", BOTH), ("bob", 0, "", BOTH)]
    assert lines(describe()) == expected
    sliced = Sliced(image=image("bob", "alice"))
    context = RequestContext(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0)
    request = DescribeUserScramCredentialsRequest(users=None)
    response = sliced.answer(DESCRIBE.handle(sliced.services, context, request))
    assert lines(response) == expected


def test_named_users_have_outcomes_of_their_own() -> None:
    assert lines(describe("bob", "carol", "alice", "alice")) == [
        ("bob", 0, "", BOTH),
        (
            "carol",
            ErrorCode.RESOURCE_NOT_FOUND,
            "Attempt to describe a user credential that does not exist: carol",
            [],
        ),
        (
            "alice",
            ErrorCode.DUPLICATE_RESOURCE,
            "Cannot describe SCRAM credentials for the same user twice in a single request: alice",
            [],
        ),
    ]


def test_a_response_has_a_bound() -> None:
    response = describe(known=tuple(f"user{number}" for number in range(100)), limit=2048)
    assert (response.error_code, response.error_message) == (ErrorCode.POLICY_VIOLATION, TOO_LARGE)
    assert not response.results


def test_the_loop_has_its_turn_while_many_users_are_described() -> None:
    sliced = Sliced(image=image(), limit=1 << 30)
    context = RequestContext(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0)
    named = [UserName(name=f"u{number}") for number in range(5000)]
    request = DescribeUserScramCredentialsRequest(users=named)
    outcome = DESCRIBE.handle(sliced.services, context, request)
    assert isinstance(outcome, Deferred) and not outcome.done
    assert len(sliced.answer(outcome).results) == 5000


def test_an_alteration_is_the_controllers() -> None:
    answer = AlterUserScramCredentialsResponse()

    class Controller:
        def alter_scram_credentials(
            self, request: AlterUserScramCredentialsRequest
        ) -> Deferred[AlterUserScramCredentialsResponse]:
            return Deferred.of(answer)

    sliced = Sliced(controller=Controller())
    context = RequestContext(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0)
    request = AlterUserScramCredentialsRequest()
    assert sliced.answer(ALTER.handle(sliced.services, context, request)) is answer


def test_an_alteration_keeps_nothing_of_the_frame() -> None:
    """The controller may decide on it when the frame has the bytes of another request."""
    frame = bytearray(b"saltpassword")
    asked: list[AlterUserScramCredentialsRequest] = []

    class Controller:
        def alter_scram_credentials(
            self, request: AlterUserScramCredentialsRequest
        ) -> Deferred[AlterUserScramCredentialsResponse]:
            asked.append(request)
            return Deferred()

    upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name="u",
        mechanism=1,
        iterations=4096,
        salt=memoryview(frame)[:4],
        salted_password=memoryview(frame)[4:],
    )
    sliced = Sliced(controller=Controller())
    context = RequestContext(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0)
    ALTER.handle(sliced.services, context, AlterUserScramCredentialsRequest(upsertions=[upsertion]))
    frame[:] = bytes(len(frame))
    (kept,) = asked[0].upsertions
    assert (kept.salt, kept.salted_password) == (b"salt", b"password")


def test_an_alteration_given_up_names_each_user_once() -> None:
    kind = AlterUserScramCredentialsRequest
    request = kind(
        deletions=[kind.ScramCredentialDeletion(name="b"), kind.ScramCredentialDeletion(name="a")],
        upsertions=[kind.ScramCredentialUpsertion(name="b")],
    )
    response = ALTER.error_response(request, ErrorCode.NOT_CONTROLLER, "")
    assert isinstance(response, AlterUserScramCredentialsResponse)
    assert [(each.user, each.error_code, each.error_message) for each in response.results] == [
        ("a", 41, None),
        ("b", 41, None),
    ]


@pytest.mark.parametrize("handler", HANDLERS)
def test_registrations(handler: Any) -> None:
    assert (handler.min_version, handler.max_version) == (0, 0)
