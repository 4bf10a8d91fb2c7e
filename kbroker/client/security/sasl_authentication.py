"""SASL on a connection to a broker: the requests and responses, and how long the session lasts.

No I/O: `connection.BrokerConnection` sends the requests. SaslHandshake version 1 and
SaslAuthenticate are KIP-152, the end of a session KIP-368.
"""

from __future__ import annotations

from typing import Final

from kbroker.client.security.mechanisms import Mechanism, MechanismError
from kbroker.client.security.sasl_properties import JAAS_CONFIG, MECHANISM
from kbroker.protocol.errors import ErrorCode, KafkaError, error_of
from kbroker.protocol.messages.authentication import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

HANDSHAKE_VERSION: Final = 1
"""In version 0 SASL's bytes would follow without a header, as before Kafka 1.0."""

AUTHENTICATION_ERRORS: Final = frozenset(
    {
        ErrorCode.ILLEGAL_SASL_STATE,
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        ErrorCode.UNSUPPORTED_SASL_MECHANISM,
    }
)
"""Errors that another attempt would meet again."""

LIFETIME_USED: Final = 0.85
"""The part of a session after which the client authenticates again. Kafka's clients take 85 to 95 %
(Authenticator), which leaves as much for the network.
"""

MAX_ROUNDS: Final = 8
"""Of SaslAuthenticate: no mechanism here needs more than three."""


class SaslAuthentication:
    """One authentication. address: of the broker, for errors."""

    def __init__(self, mechanism: Mechanism, address: str) -> None:
        self._mechanism = mechanism
        self._address = address
        self._rounds = 0
        self.session_lifetime_ms = 0
        """How long the session lasts from its beginning; 0 without an end."""

    def handshake(self) -> SaslHandshakeRequest:
        """The first request."""
        return SaslHandshakeRequest(mechanism=self._mechanism.name)

    def begin(self, response: SaslHandshakeResponse) -> SaslAuthenticateRequest:
        """The second request. Raises KafkaError of AUTHENTICATION_ERRORS."""
        name = self._mechanism.name
        code = error_of(response.error_code)
        if code is ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            theirs = ", ".join(sorted(response.mechanisms)) or "none"
            raise self._error(
                code, f"{name} is not among its mechanisms ({theirs}); change {MECHANISM}"
            )
        if code is ErrorCode.ILLEGAL_SASL_STATE:
            raise no_sasl_here(self._address)
        if code is not ErrorCode.NONE:
            raise self._error(code, f"SaslHandshake for {name}")
        return SaslAuthenticateRequest(auth_bytes=self._mechanism.first())

    def proceed(self, response: SaslAuthenticateResponse) -> SaslAuthenticateRequest | None:
        """The next request; None once the broker has authenticated the client, and the client the
        broker, if the mechanism does. Raises KafkaError.
        """
        name = self._mechanism.name
        code = error_of(response.error_code)
        if code is not ErrorCode.NONE:
            said = response.error_message or f"no reason given with {name}"
            raise self._error(code, f"{said}; check {JAAS_CONFIG} and {MECHANISM}")
        self._rounds += 1
        try:
            if self._rounds > MAX_ROUNDS:
                raise MechanismError(f"it does not come to an end in {MAX_ROUNDS} rounds")
            answer = self._mechanism.respond(bytes(response.auth_bytes))
        except MechanismError as error:
            why = f"{name}: {error}; it may not be the broker that it says it is"
            raise self._error(ErrorCode.SASL_AUTHENTICATION_FAILED, why) from None
        if answer is not None:
            return SaslAuthenticateRequest(auth_bytes=answer)
        self.session_lifetime_ms = response.session_lifetime_ms
        return None

    def lasts_for_s(self) -> float | None:
        """After how many seconds from now to authenticate again; None for never."""
        if self.session_lifetime_ms <= 0:
            return None
        return self.session_lifetime_ms / 1000 * LIFETIME_USED

    def _error(self, code: ErrorCode, why: str) -> KafkaError:
        return KafkaError(code, f"{self._address}: {why}")


def no_sasl_here(address: str) -> KafkaError:
    """The error where a listener has no SASL."""
    return KafkaError(
        ErrorCode.ILLEGAL_SASL_STATE,
        f"{address}: its listener asks for no SASL; change security.protocol to PLAINTEXT or SSL",
    )
