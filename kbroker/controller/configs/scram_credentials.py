"""AlterUserScramCredentials (KIP-554): the outcome of each user, and the records.

A credential is stored as the keys that RFC 5802 derives from the salted password; the password is
not. Users are altered at most once per request. Source: ScramControlManager of Kafka 4.3.1, whose
messages these are.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from typing import Final, NamedTuple

from kbroker.controller.result import ControllerResult, DecisionSteps
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.scram_credentials import MECHANISMS, SCRAM_LEVEL, ScramMechanism
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.authentication import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from kbroker.protocol.messages.stored.metadata_records import (
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)

MAX_ITERATIONS: Final = 16_384
USERS_PER_STEP: Final = 64
"""Credentials that are decided on in one step."""

Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
ScramResult = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult


class _Refusal(NamedTuple):
    """The error of one user."""

    error: ErrorCode
    message: str


_TWICE: Final = _Refusal(
    ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
)


def alter_scram_credentials(
    image: MetadataImage, request: AlterUserScramCredentialsRequest
) -> DecisionSteps[AlterUserScramCredentialsResponse]:
    """A result per user, in the order in which the request names them first. Steps of a
    decision.
    """
    decided: dict[str, Deletion | Upsertion | _Refusal] = {}
    left = USERS_PER_STEP
    for alteration in _alterations(request):
        left -= 1
        if left <= 0:
            left = USERS_PER_STEP
            yield
        name = alteration.name
        if name in decided:
            if not isinstance(decided[name], _Refusal):
                decided[name] = _TWICE
            continue
        try:
            _check(image, alteration)
        except KafkaError as error:
            decided[name] = _Refusal(error.code, error.message)
        else:
            decided[name] = alteration
    records: list[Message] = []
    response = AlterUserScramCredentialsResponse()
    for name, outcome in decided.items():
        left -= 1
        if left <= 0:
            left = USERS_PER_STEP
            yield
        if isinstance(outcome, _Refusal):
            response.results.append(
                ScramResult(user=name, error_code=outcome.error, error_message=outcome.message)
            )
            continue
        records.append(_record(outcome))
        response.results.append(ScramResult(user=name, error_message=None))
    return ControllerResult(records, response)


def _alterations(request: AlterUserScramCredentialsRequest) -> Iterator[Deletion | Upsertion]:
    yield from request.deletions
    yield from request.upsertions


def _check(image: MetadataImage, alteration: Deletion | Upsertion) -> None:
    """Raises KafkaError, with the error of the user."""
    if image.metadata_version < SCRAM_LEVEL:
        message = "The current metadata.version does not support SCRAM"
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, message)
    if not alteration.name:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    mechanism = MECHANISMS.get(alteration.mechanism)
    if mechanism is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(alteration, Deletion):
        if (alteration.mechanism, alteration.name) not in image.scram_credentials:
            message = "Attempt to delete a user credential that does not exist"
            raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, message)
        return
    if alteration.iterations < mechanism.min_iterations:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if alteration.iterations > MAX_ITERATIONS:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if not alteration.salted_password:
        # Kafka fails on an empty key and answers UNKNOWN_SERVER_ERROR
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "The salted password is empty")


def _record(alteration: Deletion | Upsertion) -> Message:
    if isinstance(alteration, Deletion):
        return RemoveUserScramCredentialRecord(name=alteration.name, mechanism=alteration.mechanism)
    stored_key, server_key = derive_keys(
        MECHANISMS[alteration.mechanism], bytes(alteration.salted_password)
    )
    return UserScramCredentialRecord(
        name=alteration.name,
        mechanism=alteration.mechanism,
        salt=bytes(alteration.salt),
        stored_key=stored_key,
        server_key=server_key,
        iterations=alteration.iterations,
    )


def derive_keys(mechanism: ScramMechanism, salted_password: bytes) -> tuple[bytes, bytes]:
    """StoredKey and ServerKey (RFC 5802, section 3)."""
    client_key = hmac.digest(salted_password, b"Client Key", mechanism.hash_name)
    server_key = hmac.digest(salted_password, b"Server Key", mechanism.hash_name)
    return hashlib.new(mechanism.hash_name, client_key).digest(), server_key
