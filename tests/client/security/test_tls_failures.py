"""Why TLS failed, in a line. What real handshakes raise is in test_connection_security."""

from __future__ import annotations

import ssl

import pytest

from kbroker.client.security.tls_failures import HUNG_UP, is_final, is_tls_record, tls_failure


def failure(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}] text (_ssl.c:1)")
    error.reason = reason
    return error


def not_verified(code: int, message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = code, message
    return error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            not_verified(19, "self-signed certificate in certificate chain"),
            "its certificate is not trusted (self-signed certificate in certificate chain); name "
            "that of its CA by ssl.truststore.location",
        ),
        (
            not_verified(62, "Hostname mismatch, certificate is not valid for 'a'."),
            "Hostname mismatch, certificate is not valid for 'a'; use a name that its certificate "
            "has, or check none with ssl.endpoint.identification.algorithm= (empty)",
        ),
        (
            not_verified(10, "certificate has expired"),
            "certificate has expired; it has to be renewed there, unless the clock of this machine "
            "is wrong",
        ),
        (
            failure("TLSV13_ALERT_CERTIFICATE_REQUIRED"),
            "TLS failed (tlsv13 alert certificate required); it refuses the client's certificate, "
            "or asks for one: see ssl.keystore.location",
        ),
        (
            failure("TLSV1_ALERT_UNKNOWN_CA"),
            "TLS failed (tlsv1 alert unknown ca); it does not trust the client's certificate: see "
            "ssl.keystore.location",
        ),
        (
            failure("TLSV1_ALERT_PROTOCOL_VERSION"),
            "TLS failed (tlsv1 alert protocol version); no version of TLS in common: see "
            "ssl.enabled.protocols",
        ),
        (
            failure("WRONG_VERSION_NUMBER"),
            "TLS failed (wrong version number); it does not speak TLS: check its port, and "
            "security.protocol",
        ),
        (failure("BAD_SIGNATURE"), "TLS failed (bad signature)"),
        (ssl.SSLEOFError(8, "EOF occurred"), HUNG_UP),
    ],
)
def test_lines(error: ssl.SSLError, message: str) -> None:
    assert tls_failure(error) == message


def test_what_another_attempt_would_meet_again() -> None:
    assert is_final(failure("WRONG_VERSION_NUMBER"))
    assert is_final(not_verified(10, "certificate has expired"))
    assert not is_final(ssl.SSLEOFError(8, "EOF occurred"))
    assert not is_final(ssl.SSLZeroReturnError(6, "closed"))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\x15\x03\x03\x00\x02\x02\x50", True),
        (b"\x16\x03\x01", True),
        (b"\x00\x00\x00\x10", False),
        (b"", False),
        (b"HTTP/1.1 400", False),
    ],
)
def test_records(data: bytes, expected: bool) -> None:
    assert is_tls_record(data) is expected
