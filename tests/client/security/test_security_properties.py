"""security.protocol, and what it makes of the properties of TLS and SASL."""

from __future__ import annotations

import pytest

from kbroker.client.security.security_properties import ACTING, security_properties
from kbroker.model import StartupError

JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="ada" password="hush";'
)
SASL = {"sasl.mechanism": "PLAIN", "sasl.jaas.config": JAAS}


@pytest.mark.parametrize(
    ("protocol", "has_tls", "has_sasl"),
    [
        ("PLAINTEXT", False, False),
        ("SSL", True, False),
        ("SASL_PLAINTEXT", False, True),
        ("SASL_SSL", True, True),
        ("sasl_ssl", True, True),
    ],
)
def test_protocols(protocol: str, has_tls: bool, has_sasl: bool) -> None:
    made = security_properties({"security.protocol": protocol, **SASL})
    assert (made.tls is not None, made.sasl is not None) == (has_tls, has_sasl)


def test_nothing_given() -> None:
    made = security_properties({"client.id": "x", "ssl.key.password": ""})
    assert (made.tls, made.sasl) == (None, None)


def test_what_a_protocol_has_no_use_for_is_not_read() -> None:
    """A file of Kafka's that is switched back to PLAINTEXT works."""
    made = security_properties({"security.protocol": "PLAINTEXT", "sasl.mechanism": "GSSAPI"})
    assert made.sasl is None


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ({"security.protocol": "TLS"}, "security.protocol=TLS: write PLAINTEXT, SSL, SASL_"),
        ({"security.protocol": "", **SASL}, "security.protocol is not"),
        (SASL, "^sasl.jaas.config is set, but security.protocol is not, and its default sends"),
        ({"ssl.truststore.location": "x"}, "^ssl.truststore.location is set, but security"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism: GSSAPI"),
        ({"security.protocol": "SSL", "ssl.protocol": "SSL"}, "ssl.protocol=SSL"),
    ],
)
def test_what_is_refused(pairs: dict[str, str], message: str) -> None:
    with pytest.raises(StartupError, match=message) as caught:
        security_properties(pairs)
    assert "hush" not in str(caught.value)


def test_what_acts() -> None:
    assert {"security.protocol", "ssl.keystore.key", "sasl.mechanism"} <= ACTING
