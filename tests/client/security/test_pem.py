"""PEM: blocks are found and laid out as OpenSSL expects them."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from kbroker.client.security import pem
from tests.certificates import Certificates


def test_one_line(certificates: Certificates) -> None:
    """As in a property, where a certificate has spaces instead of line breaks, or nothing."""
    text = Path(certificates.authority).read_text()
    body = "".join(text.split("-----")[2].split())
    wide = f"-----BEGIN CERTIFICATE-----{body}-----END CERTIFICATE-----"
    for written in (text, text.replace("\n", " "), wide, f"Alias: x\r\n{text}\r\n"):
        assert ssl.PEM_cert_to_DER_cert(pem.certificates(written)) == ssl.PEM_cert_to_DER_cert(text)
        assert max(map(len, pem.certificates(written).splitlines())) == 64


def test_keys_and_chains_are_told_apart(certificates: Certificates) -> None:
    text = (
        Path(certificates.encrypted_client).read_text() + Path(certificates.authority).read_text()
    )
    assert pem.certificates(text).count("BEGIN CERTIFICATE") == 2
    assert "KEY-----" not in pem.certificates(text), "base64 itself may contain KEY"
    assert pem.private_key(text).startswith("-----BEGIN ENCRYPTED PRIVATE KEY-----\n")
    assert "CERTIFICATE" not in pem.private_key(text)


def test_headers_of_an_old_key_stay() -> None:
    text = (
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n"
        "QUJD\n-----END RSA PRIVATE KEY-----\n"
    )
    assert pem.private_key(text) == text


@pytest.mark.parametrize("text", ["", "hello", "-----BEGIN CERTIFICATE-----\nQUJD\n"])
def test_nothing_in_it(text: str) -> None:
    with pytest.raises(ValueError, match="no PEM block BEGIN CERTIFICATE"):
        pem.certificates(text)
    with pytest.raises(ValueError, match="no PEM block BEGIN PRIVATE KEY"):
        pem.private_key(text)
