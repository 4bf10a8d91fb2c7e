"""Certificates and keys for tests of TLS, made by the `openssl` command."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

KEY_PASSWORD: Final = "key-secret"
EC: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True, slots=True)
class Certificates:
    """Paths of PEM files in one folder; a keystore is a key and its certificate chain."""

    folder: Path

    def path(self, name: str) -> str:
        return str(self.folder / name)

    @property
    def authority(self) -> str:
        """The CA's certificate, which signs all others but `other_authority`."""
        return self.path("ca.pem")

    @property
    def other_authority(self) -> str:
        return self.path("other-ca.pem")

    @property
    def server(self) -> str:
        """Keystore of localhost and 127.0.0.1."""
        return self.path("server.pem")

    @property
    def elsewhere(self) -> str:
        """Keystore of kafka.example, which no test connects to under this name."""
        return self.path("elsewhere.pem")

    @property
    def client(self) -> str:
        """Keystore of the client."""
        return self.path("client.pem")

    @property
    def encrypted_client(self) -> str:
        """As `client`, its key encrypted with KEY_PASSWORD."""
        return self.path("encrypted-client.pem")


def make_certificates(folder: Path) -> Certificates:
    """Skips the test where there is no openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command, which makes certificates")
    made = Certificates(folder)
    for name in ("ca", "other-ca"):
        files = ("-keyout", made.path(f"{name}.key"), "-out", made.path(f"{name}.pem"))
        openssl("req", "-x509", *EC, *files, "-subj", f"/CN={name}", "-days", "30")
    _signed(made, "server", "DNS:localhost,IP:127.0.0.1")
    _signed(made, "elsewhere", "DNS:kafka.example")
    _signed(made, "client", "DNS:client")
    encrypted = made.path("encrypted.key")
    password = ("-passout", f"pass:{KEY_PASSWORD}")
    openssl("pkcs8", "-topk8", "-in", made.path("client.key"), "-out", encrypted, *password)
    certificate = Path(made.path("client.crt")).read_text()
    Path(made.encrypted_client).write_text(Path(encrypted).read_text() + certificate)
    return made


def _signed(made: Certificates, name: str, names: str) -> None:
    key, request, signed = (made.path(f"{name}.{kind}") for kind in ("key", "csr", "crt"))
    extensions = Path(made.path(f"{name}.ext"))
    extensions.write_text(f"subjectAltName={names}\n")
    openssl("req", *EC, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
    authority = ("-CA", made.path("ca.pem"), "-CAkey", made.path("ca.key"), "-CAcreateserial")
    files = ("-in", request, "-out", signed, "-extfile", str(extensions))
    openssl("x509", "-req", *files, *authority, "-days", "30")
    Path(made.path(f"{name}.pem")).write_text(Path(key).read_text() + Path(signed).read_text())


def openssl(*arguments: str) -> None:
    """Run the command."""
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
