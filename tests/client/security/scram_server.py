"""The server's side of SCRAM as Kafka's ScramSaslServer has it, from RFC 5802 and nothing else."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping

ITERATIONS = 4096
SALT = b"0123456789abcdef"


class ScramServer:
    """One exchange. passwords: by username; taken as UTF-8, without SASLprep."""

    def __init__(self, name: str, passwords: Mapping[str, str]) -> None:
        self._hash = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[name]
        self._passwords = passwords
        self._salted = b""
        self._bare = b""
        self._server_first = b""

    def first(self, client_first: bytes) -> bytes:
        assert client_first.startswith(b"n,,n=")
        self._bare = client_first[3:]
        name, nonce = self._bare.split(b",")
        username = name[2:].decode().replace("=2C", ",").replace("=3D", "=")
        password = self._passwords[username].encode()
        self._salted = hashlib.pbkdf2_hmac(self._hash, password, SALT, ITERATIONS)
        salt = base64.b64encode(SALT)
        self._server_first = nonce + b"server,s=" + salt + b",i=%d" % ITERATIONS
        return self._server_first

    def final(self, client_final: bytes) -> bytes:
        """Raises PermissionError for a wrong password."""
        without_proof, _, proof = client_final.partition(b",p=")
        message = b",".join((self._bare, self._server_first, without_proof))
        key = self._digest(self._salted, b"Client Key")
        stored = hashlib.new(self._hash, key).digest()
        signature = self._digest(stored, message)
        expected = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        if base64.b64decode(proof) != expected:
            raise PermissionError
        server_key = self._digest(self._salted, b"Server Key")
        return b"v=" + base64.b64encode(self._digest(server_key, message))

    def _digest(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)
