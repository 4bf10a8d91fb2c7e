"""The requests of SASL, and each error as one line that says what to change."""

from __future__ import annotations

import pytest

from kbroker.client.security.mechanisms import MechanismError, PlainMechanism
from kbroker.client.security.sasl_authentication import (
    AUTHENTICATION_ERRORS,
    MAX_ROUNDS,
    SaslAuthentication,
    no_sasl_here,
)
from kbroker.client.security.sasl_properties import Login
from kbroker.client.security.secret import Secret
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.authentication import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)


class Scripted:
    """A mechanism that answers as it is told; an exception is raised."""

    name = "SCRIPTED"

    def __init__(self, *answers: bytes | Exception | None) -> None:
        self.challenges: list[bytes] = []
        self._answers = list(answers)

    def first(self) -> bytes:
        return b"first"

    def respond(self, challenge: bytes) -> bytes | None:
        self.challenges.append(challenge)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def authentication(*answers: bytes | Exception | None) -> SaslAuthentication:
    return SaslAuthentication(Scripted(*answers), "kafka:9093")


def test_two_rounds() -> None:
    mechanism = Scripted(b"second", None)
    made = SaslAuthentication(mechanism, "kafka:9093")
    assert made.handshake() == SaslHandshakeRequest(mechanism="SCRIPTED")
    assert made.begin(SaslHandshakeResponse()) == SaslAuthenticateRequest(auth_bytes=b"first")
    second = made.proceed(SaslAuthenticateResponse(auth_bytes=b"a"))
    assert second == SaslAuthenticateRequest(auth_bytes=b"second")
    assert made.proceed(SaslAuthenticateResponse(auth_bytes=b"b")) is None
    assert mechanism.challenges == [b"a", b"b"]
    assert made.lasts_for_s() is None


def test_a_session_that_ends() -> None:
    """The client renews it when 85 % have passed; only the last response counts."""
    made = authentication(b"second", None)
    made.begin(SaslHandshakeResponse())
    made.proceed(SaslAuthenticateResponse(session_lifetime_ms=5))
    assert made.lasts_for_s() is None
    made.proceed(SaslAuthenticateResponse(session_lifetime_ms=60_000))
    assert made.lasts_for_s() == 51.0


@pytest.mark.parametrize(
    ("response", "code", "message"),
    [
        (
            SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=["SCRAM-SHA-512", "B"]
            ),
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            "kafka:9093: SCRIPTED is not among its mechanisms (B, SCRAM-SHA-512); change "
            "sasl.mechanism",
        ),
        (
            SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM),
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            "kafka:9093: SCRIPTED is not among its mechanisms (none); change sasl.mechanism",
        ),
        (
            SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE),
            ErrorCode.ILLEGAL_SASL_STATE,
            "kafka:9093: its listener asks for no SASL; change security.protocol to PLAINTEXT "
            "or SSL",
        ),
        (
            SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_VERSION),
            ErrorCode.UNSUPPORTED_VERSION,
            "kafka:9093: SaslHandshake for SCRIPTED",
        ),
    ],
)
def test_refused_at_the_handshake(
    response: SaslHandshakeResponse, code: ErrorCode, message: str
) -> None:
    with pytest.raises(KafkaError) as caught:
        authentication().begin(response)
    assert (caught.value.code, caught.value.message) == (code, message)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Invalid username or password", "kafka:9093: Invalid username or password; check "),
        (None, "kafka:9093: no reason given with SCRIPTED; check "),
    ],
)
def test_refused_later(said: str | None, expected: str) -> None:
    response = SaslAuthenticateResponse(
        error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=said
    )
    with pytest.raises(KafkaError) as caught:
        authentication().proceed(response)
    assert caught.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert caught.value.message == f"{expected}sasl.jaas.config and sasl.mechanism"


def test_a_broker_that_does_not_prove_who_it_is() -> None:
    with pytest.raises(KafkaError) as caught:
        authentication(MechanismError("no proof")).proceed(SaslAuthenticateResponse())
    assert str(caught.value) == (
        "SASL_AUTHENTICATION_FAILED: kafka:9093: SCRIPTED: no proof; it may not be the broker "
        "that it says it is"
    )


def test_a_broker_without_an_end() -> None:
    made = authentication(*[b"again"] * (MAX_ROUNDS + 1))
    for _ in range(MAX_ROUNDS):
        made.proceed(SaslAuthenticateResponse(auth_bytes=b"more"))
    with pytest.raises(KafkaError, match="does not come to an end"):
        made.proceed(SaslAuthenticateResponse(auth_bytes=b"more"))


def test_errors_are_not_retried() -> None:
    assert not any(code.retriable for code in AUTHENTICATION_ERRORS)
    assert no_sasl_here("x").code in AUTHENTICATION_ERRORS


def test_a_password_is_in_no_error() -> None:
    login = Login("ada", Secret("hush"))
    made = SaslAuthentication(PlainMechanism(login), "kafka:9093")
    failed = SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED)
    with pytest.raises(KafkaError) as caught:
        made.proceed(failed)
    assert "hush" not in repr(caught.value)
