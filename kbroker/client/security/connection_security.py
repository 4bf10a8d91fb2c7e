"""What the connections of one client need for TLS and SASL."""

from __future__ import annotations

from kbroker.client.security.key_files import read_text
from kbroker.client.security.mechanisms import (
    Mechanism,
    OAuthBearerMechanism,
    PlainMechanism,
    ScramMechanism,
)
from kbroker.client.security.sasl_authentication import SaslAuthentication
from kbroker.client.security.sasl_properties import (
    PLAIN,
    TOKEN_ENDPOINT,
    SaslProperties,
    TokenFile,
)
from kbroker.client.security.secret import Secret
from kbroker.client.security.security_properties import SecurityProperties
from kbroker.client.security.tls_context import tls_context
from kbroker.model import StartupError


class ConnectionSecurity:
    """Certificates and keys are read once, a token whenever a connection authenticates.

    Raises StartupError for files that cannot be read.
    """

    def __init__(self, properties: SecurityProperties) -> None:
        self._sasl = properties.sasl
        self.context = None if properties.tls is None else tls_context(properties.tls)
        """Of TLS; None without."""

    def authentication(self, address: str) -> SaslAuthentication | None:
        """A new one; None without SASL. address: of the broker. Raises StartupError."""
        if self._sasl is None:
            return None
        return SaslAuthentication(_mechanism(self._sasl), address)


def _mechanism(properties: SaslProperties) -> Mechanism:
    credentials = properties.credentials
    if isinstance(credentials, TokenFile):
        token = read_text(credentials.path, TOKEN_ENDPOINT).strip()
        if not token:
            raise StartupError(f"{TOKEN_ENDPOINT}: {credentials.path} is empty; it has no token")
        return OAuthBearerMechanism(Secret(token), credentials.extensions)
    if properties.mechanism == PLAIN:
        return PlainMechanism(credentials)
    return ScramMechanism(properties.mechanism, credentials)
