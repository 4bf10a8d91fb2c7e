"""TLS contexts: what is trusted, the client's own certificate, and files that cannot be read."""

from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from kbroker.client.security.secret import Secret
from kbroker.client.security.tls_context import tls_context
from kbroker.client.security.tls_properties import TlsProperties
from kbroker.model import StartupError
from tests.certificates import KEY_PASSWORD, Certificates


def subjects(context: ssl.SSLContext) -> list[object]:
    return [each["subject"] for each in context.get_ca_certs()]


def test_what_is_always_so() -> None:
    context = tls_context(TlsProperties())
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    versions = (context.minimum_version, context.maximum_version)
    assert versions == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


def test_a_name_that_is_not_checked_leaves_the_certificate_checked() -> None:
    context = tls_context(TlsProperties(check_hostname=False))
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, False)


def test_one_version() -> None:
    context = tls_context(TlsProperties(versions=("TLSv1.2",)))
    versions = (context.minimum_version, context.maximum_version)
    assert versions == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2)


def test_a_truststore_takes_the_place_of_the_systems(certificates: Certificates) -> None:
    text = Path(certificates.authority).read_text()
    from_file = tls_context(TlsProperties(truststore_location=certificates.authority))
    inline = tls_context(TlsProperties(trusted_certificates=text.replace("\n", " ")))
    expected = [((("commonName", "ca"),),)]
    assert subjects(from_file) == subjects(inline) == expected
    both = text + Path(certificates.other_authority).read_text()
    assert len(subjects(tls_context(TlsProperties(trusted_certificates=both)))) == 2


def test_a_client_certificate(certificates: Certificates) -> None:
    """From a file, encrypted, and inline; a wrong one fails (below)."""
    tls_context(TlsProperties(keystore_location=certificates.client))
    password = Secret(KEY_PASSWORD)
    encrypted = certificates.encrypted_client
    tls_context(TlsProperties(keystore_location=encrypted, key_password=password))
    text = Path(encrypted).read_text().replace("\n", " ")
    tls_context(TlsProperties(certificate_chain=text, key=Secret(text), key_password=password))


def test_what_cannot_be_read(certificates: Certificates, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n")
    mixed = tmp_path / "mixed.pem"
    key = Path(certificates.path("client.key")).read_text()
    mixed.write_text(key + Path(certificates.authority).read_text())
    encrypted = TlsProperties(keystore_location=certificates.encrypted_client)
    inline = TlsProperties(certificate_chain=key, key=Secret(key))
    for properties, message in (
        (TlsProperties(truststore_location="/no/such"), "ssl.truststore.location=/no/such: cannot"),
        (TlsProperties(truststore_location=str(empty)), f"{empty}: no PEM block BEGIN CERTIFICATE"),
        (TlsProperties(truststore_location=str(broken)), f"{broken}: cannot read its certificates"),
        (TlsProperties(trusted_certificates="x"), "ssl.truststore.certificates: no PEM block"),
        (TlsProperties(keystore_location="/no/such"), "ssl.keystore.location=/no/such: cannot"),
        (TlsProperties(keystore_location=str(empty)), "it has to hold a certificate chain and its"),
        (TlsProperties(keystore_location=str(mixed)), "key values mismatch; it has to hold"),
        (encrypted, "the key is encrypted; set ssl.key.password"),
        (replace(encrypted, key_password=Secret("hush")), "ssl.key.password has to be the key's"),
        (inline, "ssl.keystore.certificate.chain and ssl.keystore.key: no PEM block"),
    ):
        with pytest.raises(StartupError) as caught:
            tls_context(properties)
        assert message in str(caught.value)
        assert "hush" not in str(caught.value)
        assert "\n" not in str(caught.value)
