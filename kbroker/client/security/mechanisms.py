"""The client's side of SASL's mechanisms: the broker's bytes in, bytes for the broker out.

PLAIN is RFC 4616, SCRAM is RFC 5802 and RFC 7677 (by scramp), OAUTHBEARER is RFC 7628. The requests
that carry the bytes are in `sasl_authentication`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from kbroker.client.security.sasl_properties import OAUTHBEARER, PLAIN, Login
from kbroker.client.security.secret import Secret

if TYPE_CHECKING:
    from scramp import ScramClient

MAX_ITERATIONS: Final = 1_000_000
"""Of SCRAM: a broker that asks for more would keep this client busy for seconds. Kafka's brokers
have 4,096 to 16,384 (ScramMechanism).
"""


class MechanismError(Exception):
    """What the broker sent does not fit: it is not to be trusted, or refuses."""


class Mechanism(Protocol):
    """One authentication."""

    name: str

    def first(self) -> bytes:
        """What the client sends first."""

    def respond(self, challenge: bytes) -> bytes | None:
        """To what the broker sent with success; None once both sides are done. Raises
        MechanismError.
        """


class PlainMechanism:
    """Username and password as they are; only TLS keeps them secret."""

    name = PLAIN

    def __init__(self, login: Login) -> None:
        self._login = login

    def first(self) -> bytes:
        login = self._login
        return b"\0".join((b"", login.username.encode(), login.password.reveal().encode()))

    def respond(self, challenge: bytes) -> bytes | None:
        return None


class ScramMechanism:
    """name: of the mechanism. nonce: None for a random one. The broker proves that it knows the
    password, too.
    """

    def __init__(self, name: str, login: Login, nonce: str | None = None) -> None:
        self.name = name
        self._client = _scram_client(name, login, nonce)
        self._is_final_sent = False

    def first(self) -> bytes:
        first: str = self._client.get_client_first()
        return first.encode()

    def respond(self, challenge: bytes) -> bytes | None:
        from scramp import ScramException

        try:
            text = challenge.decode()
            if self._is_final_sent:
                self._client.set_server_final(text)
                return None
            self._client.set_server_first(text)
            if int(self._client.iterations) > MAX_ITERATIONS:
                raise MechanismError(f"it asks for {self._client.iterations} iterations")
            self._is_final_sent = True
            final: str = self._client.get_client_final()
            return final.encode()
        except UnicodeDecodeError:
            raise MechanismError("its message is not UTF-8") from None
        except ScramException as error:
            raise MechanismError(str(error.args[0])) from None


def _scram_client(name: str, login: Login, nonce: str | None) -> ScramClient:
    from scramp import ScramClient

    client = ScramClient([name], "username", "password", c_nonce=nonce)
    # Kafka hashes the UTF-8 of both as they are (ScramFormatter.normalize); scramp's constructor
    # would apply SASLprep.
    client.username.username = login.username
    client.password.password = login.password.reveal()
    return client


class OAuthBearerMechanism:
    """A token that the broker checks. extensions: as in KIP-342."""

    name = OAUTHBEARER

    def __init__(self, token: Secret, extensions: Mapping[str, str]) -> None:
        self._token = token
        self._extensions = extensions

    def first(self) -> bytes:
        pairs = [f"auth=Bearer {self._token.reveal()}"]
        pairs += [f"{key}={value}" for key, value in self._extensions.items()]
        return "\x01".join(("n,,", *pairs, "", "")).encode()

    def respond(self, challenge: bytes) -> bytes | None:
        """The broker sends an error as a challenge; an answer of one byte makes it say so."""
        return b"\x01" if challenge else None
