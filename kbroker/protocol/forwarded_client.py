"""The client of a forwarded request as an Envelope carries it (KIP-590): its principal and its
address.

The principal is `DefaultPrincipalData` behind an int16 version, as Kafka's
DefaultKafkaPrincipalBuilder writes it; the address has the 4 or 16 bytes of Java's InetAddress.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from struct import Struct as Layout
from typing import Final

from kbroker.model import ClientIdentity
from kbroker.protocol.codecs.codec import decode, encode
from kbroker.protocol.codecs.schema import Binary
from kbroker.protocol.errors import ErrorCode, KafkaError, MalformedRequest
from kbroker.protocol.messages.authentication import DefaultPrincipalData
from kbroker.protocol.messages.cluster import EnvelopeRequest

_VERSION: Final = Layout(">h")
_UNKNOWN_ADDRESS: Final = bytes(4)
"""Sent for a client whose host is not an IP address."""


def envelope(request_frame: Binary, client: ClientIdentity) -> EnvelopeRequest:
    """The Envelope of a client's request: header and body without the length prefix. The client id
    is in the request's header.
    """
    return EnvelopeRequest(
        request_data=request_frame,
        request_principal=_encode_principal(client),
        client_host_address=_address_bytes(client.host),
    )


def client_of(request: EnvelopeRequest) -> ClientIdentity:
    """The client, without its client id. Raises KafkaError: PRINCIPAL_DESERIALIZATION_FAILURE, and
    INVALID_REQUEST for a bad address.
    """
    principal = _decode_principal(request.request_principal)
    address = bytes(request.client_host_address)
    if len(address) not in (4, 16):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"the client's address in the envelope has {len(address)} bytes",
        )
    parsed = ip_address(address)
    host = parsed.ipv4_mapped or parsed if isinstance(parsed, IPv6Address) else parsed
    return ClientIdentity(
        f"{principal.type}:{principal.name}", str(host), principal.token_authenticated
    )


def _encode_principal(client: ClientIdentity) -> bytes:
    kind, _, name = client.principal.partition(":")
    data = DefaultPrincipalData(
        type=kind, name=name, token_authenticated=client.is_token_authenticated
    )
    version = DefaultPrincipalData.VERSIONS.high
    return _VERSION.pack(version) + encode(data, version)


def _decode_principal(data: Binary | None) -> DefaultPrincipalData:
    """Decode the principal. Bytes after it are ignored, as in Kafka."""
    reason = "the principal in the envelope"
    if data is None or len(data) < _VERSION.size:
        raise _unreadable(f"{reason} is missing")
    (version,) = _VERSION.unpack_from(data)
    if version not in DefaultPrincipalData.VERSIONS:
        raise _unreadable(f"{reason} has version {version}")
    try:
        principal, _ = decode(DefaultPrincipalData, data, version, _VERSION.size)
    except MalformedRequest as error:
        raise _unreadable(f"{reason}: {error}") from None
    if ":" in principal.type:  # as text it would be another principal
        raise _unreadable(f"{reason} has a colon in its type")
    return principal


def _unreadable(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, reason)


def _address_bytes(host: str) -> bytes:
    try:
        return ip_address(host.partition("%")[0]).packed  # without the zone of a link-local address
    except ValueError:
        return _UNKNOWN_ADDRESS
