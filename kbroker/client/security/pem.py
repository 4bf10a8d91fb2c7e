"""Certificates and private keys in PEM (RFC 7468), also where line breaks are missing, as in a
property that holds them in one line. Source: PemStore of Kafka's DefaultSslEngineFactory.
"""

from __future__ import annotations

import re
from typing import Final

_BLOCK: Final = re.compile(r"-+BEGIN\s+([A-Z0-9 ]+?)\s*-+(.*?)-+END\s+\1\s*-+", re.DOTALL)
_LINE_CHARS: Final = 64


def certificates(text: str) -> str:
    """Every certificate of a text, one after the other. Raises ValueError without one."""
    return _blocks(text, "CERTIFICATE")


def private_key(text: str) -> str:
    """The private key of a text, which may be encrypted. Raises ValueError without one."""
    return _blocks(text, "PRIVATE KEY")


def _blocks(text: str, kind: str) -> str:
    """The blocks whose label ends with kind, with line breaks where OpenSSL expects them."""
    found = [
        f"-----BEGIN {label}-----\n{_lines(body)}\n-----END {label}-----\n"
        for label, body in _BLOCK.findall(text)
        if label.endswith(kind)
    ]
    if not found:
        raise ValueError(f"no PEM block BEGIN {kind} in it")
    return "".join(found)


def _lines(body: str) -> str:
    if ":" in body:  # headers of an encrypted key of OpenSSL's old format: lines matter
        return body.strip()
    base64 = "".join(body.split())
    return "\n".join(
        base64[start : start + _LINE_CHARS] for start in range(0, len(base64), _LINE_CHARS)
    )
