"""Kafka's ssl.* properties: what acts, and what is refused with what to do."""

from __future__ import annotations

import pytest

from kbroker.client.security.secret import Secret
from kbroker.client.security.tls_properties import TlsProperties, tls_properties
from kbroker.model import StartupError


def test_nothing_given() -> None:
    """The CAs of the system, the host's name checked, TLS 1.2 and 1.3."""
    made = tls_properties({"client.id": "x", "ssl.key.password": ""})
    assert made == TlsProperties()
    assert (made.check_hostname, made.versions) == (True, ("TLSv1.2", "TLSv1.3"))


def test_files() -> None:
    made = tls_properties(
        {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "/trust.pem",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": "/client.pem",
            "ssl.key.password": "hush",
        }
    )
    assert made == TlsProperties(
        truststore_location="/trust.pem",
        keystore_location="/client.pem",
        key_password=Secret("hush"),
    )


def test_inline() -> None:
    made = tls_properties(
        {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": "certificates",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": "chain",
            "ssl.keystore.key": "key",
        }
    )
    assert made == TlsProperties(
        trusted_certificates="certificates", certificate_chain="chain", key=Secret("key")
    )


@pytest.mark.parametrize(("written", "checked"), [("https", True), ("HTTPS", True), ("", False)])
def test_endpoint_identification(written: str, checked: bool) -> None:
    made = tls_properties({"ssl.endpoint.identification.algorithm": written})
    assert made.check_hostname is checked


@pytest.mark.parametrize(
    ("pairs", "versions"),
    [
        ({"ssl.protocol": "TLSv1.3"}, ("TLSv1.2", "TLSv1.3")),
        ({"ssl.protocol": "TLS"}, ("TLSv1.2", "TLSv1.3")),
        ({"ssl.protocol": "TLSv1.2"}, ("TLSv1.2",)),
        ({"ssl.enabled.protocols": "TLSv1.3"}, ("TLSv1.3",)),
        ({"ssl.enabled.protocols": "TLSv1.3, TLSv1.2"}, ("TLSv1.2", "TLSv1.3")),
    ],
)
def test_versions(pairs: dict[str, str], versions: tuple[str, ...]) -> None:
    assert tls_properties(pairs).versions == versions


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        pytest.param(
            {"ssl.truststore.location": "/t.jks", "ssl.truststore.password": "hush"},
            r"/t.jks: ssl.truststore.type is JKS if it is not set, which is not read here; "
            r"keytool -list -rfc -keystore /t.jks > trust.pem makes one, then set "
            r"ssl.truststore.type=PEM",
            id="a truststore of Java's default type",
        ),
        pytest.param(
            {"ssl.truststore.location": "/t.p12", "ssl.truststore.type": "PKCS12"},
            "ssl.truststore.type=PKCS12 is not read here; keytool -list",
            id="a truststore in PKCS12",
        ),
        pytest.param(
            {"ssl.truststore.location": "/t.pem"},
            "/t.pem: set ssl.truststore.type=PEM too; JKS is Kafka's default",
            id="PEM without its type",
        ),
        pytest.param(
            {"ssl.keystore.location": "/k.jks", "ssl.keystore.type": "JKS"},
            "keytool -importkeystore -srckeystore /k.jks -destkeystore client.p12, "
            "openssl pkcs12 -in client.p12 -out client.pem makes one",
            id="a keystore in JKS",
        ),
        pytest.param(
            {"ssl.keystore.location": "/k.p12", "ssl.keystore.type": "PKCS12"},
            "not read here; openssl pkcs12 -in /k.p12 -out client.pem makes one",
            id="a keystore in PKCS12",
        ),
        pytest.param(
            {"ssl.truststore.certificates": "c"},
            "ssl.truststore.certificates is PEM: set ssl.truststore.type=PEM too",
            id="inline without its type",
        ),
        pytest.param(
            {
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": "/t",
                "ssl.truststore.certificates": "c",
            },
            "are both set: keep one",
            id="a truststore twice",
        ),
        pytest.param(
            {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": "/t",
                "ssl.keystore.key": "c",
                "ssl.keystore.certificate.chain": "c",
            },
            "are both set: keep one",
            id="a keystore twice",
        ),
        pytest.param(
            {"ssl.truststore.type": "PEM", "ssl.truststore.password": "hush"},
            "ssl.truststore.password: a truststore in PEM has none; remove it",
            id="a password of a truststore",
        ),
        pytest.param(
            {"ssl.keystore.type": "PEM", "ssl.keystore.password": "hush"},
            "a keystore in PEM has none; the key's is ssl.key.password",
            id="a password of a keystore",
        ),
        pytest.param(
            {"ssl.keystore.type": "PEM", "ssl.keystore.key": "hush"},
            "ssl.keystore.key is set, but ssl.keystore.certificate.chain is not",
            id="a key alone",
        ),
        pytest.param(
            {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": "c"},
            "ssl.keystore.certificate.chain is set, but ssl.keystore.key is not",
            id="a chain alone",
        ),
        pytest.param({"ssl.endpoint.identification.algorithm": "LDAPS"}, "write https", id="LDAPS"),
        pytest.param({"ssl.protocol": "SSLv3"}, "write TLSv1.2 or TLSv1.3", id="SSLv3"),
        pytest.param(
            {"ssl.enabled.protocols": "TLSv1.1,TLSv1.2"}, "not TLSv1.1; write", id="TLSv1.1"
        ),
        pytest.param(
            {"ssl.protocol": "TLSv1.2", "ssl.enabled.protocols": "TLSv1.3"},
            "leaves nothing",
            id="no version left",
        ),
        pytest.param(
            {"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"}, "is not supported: ", id="ciphers"
        ),
        pytest.param({"ssl.engine.factory.class": "a.B"}, "it names a Java class", id="engine"),
        pytest.param({"security.providers": "a.B"}, "it names Java classes", id="providers"),
    ],
)
def test_what_is_refused(pairs: dict[str, str], message: str) -> None:
    with pytest.raises(StartupError, match=message) as caught:
        tls_properties(pairs)
    assert "hush" not in str(caught.value)
    assert "\n" not in str(caught.value)
