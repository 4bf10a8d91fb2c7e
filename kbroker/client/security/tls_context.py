"""A TLS context of a client, made of `tls_properties`. Why a handshake failed is in `tls_failures`.

It trusts as Java does: every certificate of the truststore is an anchor, be it a CA's or not.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Final

from kbroker.client.security import pem
from kbroker.client.security.key_files import private_file, read_text
from kbroker.client.security.secret import Secret
from kbroker.client.security.tls_properties import (
    KEY_PASSWORD,
    KEYSTORE_CERTIFICATE_CHAIN,
    KEYSTORE_KEY,
    KEYSTORE_LOCATION,
    TRUSTSTORE_CERTIFICATES,
    TRUSTSTORE_LOCATION,
    TlsProperties,
)
from kbroker.model import StartupError

_VERSIONS: Final[Mapping[str, ssl.TLSVersion]] = {
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}


def tls_context(properties: TlsProperties) -> ssl.SSLContext:
    """Reads certificates and keys. Raises StartupError for what cannot be read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies certificates
    context.minimum_version = _VERSIONS[properties.versions[0]]
    context.maximum_version = _VERSIONS[properties.versions[-1]]
    context.check_hostname = properties.check_hostname
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    _trust(context, properties)
    _identify(context, properties)
    return context


def _trust(context: ssl.SSLContext, properties: TlsProperties) -> None:
    """Without a truststore the CAs of the system count, as those of the JRE do for Java."""
    location, text = properties.truststore_location, properties.trusted_certificates
    what = TRUSTSTORE_CERTIFICATES
    if location is not None:
        text = read_text(location, TRUSTSTORE_LOCATION)
        what = f"{TRUSTSTORE_LOCATION}={location}"
    if text is None:
        context.load_default_certs()
        return
    try:
        context.load_verify_locations(cadata=pem.certificates(text))
    except ValueError as error:  # ssl.SSLError has another base
        raise StartupError(f"{what}: {error}") from None
    except ssl.SSLError as error:
        raise StartupError(f"{what}: cannot read its certificates: {_reason(error)}") from None


def _identify(context: ssl.SSLContext, properties: TlsProperties) -> None:
    """The client's own certificate, for brokers that ask for one."""
    location, chain, key = (
        properties.keystore_location,
        properties.certificate_chain,
        properties.key,
    )
    if location is not None:
        read_text(location, KEYSTORE_LOCATION)  # for the better error
        _load(context, location, f"{KEYSTORE_LOCATION}={location}", properties.key_password)
    elif chain is not None and key is not None:
        try:
            both = pem.certificates(chain) + pem.private_key(key.reveal())
        except ValueError as error:
            raise StartupError(
                f"{KEYSTORE_CERTIFICATE_CHAIN} and {KEYSTORE_KEY}: {error}"
            ) from None
        with private_file(Secret(both)) as path:
            _load(context, path, KEYSTORE_KEY, properties.key_password)


def _load(context: ssl.SSLContext, path: str, what: str, password: Secret | None) -> None:
    try:
        context.load_cert_chain(path, password=_given(what, password))
    except ssl.SSLError as error:
        advice = "it has to hold a certificate chain and its key" + (
            "" if password is None else f", and {KEY_PASSWORD} has to be the key's"
        )
        raise StartupError(f"{what}: {_reason(error)}; {advice}") from None


def _given(what: str, password: Secret | None) -> Callable[[], str]:
    """OpenSSL calls it for an encrypted key; without it, OpenSSL asks on the terminal."""

    def answer() -> str:
        if password is None:
            raise StartupError(f"{what}: the key is encrypted; set {KEY_PASSWORD}")
        return password.reveal()

    return answer


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")
