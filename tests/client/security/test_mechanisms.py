"""SASL's mechanisms: the vectors of the RFCs, and brokers that do not prove who they are."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from kbroker.client.security.mechanisms import (
    Mechanism,
    MechanismError,
    OAuthBearerMechanism,
    PlainMechanism,
    ScramMechanism,
)
from kbroker.client.security.sasl_properties import Login
from kbroker.client.security.secret import Secret
from tests.client.security.scram_server import ScramServer

RFC_7677_NONCE = "rOprNGfwEbeRWgbNEkqO"
RFC_7677_SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
RFC_7677_CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
RFC_7677_SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def scram(name: str = "SCRAM-SHA-256", nonce: str | None = RFC_7677_NONCE) -> ScramMechanism:
    return ScramMechanism(name, Login("user", Secret("pencil")), nonce)


def test_plain_is_that_of_rfc_4616() -> None:
    mechanism: Mechanism = PlainMechanism(Login("tim", Secret("tanstaaftanstaaf")))
    assert (mechanism.name, mechanism.first()) == ("PLAIN", b"\0tim\0tanstaaftanstaaf")
    assert mechanism.respond(b"") is None


def test_scram_is_that_of_rfc_7677() -> None:
    mechanism: Mechanism = scram()
    assert mechanism.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert mechanism.respond(RFC_7677_SERVER_FIRST) == RFC_7677_CLIENT_FINAL
    assert mechanism.respond(RFC_7677_SERVER_FINAL) is None


@pytest.mark.parametrize("name", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize(
    ("username", "password"),
    [
        pytest.param("ada", "lovelace", id="ASCII"),
        pytest.param("a,d=a", "p,w=d", id="marks"),
        # SASLprep would make other characters of these, and refuse the last; Kafka does not
        pytest.param("gr\u00fc\u00dfe", "\u00aa\u00a0x", id="what SASLprep changes"),
        pytest.param("ada", "a\tb", id="what SASLprep refuses"),
    ],
)
def test_scram_with_a_server_as_kafkas(name: str, username: str, password: str) -> None:
    server = ScramServer(name, {username: password})
    mechanism = ScramMechanism(name, Login(username, Secret(password)))
    final = mechanism.respond(server.first(mechanism.first()))
    assert final is not None
    assert mechanism.respond(server.final(final)) is None


def test_a_wrong_password_is_refused_by_the_server() -> None:
    server = ScramServer("SCRAM-SHA-256", {"user": "another"})
    mechanism = scram()
    final = mechanism.respond(server.first(mechanism.first()))
    assert final is not None
    with pytest.raises(PermissionError):
        server.final(final)


def test_nonces_differ() -> None:
    assert scram(nonce=None).first() != scram(nonce=None).first()


def signed_with(password: bytes) -> bytes:
    """A server's last message by RFC 5802, for RFC 7677's exchange and any password."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = hashlib.pbkdf2_hmac("sha256", password, salt, 4096)
    bare = b"n=user,r=" + RFC_7677_NONCE.encode()
    without_proof = RFC_7677_CLIENT_FINAL.partition(b",p=")[0]
    message = b",".join((bare, RFC_7677_SERVER_FIRST, without_proof))
    key = hmac.digest(salted, b"Server Key", "sha256")
    return b"v=" + base64.b64encode(hmac.digest(key, message, "sha256"))


def test_a_server_that_does_not_know_the_password_is_refused() -> None:
    assert signed_with(b"pencil") == RFC_7677_SERVER_FINAL
    for answer in (signed_with(b"another"), b"v=AAAA", b"v=", b"", b"e=other-error", b"\xff"):
        mechanism = scram()
        mechanism.first()
        mechanism.respond(RFC_7677_SERVER_FIRST)
        with pytest.raises(MechanismError):
            mechanism.respond(answer)


@pytest.mark.parametrize(
    "server_first",
    [
        pytest.param(b"r=another,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", id="another nonce"),
        pytest.param(b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", id="our nonce"),
        pytest.param(b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1", id="1 iteration"),
        pytest.param(
            b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1000001", id="a million"
        ),
        pytest.param(b"r=rOprNGfwEbeRWgbNEkqOx,s=!,i=4096", id="no base64"),
        pytest.param(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", id="the last one first"),
        pytest.param(b"", id="empty"),
    ],
)
def test_first_messages_of_a_server_that_are_refused(server_first: bytes) -> None:
    mechanism = scram()
    mechanism.first()
    with pytest.raises(MechanismError):
        mechanism.respond(server_first)


def test_a_token() -> None:
    """RFC 7628; an error comes as a challenge, and one byte makes the broker end it."""
    mechanism: Mechanism = OAuthBearerMechanism(Secret("abc.def"), {"cluster": "lkc-1"})
    assert mechanism.first() == b"n,,\x01auth=Bearer abc.def\x01cluster=lkc-1\x01\x01"
    assert mechanism.respond(b"") is None
    assert OAuthBearerMechanism(Secret("t"), {}).first() == b"n,,\x01auth=Bearer t\x01\x01"
    assert mechanism.respond(b'{"status":"invalid_token"}') == b"\x01"
