"""Kafka's client properties of TLS, `ssl.*`, as values. No file is read here (`tls_context` does).

Certificates and keys are PEM (KIP-651). JKS and PKCS12, Java's formats, are refused with the
command that converts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kbroker.client.security.secret import Secret
from kbroker.model import StartupError

PEM: Final = "PEM"
JKS: Final = "JKS"
TRUSTSTORE_LOCATION: Final = "ssl.truststore.location"
TRUSTSTORE_CERTIFICATES: Final = "ssl.truststore.certificates"
TRUSTSTORE_TYPE: Final = "ssl.truststore.type"
TRUSTSTORE_PASSWORD: Final = "ssl.truststore.password"
KEYSTORE_LOCATION: Final = "ssl.keystore.location"
KEYSTORE_CERTIFICATE_CHAIN: Final = "ssl.keystore.certificate.chain"
KEYSTORE_KEY: Final = "ssl.keystore.key"
KEYSTORE_TYPE: Final = "ssl.keystore.type"
KEYSTORE_PASSWORD: Final = "ssl.keystore.password"
KEY_PASSWORD: Final = "ssl.key.password"
ENDPOINT_IDENTIFICATION: Final = "ssl.endpoint.identification.algorithm"
PROTOCOL: Final = "ssl.protocol"
ENABLED_PROTOCOLS: Final = "ssl.enabled.protocols"

ACTING: Final = frozenset(
    {
        TRUSTSTORE_LOCATION,
        TRUSTSTORE_CERTIFICATES,
        TRUSTSTORE_TYPE,
        TRUSTSTORE_PASSWORD,
        KEYSTORE_LOCATION,
        KEYSTORE_CERTIFICATE_CHAIN,
        KEYSTORE_KEY,
        KEYSTORE_TYPE,
        KEYSTORE_PASSWORD,
        KEY_PASSWORD,
        ENDPOINT_IDENTIFICATION,
        PROTOCOL,
        ENABLED_PROTOCOLS,
    }
)
REFUSED: Final[Mapping[str, str]] = {
    "ssl.cipher.suites": "it has Java's names of cipher suites; OpenSSL's defaults are used",
    "ssl.engine.factory.class": "it names a Java class",
    "security.providers": "it names Java classes",
}
"""Properties that would change what is safe, and that cannot act here."""

TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
"""From the oldest to the newest. Java 17, too, refuses the older ones."""
_ANY_VERSION: Final = frozenset({"TLS", "TLSv1.3"})
_PEM_SUFFIXES: Final = (".pem", ".crt", ".cer")


@dataclass(frozen=True, slots=True)
class TlsProperties:
    """What a TLS context is made of. Of a location and an inline value at most one is given.

    trusted_certificates, certificate_chain: PEM. versions: of TLS, oldest first.
    """

    truststore_location: str | None = None
    trusted_certificates: str | None = None
    keystore_location: str | None = None
    certificate_chain: str | None = None
    key: Secret | None = None
    key_password: Secret | None = None
    check_hostname: bool = True
    versions: tuple[str, ...] = TLS_VERSIONS


def tls_properties(pairs: Mapping[str, str]) -> TlsProperties:
    """pairs: client properties, of which those of TLS are read. Raises StartupError."""
    given = {key: value for key, value in pairs.items() if value}
    for refused, why in REFUSED.items():
        if refused in given:
            raise StartupError(f"{refused} is not supported: {why}; remove it")
    _check_truststore(given)
    _check_keystore(given)
    key = given.get(KEYSTORE_KEY)
    password = given.get(KEY_PASSWORD)
    return TlsProperties(
        truststore_location=given.get(TRUSTSTORE_LOCATION),
        trusted_certificates=given.get(TRUSTSTORE_CERTIFICATES),
        keystore_location=given.get(KEYSTORE_LOCATION),
        certificate_chain=given.get(KEYSTORE_CERTIFICATE_CHAIN),
        key=None if key is None else Secret(key),
        key_password=None if password is None else Secret(password),
        check_hostname=_check_hostname(pairs),
        versions=_versions(given),
    )


def _check_truststore(given: Mapping[str, str]) -> None:
    location = given.get(TRUSTSTORE_LOCATION)
    if location is not None and given.get(TRUSTSTORE_TYPE, JKS) != PEM:
        made = f"keytool -list -rfc -keystore {location} > trust.pem"
        raise _not_pem(given, TRUSTSTORE_TYPE, TRUSTSTORE_LOCATION, f"{made} makes one")
    if TRUSTSTORE_CERTIFICATES in given:
        if location is not None:
            raise _two_of(TRUSTSTORE_LOCATION, TRUSTSTORE_CERTIFICATES)
        _demand_pem(given, TRUSTSTORE_TYPE, TRUSTSTORE_CERTIFICATES)
    if TRUSTSTORE_PASSWORD in given:
        raise StartupError(f"{TRUSTSTORE_PASSWORD}: a truststore in PEM has none; remove it")


def _check_keystore(given: Mapping[str, str]) -> None:
    location = given.get(KEYSTORE_LOCATION)
    if location is not None and given.get(KEYSTORE_TYPE, JKS) != PEM:
        first = ""
        if given.get(KEYSTORE_TYPE, JKS) == JKS:
            first = f"keytool -importkeystore -srckeystore {location} -destkeystore client.p12, "
            location = "client.p12"
        made = f"{first}openssl pkcs12 -in {location} -out client.pem"
        raise _not_pem(given, KEYSTORE_TYPE, KEYSTORE_LOCATION, f"{made} makes one")
    if KEYSTORE_KEY in given or KEYSTORE_CERTIFICATE_CHAIN in given:
        for key, other in (
            (KEYSTORE_KEY, KEYSTORE_CERTIFICATE_CHAIN),
            (KEYSTORE_CERTIFICATE_CHAIN, KEYSTORE_KEY),
        ):
            if key not in given:
                raise StartupError(f"{other} is set, but {key} is not: set both")
            if location is not None:
                raise _two_of(KEYSTORE_LOCATION, key)
            _demand_pem(given, KEYSTORE_TYPE, key)
    if KEYSTORE_PASSWORD in given:
        raise StartupError(
            f"{KEYSTORE_PASSWORD}: a keystore in PEM has none; the key's is {KEY_PASSWORD}"
        )


def _not_pem(given: Mapping[str, str], kind: str, location: str, made: str) -> StartupError:
    path = given[location]
    if kind not in given and path.lower().endswith(_PEM_SUFFIXES):
        return StartupError(f"{location}={path}: set {kind}=PEM too; {JKS} is Kafka's default")
    what = f"{kind}={given[kind]}" if kind in given else f"{kind} is {JKS} if it is not set, which"
    return StartupError(f"{location}={path}: {what} is not read here; {made}, then set {kind}=PEM")


def _demand_pem(given: Mapping[str, str], kind: str, key: str) -> None:
    if given.get(kind, JKS) != PEM:
        raise StartupError(f"{key} is PEM: set {kind}=PEM too")


def _two_of(location: str, key: str) -> StartupError:
    return StartupError(f"{location} and {key} are both set: keep one")


def _check_hostname(pairs: Mapping[str, str]) -> bool:
    algorithm = pairs.get(ENDPOINT_IDENTIFICATION, "https")
    if algorithm.lower() not in ("https", ""):
        raise StartupError(
            f"{ENDPOINT_IDENTIFICATION}={algorithm}: write https, or nothing for no check"
        )
    return bool(algorithm)


def _versions(given: Mapping[str, str]) -> tuple[str, ...]:
    """With ssl.protocol=TLSv1.2 the newer one is not used, even if it is enabled (Kafka)."""
    protocol = given.get(PROTOCOL, "TLSv1.3")
    names = [name.strip() for name in given.get(ENABLED_PROTOCOLS, "").split(",")]
    enabled = {name for name in names if name} or {*TLS_VERSIONS}
    known = {*TLS_VERSIONS}
    if protocol not in _ANY_VERSION | known:
        raise StartupError(f"{PROTOCOL}={protocol}: write {' or '.join(TLS_VERSIONS)}")
    if not enabled <= known:
        wrong = ",".join(sorted(enabled - known))
        raise StartupError(f"{ENABLED_PROTOCOLS}: not {wrong}; write {' or '.join(TLS_VERSIONS)}")
    if protocol not in _ANY_VERSION:
        enabled &= {*TLS_VERSIONS[: TLS_VERSIONS.index(protocol) + 1]}
    if not enabled:
        raise StartupError(f"{PROTOCOL}={protocol} leaves nothing of {ENABLED_PROTOCOLS}")
    return tuple(name for name in TLS_VERSIONS if name in enabled)
