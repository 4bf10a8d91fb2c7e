"""A secret is shown nowhere."""

from __future__ import annotations

import traceback

from kbroker.client.security.sasl_properties import Login, SaslProperties
from kbroker.client.security.secret import Secret
from kbroker.client.security.tls_properties import TlsProperties


def test_it_is_shown_nowhere() -> None:
    secret = Secret("hush")
    values = [
        secret,
        Login("ada", secret),
        SaslProperties("PLAIN", Login("ada", secret)),
        TlsProperties(key=secret, key_password=secret),
    ]
    for value in values:
        for text in (repr(value), str(value), f"{value}"):
            assert "hush" not in text
            assert "[hidden]" in text
    try:
        raise ValueError(secret)
    except ValueError:
        assert "hush" not in traceback.format_exc()


def test_its_value() -> None:
    assert Secret("hush").reveal() == "hush"
    assert Secret("hush") == Secret("hush") != Secret("loud")
    assert Secret("hush") != "hush"
    assert len({Secret("hush"), Secret("hush")}) == 1
