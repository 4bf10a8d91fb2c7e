"""DescribeUserScramCredentials v0, AlterUserScramCredentials v0 (KIP-554).

Credentials are stored in the metadata; nothing authenticates with them yet. Descriptions have the
mechanisms and iterations of a user, never a key. What may be altered is decided in
`controller/configs/scram_credentials`. Deviations: users keep the order of the request, and all
users come in the order of their names (Kafka's is that of a hash map); an empty salted password is
UNACCEPTABLE_CREDENTIAL, on which Kafka fails with UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable
from typing import Final

from kbroker.metadata.scram_credentials import credential_iterations
from kbroker.ports import at_once
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.authentication import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from kbroker.replication.time_slices import Pace, Steps
from kbroker.server.api_handler import ApiHandler
from kbroker.server.policies.administration import SCRAM_CREDENTIALS as POLICIES
from kbroker.server.requests import RequestContext
from kbroker.server.services import NodeServices
from kbroker.server.slicing.sliced import (
    CHEAP_ITEMS,
    TOO_LARGE,
    AnswerSize,
    estimated_bytes,
    once_each,
    sliced,
    sorted_in_steps,
)

NO_CREDENTIAL: Final = "Attempt to describe a user credential that does not exist: "
NAMED_TWICE: Final = (
    "Cannot describe SCRAM credentials for the same user twice in a single request: "
)

DescribedScram = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
Credential = DescribeUserScramCredentialsResponse.CredentialInfo
AlteredScram = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult


@sliced
def handle_describe_scram_credentials(
    services: NodeServices,
    context: RequestContext,
    request: DescribeUserScramCredentialsRequest,
) -> Steps[DescribeUserScramCredentialsResponse]:
    """The named users, or all users who have credentials."""
    pace = Pace(CHEAP_ITEMS)
    counts: Counter[str] = Counter()
    for named in request.users or ():
        if pace.is_due():
            yield None
        counts[named.name] += 1
    users: Iterable[str] = counts
    if not counts:
        having = yield from once_each(user for _, user in services.image.scram_credentials)
        users = yield from sorted_in_steps(having)
    response = DescribeUserScramCredentialsResponse()
    with AnswerSize(services) as size:
        for user in users:
            if pace.is_due():
                yield None
            described = _describe(services, user, is_repeated=counts[user] > 1)
            if not size.add(estimated_bytes(described)):
                return describe_scram_credentials_error(
                    request, ErrorCode.POLICY_VIOLATION, TOO_LARGE
                )
            response.results.append(described)
    return response


def _describe(services: NodeServices, user: str, *, is_repeated: bool) -> DescribedScram:
    if is_repeated:
        return DescribedScram(
            user=user, error_code=ErrorCode.DUPLICATE_RESOURCE, error_message=NAMED_TWICE + user
        )
    iterations = credential_iterations(services.image, user)
    if not iterations:
        return DescribedScram(
            user=user, error_code=ErrorCode.RESOURCE_NOT_FOUND, error_message=NO_CREDENTIAL + user
        )
    return DescribedScram(
        user=user,
        credential_infos=[
            Credential(mechanism=mechanism, iterations=count)
            for mechanism, count in iterations.items()
        ],
    )


def describe_scram_credentials_error(
    request: DescribeUserScramCredentialsRequest, error: ErrorCode, message: str
) -> DescribeUserScramCredentialsResponse:
    """The response that carries only the error."""
    return DescribeUserScramCredentialsResponse(error_code=error, error_message=message or None)


@sliced
def handle_alter_scram_credentials(
    services: NodeServices, context: RequestContext, request: AlterUserScramCredentialsRequest
) -> Steps[AlterUserScramCredentialsResponse]:
    """Answered when the new credentials are in effect."""
    for upsertion in request.upsertions:  # read in later turns, when the frame is overwritten
        upsertion.salt = bytes(upsertion.salt)
        upsertion.salted_password = bytes(upsertion.salted_password)
    deferred = services.controller.alter_scram_credentials(request)
    yield deferred
    return deferred.value


def alter_scram_credentials_error(
    request: AlterUserScramCredentialsRequest, error: ErrorCode, message: str
) -> AlterUserScramCredentialsResponse:
    """The same error for every user."""
    return at_once(_refuse(request, error, message))


def _refuse(
    request: AlterUserScramCredentialsRequest, error: ErrorCode, message: str
) -> Generator[None, None, AlterUserScramCredentialsResponse]:
    deleted = yield from once_each(each.name for each in request.deletions)
    upserted = yield from once_each(each.name for each in request.upsertions)
    response = AlterUserScramCredentialsResponse()
    pace = Pace(CHEAP_ITEMS)
    for user in (yield from sorted_in_steps(deleted | upserted)):
        if pace.is_due():
            yield None
        response.results.append(
            AlteredScram(user=user, error_code=error, error_message=message or None)
        )
    return response


HANDLERS: tuple[ApiHandler[NodeServices], ...] = (
    ApiHandler(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        handle_describe_scram_credentials,
        describe_scram_credentials_error,
        POLICIES[ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS],
    ),
    ApiHandler(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        handle_alter_scram_credentials,
        alter_scram_credentials_error,
        POLICIES[ApiKey.ALTER_USER_SCRAM_CREDENTIALS],
        refusal=_refuse,
    ),
)
