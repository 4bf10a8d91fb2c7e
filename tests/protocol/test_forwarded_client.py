"""The principal and the address inside an Envelope: Kafka's bytes, and hostile ones."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.model import ClientIdentity
from kbroker.protocol.codecs.codec import decode, encode
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.forwarded_client import client_of, envelope
from kbroker.protocol.messages.cluster import EnvelopeRequest

ANONYMOUS = b"\x00\x00" + b"\x05User" + b"\x0aANONYMOUS" + b"\x00" + b"\x00"
"""As DefaultKafkaPrincipalBuilder.serialize writes User:ANONYMOUS."""

LOOPBACK = bytes([127, 0, 0, 1])


def request_of(**fields: Any) -> EnvelopeRequest:
    values: dict[str, Any] = {
        "request_data": b"",
        "request_principal": ANONYMOUS,
        "client_host_address": LOOPBACK,
    }
    return EnvelopeRequest(**(values | fields))


def refusal(request: EnvelopeRequest) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        client_of(request)
    return refused.value.code


def test_the_bytes_are_kafkas() -> None:
    request = envelope(b"request", ClientIdentity("User:ANONYMOUS", "127.0.0.1"))
    assert request == request_of(request_data=b"request")
    assert encode(request, 0) == (
        bytes([len(b"request") + 1]) + b"request"
        + bytes([len(ANONYMOUS) + 1]) + ANONYMOUS
        + bytes([len(LOOPBACK) + 1]) + LOOPBACK
        + b"\x00"
    )  # fmt: skip


@pytest.mark.parametrize(
    "client",
    [
        ClientIdentity("User:ANONYMOUS", "127.0.0.1"),
        ClientIdentity("User:CN=a:b,O=é", "10.1.2.3", is_token_authenticated=True),
        ClientIdentity("User:", "2001:db8::1"),
        ClientIdentity("Group:ops", "::1"),
    ],
)
def test_a_client_arrives_as_it_was(client: ClientIdentity) -> None:
    sent = encode(envelope(b"", client), 0)
    received, _ = decode(EnvelopeRequest, sent, 0)
    assert client_of(received) == client


@pytest.mark.parametrize(
    ("host", "arrives"),
    [
        pytest.param("fe80::1%eth0", "fe80::1", id="without its zone"),
        pytest.param("unknown", "0.0.0.0", id="no address"),
        pytest.param("", "0.0.0.0", id="empty"),
    ],
)
def test_addresses_that_have_other_text(host: str, arrives: str) -> None:
    assert client_of(envelope(b"", ClientIdentity("User:a", host))).host == arrives


def test_a_mapped_address_is_ipv4_as_in_java() -> None:
    mapped = bytes(10) + b"\xff\xff" + bytes([10, 0, 0, 7])
    assert client_of(request_of(client_host_address=mapped)).host == "10.0.0.7"


@pytest.mark.parametrize("size", [0, 1, 3, 5, 15, 17, 1000])
def test_addresses_of_a_wrong_length(size: int) -> None:
    assert refusal(request_of(client_host_address=bytes(size))) is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    "principal",
    [
        pytest.param(None, id="missing"),
        pytest.param(b"", id="empty"),
        pytest.param(b"\x00", id="half a version"),
        *[pytest.param(ANONYMOUS[:end], id=f"cut at {end}") for end in range(2, len(ANONYMOUS))],
        pytest.param(b"\x00\x01" + ANONYMOUS[2:], id="version 1"),
        pytest.param(b"\xff\xff" + ANONYMOUS[2:], id="version -1"),
        pytest.param(b"\x00\x00\xff\xff\xff\xff\x0fUser", id="a huge length"),
        pytest.param(b"\x00\x00\x05\xff\xfe\xfd\xfc\x01\x00\x00", id="no UTF-8"),
        pytest.param(b"\x00\x00\x00\x00\x00\x00", id="null strings"),
        pytest.param(b"\x00\x00\x05Us:r\x02a\x00\x00", id="a colon in the type"),
    ],
)
def test_principals_that_cannot_be_read(principal: bytes | None) -> None:
    request = request_of(request_principal=principal, client_host_address=b"")
    assert refusal(request) is ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, "it is looked at first"


def test_bytes_behind_a_principal_are_ignored() -> None:
    client = client_of(request_of(request_principal=memoryview(ANONYMOUS + b"more")))
    assert client == ClientIdentity("User:ANONYMOUS", "127.0.0.1")
