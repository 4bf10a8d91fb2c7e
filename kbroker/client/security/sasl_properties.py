"""Kafka's client properties of SASL, `sasl.*`, as values. No file is read here.

Mechanisms: PLAIN (KIP-43), SCRAM-SHA-256 and SCRAM-SHA-512 (KIP-84), OAUTHBEARER (KIP-255) with a
token from a file (KIP-768). GSSAPI, tokens from an endpoint and delegation tokens are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

from kbroker.client.security.jaas import LoginModule, parse_jaas
from kbroker.client.security.secret import Secret
from kbroker.model import StartupError

MECHANISM: Final = "sasl.mechanism"
JAAS_CONFIG: Final = "sasl.jaas.config"
TOKEN_ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"
CALLBACK_HANDLER: Final = "sasl.login.callback.handler.class"
JWT_RETRIEVER: Final = "sasl.oauthbearer.jwt.retriever.class"

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)
DEFAULT_MECHANISM: Final = "GSSAPI"
"""Kafka's."""

_PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_OAUTH_MODULE: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    PLAIN: (_PLAIN_MODULE, _SCRAM_MODULE),
    SCRAM_SHA_256: (_SCRAM_MODULE,),
    SCRAM_SHA_512: (_SCRAM_MODULE,),
    OAUTHBEARER: (_OAUTH_MODULE,),
}
"""Login modules by mechanism; the first one is suggested. Java takes ScramLoginModule for PLAIN."""

ACTING: Final = frozenset({MECHANISM, JAAS_CONFIG, TOKEN_ENDPOINT, CALLBACK_HANDLER, JWT_RETRIEVER})
_JAVA_CLASSES: Final[Mapping[str, tuple[str, ...]]] = {
    "sasl.client.callback.handler.class": (),
    "sasl.login.class": (),
    CALLBACK_HANDLER: ("OAuthBearerLoginCallbackHandler",),
    JWT_RETRIEVER: ("DefaultJwtRetriever", "FileJwtRetriever"),
}
"""Properties that name a Java class, and the classes that do what is done here anyway."""

_EXTENSION: Final = "extension_"


@dataclass(frozen=True, slots=True)
class Login:
    """For PLAIN and SCRAM."""

    username: str
    password: Secret


@dataclass(frozen=True, slots=True)
class TokenFile:
    """For OAUTHBEARER. extensions: SASL extensions (KIP-342)."""

    path: str
    extensions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SaslProperties:
    """mechanism: one of MECHANISMS."""

    mechanism: str
    credentials: Login | TokenFile


def sasl_properties(pairs: Mapping[str, str]) -> SaslProperties:
    """pairs: client properties, of which those of SASL are read. Raises StartupError."""
    given = {key: value for key, value in pairs.items() if value}
    mechanism = given.get(MECHANISM, DEFAULT_MECHANISM)
    if mechanism not in MECHANISMS:
        default = "" if MECHANISM in given else " (Kafka's default)"
        raise StartupError(
            f"{MECHANISM}: {mechanism}{default} is not supported; write one of "
            f"{', '.join(MECHANISMS)}"
        )
    for key, known in _JAVA_CLASSES.items():
        if key in given and given[key].rpartition(".")[2] not in known:
            raise StartupError(f"{key}: Java classes cannot be used here; remove it")
    module = _login_module(mechanism, given.get(JAAS_CONFIG))
    if mechanism == OAUTHBEARER:
        return SaslProperties(mechanism, _token_file(module, given.get(TOKEN_ENDPOINT)))
    return SaslProperties(mechanism, _login(module))


def _login_module(mechanism: str, text: str | None) -> LoginModule:
    modules = _MODULES[mechanism]
    options = "" if mechanism == OAUTHBEARER else ' username="..." password="..."'
    example = f"{modules[0]} required{options};"
    if text is None:
        raise StartupError(f"{JAAS_CONFIG} is not set, and {mechanism} needs it: {example}")
    try:
        found = parse_jaas(text)
    except ValueError as error:
        raise StartupError(f"{JAAS_CONFIG}: {error}; write {example}") from None
    if len(found) != 1:
        raise StartupError(f"{JAAS_CONFIG} has {len(found)} login modules; write one")
    if found[0].name not in modules:
        raise StartupError(
            f"{JAAS_CONFIG} names {found[0].name}, which is not for {mechanism}; write {example}"
        )
    return found[0]


def _login(module: LoginModule) -> Login:
    name = module.name.rpartition(".")[2]
    for option in ("username", "password"):
        value = module.options.get(option)
        if not value:
            raise StartupError(f"{JAAS_CONFIG}: {name} has no {option}")
        if "\0" in value or not _is_encodable(value):
            raise StartupError(f"{JAAS_CONFIG}: the {option} has characters that cannot be sent")
    if module.options.get("tokenauth", "false").lower() == "true":
        raise StartupError(f"{JAAS_CONFIG}: tokenauth: delegation tokens are not supported")
    return Login(module.options["username"], Secret(module.options["password"]))


def _is_encodable(value: str) -> bool:
    """Whether it has no half of a surrogate pair."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _token_file(module: LoginModule, url: str | None) -> TokenFile:
    example = f"write the token into a file, and {TOKEN_ENDPOINT}=file:///path/of/it"
    if url is None:
        raise StartupError(f"{TOKEN_ENDPOINT} is not set: {example}")
    parts = urlsplit(url)
    if parts.scheme != "file" or parts.netloc or not parts.path:
        raise StartupError(
            f"{TOKEN_ENDPOINT}={parts.scheme}:...: a token is read from a file only, and not "
            f"fetched with client credentials; {example}"
        )
    extensions = {
        key.removeprefix(_EXTENSION): value
        for key, value in module.options.items()
        if key.startswith(_EXTENSION)
    }
    for name, value in extensions.items():
        if name == "auth" or not name.isalpha() or not name.isascii() or "\x01" in value:
            raise StartupError(f"{JAAS_CONFIG}: {_EXTENSION}{name} is no SASL extension (RFC 7628)")
    return TokenFile(unquote(parts.path), extensions)
