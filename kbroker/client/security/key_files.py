"""The files of a client's TLS and SASL: certificates, keys and tokens."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kbroker.client.security.secret import Secret
from kbroker.model import StartupError


def read_text(path: str, key: str) -> str:
    """A text file. key: the property that names it. Raises StartupError."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise StartupError(f"{key}={path}: cannot read it: {error.strerror}") from None
    except UnicodeDecodeError:
        raise StartupError(f"{key}={path}: it is no text; write PEM, or a token") from None


@contextmanager
def private_file(text: Secret) -> Iterator[str]:
    """The path of a file that holds a text, for as long as the context lasts; its owner alone can
    read it. OpenSSL takes a certificate chain and its key from a file only.
    """
    with tempfile.NamedTemporaryFile("w", encoding="ascii", suffix=".pem") as file:  # mode 0600
        file.write(text.reveal())
        file.flush()
        yield file.name
