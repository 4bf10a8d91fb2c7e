"""Why TLS with a broker failed, as one line that says what to change."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Final

from kbroker.client.security.tls_properties import (
    ENABLED_PROTOCOLS,
    ENDPOINT_IDENTIFICATION,
    KEYSTORE_LOCATION,
    TRUSTSTORE_LOCATION,
)

_EXPIRED, _NOT_YET_VALID, _WRONG_HOST, _WRONG_ADDRESS = 10, 9, 62, 64
"""OpenSSL's X509_V_ERR_*."""

HUNG_UP: Final = (
    "TLS did not begin: check its port and security.protocol, and "
    f"{KEYSTORE_LOCATION} if it asks for certificates"
)

_RECORDS: Final = (b"\x14\x03", b"\x15\x03", b"\x16\x03")
"""How TLS records begin: kind and major version."""

_ADVICE: Final[Mapping[str, str]] = {
    "CERTIFICATE": f"it refuses the client's certificate, or asks for one: see {KEYSTORE_LOCATION}",
    "UNKNOWN_CA": f"it does not trust the client's certificate: see {KEYSTORE_LOCATION}",
    "HANDSHAKE_FAILURE": f"it may ask for a certificate of the client: see {KEYSTORE_LOCATION}",
    "PROTOCOL": f"no version of TLS in common: see {ENABLED_PROTOCOLS}",
    "WRONG_VERSION": "it does not speak TLS: check its port, and security.protocol",
    "RECORD_LAYER": "it does not speak TLS: check its port, and security.protocol",
}
"""By a part of OpenSSL's reason; the first that fits counts."""


def is_tls_record(data: bytes) -> bool:
    """Whether bytes of a peer are TLS, and so no response of Kafka's of a size that is possible."""
    return data[:2] in _RECORDS


def is_final(error: ssl.SSLError) -> bool:
    """Whether another attempt would meet it again; not where the peer hung up."""
    return not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError)


def tls_failure(error: ssl.SSLError) -> str:
    """A line without the address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _certificate_failure(error)
    if not is_final(error):
        return HUNG_UP
    reason = error.reason or str(error)
    text = reason.lower().replace("_", " ")
    for part, advice in _ADVICE.items():
        if part in reason:
            return f"TLS failed ({text}); {advice}"
    return f"TLS failed ({text})"


def _certificate_failure(error: ssl.SSLCertVerificationError) -> str:
    why = error.verify_message.rstrip(".")
    if error.verify_code in (_WRONG_HOST, _WRONG_ADDRESS):
        return (
            f"{why}; use a name that its certificate has, or check none with "
            f"{ENDPOINT_IDENTIFICATION}= (empty)"
        )
    if error.verify_code in (_EXPIRED, _NOT_YET_VALID):
        return f"{why}; it has to be renewed there, unless the clock of this machine is wrong"
    return f"its certificate is not trusted ({why}); name that of its CA by {TRUSTSTORE_LOCATION}"
