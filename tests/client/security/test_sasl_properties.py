"""Kafka's sasl.* properties: what acts, and what is refused with what to do."""

from __future__ import annotations

import pytest

from kbroker.client.security.sasl_properties import (
    CALLBACK_HANDLER,
    Login,
    SaslProperties,
    TokenFile,
    sasl_properties,
)
from kbroker.client.security.secret import Secret
from kbroker.model import StartupError

PACKAGE = "org.apache.kafka.common.security"
PLAIN = f'{PACKAGE}.plain.PlainLoginModule required username="ada" password="hush";'
SCRAM = f'{PACKAGE}.scram.ScramLoginModule required username="ada" password="hush";'
OAUTH = f"{PACKAGE}.oauthbearer.OAuthBearerLoginModule required"
TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
LOGIN = Login("ada", Secret("hush"))


@pytest.mark.parametrize(
    ("mechanism", "jaas"),
    [("PLAIN", PLAIN), ("PLAIN", SCRAM), ("SCRAM-SHA-256", SCRAM), ("SCRAM-SHA-512", SCRAM)],
)
def test_a_login(mechanism: str, jaas: str) -> None:
    made = sasl_properties({"sasl.mechanism": mechanism, "sasl.jaas.config": jaas})
    assert made == SaslProperties(mechanism, LOGIN)


def test_a_token_file() -> None:
    pairs = {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f'{OAUTH} clientId="x" extension_logicalCluster="lkc-1";',
        CALLBACK_HANDLER: f"{PACKAGE}.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.jwt.retriever.class": f"{PACKAGE}.oauthbearer.FileJwtRetriever",
        TOKEN_URL: "file:///run/my%20token",
    }
    made = sasl_properties(pairs)
    assert made.credentials == TokenFile("/run/my token", {"logicalCluster": "lkc-1"})


def login(options: str) -> dict[str, str]:
    module = f"{PACKAGE}.plain.PlainLoginModule"
    return {"sasl.mechanism": "PLAIN", "sasl.jaas.config": f"{module} required {options};"}


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        pytest.param({}, r"GSSAPI \(Kafka's default\) is not supported; write one of", id="none"),
        pytest.param(
            {"sasl.mechanism": "GSSAPI"},
            "sasl.mechanism: GSSAPI is not supported; write one of PLAIN, SCRAM-SHA-256",
            id="GSSAPI",
        ),
        pytest.param({"sasl.mechanism": "plain"}, "plain is not supported", id="lower case"),
        pytest.param(
            {"sasl.mechanism": "PLAIN"},
            "sasl.jaas.config is not set, and PLAIN needs it: .*PlainLoginModule required username",
            id="no login module",
        ),
        pytest.param(
            {"sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": PLAIN},
            "PlainLoginModule, which is not for SCRAM-SHA-256; write .*ScramLoginModule",
            id="the other login module",
        ),
        pytest.param(
            {"sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN + SCRAM},
            "has 2 login modules; write one",
            id="two login modules",
        ),
        pytest.param(
            {"sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN[:-1]},
            "sasl.jaas.config: .*does not end with a semicolon; write ",
            id="no semicolon",
        ),
        pytest.param(login('password="hush"'), "PlainLoginModule has no username", id="username"),
        pytest.param(login('username="a" password=""'), "has no password", id="password"),
        pytest.param(
            login(r'username="a" password="hush\0"'), "the password has characters", id="NUL"
        ),
        pytest.param(
            login('username="a" password="\ud800"'), "the password has characters", id="surrogate"
        ),
        pytest.param(
            login('username="a" password="hush" tokenauth="true"'), "delegation tokens", id="token"
        ),
        pytest.param(
            {"sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN, "sasl.login.class": "a.B"},
            "sasl.login.class: Java classes cannot be used here",
            id="a Java class",
        ),
        pytest.param(
            {"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": f"{OAUTH};"},
            f"{TOKEN_URL} is not set: write the token into a file",
            id="no token",
        ),
        pytest.param(
            {
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.jaas.config": f"{OAUTH};",
                TOKEN_URL: "https://a:hush@idp/token",
            },
            f"{TOKEN_URL}=https:.*a token is read from a file only",
            id="an endpoint",
        ),
        pytest.param(
            {
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.jaas.config": f'{OAUTH} extension_auth="x";',
                TOKEN_URL: "file:///t",
            },
            "extension_auth is no SASL extension",
            id="a reserved extension",
        ),
    ],
)
def test_what_is_refused(pairs: dict[str, str], message: str) -> None:
    with pytest.raises(StartupError, match=message) as caught:
        sasl_properties(pairs)
    assert "hush" not in str(caught.value)
    assert "\n" not in str(caught.value)
