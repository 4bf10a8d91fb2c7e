"""`security.protocol` of Kafka's client properties, and what of TLS and SASL it makes necessary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kbroker.client.security import sasl_properties as sasl
from kbroker.client.security import tls_properties as tls
from kbroker.client.security.sasl_properties import SaslProperties
from kbroker.client.security.tls_properties import TlsProperties
from kbroker.model import StartupError

SECURITY_PROTOCOL: Final = "security.protocol"
ACTING: Final = frozenset({SECURITY_PROTOCOL}) | tls.ACTING | sasl.ACTING
"""The properties that act."""

_PREFIXES: Final = ("ssl.", "sasl.")


class SecurityProtocol(StrEnum):
    """Kafka's SecurityProtocol."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True)
class SecurityProperties:
    """tls, sasl: None where the protocol has none of it."""

    tls: TlsProperties | None = None
    sasl: SaslProperties | None = None


def security_properties(pairs: Mapping[str, str]) -> SecurityProperties:
    """pairs: client properties, of which those of security are read. Raises StartupError, also
    where TLS or SASL is set up without security.protocol: Kafka then sends in the clear.
    """
    text = pairs.get(SECURITY_PROTOCOL, "")
    try:
        protocol = SecurityProtocol(text.upper() or SecurityProtocol.PLAINTEXT)
    except ValueError:
        raise StartupError(
            f"{SECURITY_PROTOCOL}={text}: write {', '.join(SecurityProtocol)}"
        ) from None
    if not text:
        for key, value in sorted(pairs.items()):
            if key.startswith(_PREFIXES) and value:
                raise StartupError(
                    f"{key} is set, but {SECURITY_PROTOCOL} is not, and its default sends in the "
                    f"clear: write one of {', '.join(SecurityProtocol)}"
                )
    return SecurityProperties(
        tls=tls.tls_properties(pairs) if protocol.has_tls else None,
        sasl=sasl.sasl_properties(pairs) if protocol.has_sasl else None,
    )
