"""SASL for a scripted broker: what it has, whom it knows, and what it was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.authentication import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tests.client.security.scram_server import ScramServer

PASSWORDS: Mapping[str, str] = {"ada": "lovelace"}
TOKEN = "abc.def.ghi"


class SaslBroker:
    """Gives a FakeBroker SASL on all its connections, one after the other. lifetime_ms: of a
    session, 0 without an end.
    """

    def __init__(self, broker: Any, mechanisms: Sequence[str], lifetime_ms: int = 0) -> None:
        self.authenticated = 0
        self._mechanisms = list(mechanisms)
        self._lifetime_ms = lifetime_ms
        self._mechanism = ""
        self._scram: ScramServer | None = None
        broker.versions[ApiKey.SASL_HANDSHAKE] = (0, 1)
        broker.versions[ApiKey.SASL_AUTHENTICATE] = (0, 2)
        broker.on_sasl_handshake = self._handshake
        broker.on_sasl_authenticate = self._authenticate

    def _handshake(self, request: SaslHandshakeRequest, version: int) -> SaslHandshakeResponse:
        assert version == 1
        self._mechanism, self._scram = request.mechanism, None
        known = request.mechanism in self._mechanisms
        code = ErrorCode.NONE if known else ErrorCode.UNSUPPORTED_SASL_MECHANISM
        return SaslHandshakeResponse(error_code=code, mechanisms=self._mechanisms)

    def _authenticate(
        self, request: SaslAuthenticateRequest, version: int
    ) -> SaslAuthenticateResponse:
        assert version == 2
        try:
            answer = self._answer(bytes(request.auth_bytes))
        except PermissionError:
            return SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
                error_message="Authentication failed: Invalid username or password",
            )
        return SaslAuthenticateResponse(auth_bytes=answer, session_lifetime_ms=self._lifetime_ms)

    def _answer(self, data: bytes) -> bytes:
        match self._mechanism:
            case "PLAIN":
                _, username, password = data.decode().split("\0")
                if PASSWORDS.get(username) != password:
                    raise PermissionError
            case "OAUTHBEARER":
                if data == b"\x01":
                    raise PermissionError
                if data != f"n,,\x01auth=Bearer {TOKEN}\x01\x01".encode():
                    return b'{"status":"invalid_token"}'
            case name:
                if self._scram is None:
                    self._scram = ScramServer(name, PASSWORDS)
                    return self._scram.first(data)
                answer = self._scram.final(data)
                self.authenticated += 1
                return answer
        self.authenticated += 1
        return b""
