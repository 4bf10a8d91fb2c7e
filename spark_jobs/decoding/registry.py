"""Schemas by their ids: of a schema registry (Confluent's, and what speaks its interface), or of a
folder with a file `ID.avsc` for each.

A value in Confluent's framing begins with a byte 0 and the id of its schema, 4 bytes big-endian.
"""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any, Final, Protocol
from urllib.parse import quote

from ..errors import JobError
from ..storage import Folder, absolute
from .errors import Undecodable

MAGIC: Final = 0
FRAME_BYTES: Final = 5
TIMEOUT_S: Final = 5.0
ATTEMPTS: Final = 3
PAUSE_S: Final = 1.0
MAX_REFERENCES: Final = 1000
FORGET_S: Final = 60.0
MAX_MISSING: Final = 10_000
AVRO: Final = "AVRO"


def schema_id(value: bytes) -> int:
    """The id that a framed value begins with. Raises Undecodable."""
    if len(value) < FRAME_BYTES or value[0] != MAGIC:
        raise Undecodable("the value does not begin with a byte 0 and the id of a schema")
    return int.from_bytes(value[1:FRAME_BYTES], "big")


Texts = tuple[str, ...]
"""The JSON of a schema of Avro, behind those of the schemas that it refers to."""


class Registry(Protocol):
    """Where schemas are. Picklable."""

    def texts(self, number: int) -> Texts:
        """The schema of an id. Raises Undecodable where there is none or it cannot be used, and
        JobError where the registry cannot be asked.
        """
        ...

    def check(self) -> None:
        """Raises JobError unless it can be asked."""
        ...


@dataclass
class Remembered:
    """A registry whose answers are kept: a schema never changes its id. That there is none is kept
    for FORGET_S: values that are no Avro name any ids, and a schema may be registered yet.
    """

    registry: Registry
    _known: dict[int, Texts] = field(default_factory=dict)
    _missing: dict[int, tuple[float, str]] = field(default_factory=dict)

    def __reduce__(self) -> tuple[type[Remembered], tuple[Registry]]:
        return Remembered, (self.registry,)

    def texts(self, number: int) -> Texts:
        """See `Registry`."""
        known = self._known.get(number)
        if known is not None:
            return known
        now_s = time.monotonic()
        since_s, why = self._missing.get(number, (0.0, ""))
        if why and now_s - since_s < FORGET_S:
            raise Undecodable(why)
        try:
            self._known[number] = self.registry.texts(number)
        except Undecodable as error:
            if len(self._missing) >= MAX_MISSING:
                self._missing.clear()
            self._missing[number] = (now_s, str(error))
            raise
        return self._known[number]

    def check(self) -> None:
        """See `Registry`."""
        self.registry.check()


@dataclass(frozen=True)
class SchemaFolder:
    """A folder that driver and executors share."""

    location: str

    def texts(self, number: int) -> Texts:
        """See `Registry`."""
        try:
            content = Folder(absolute(self.location)).read(f"{number}.avsc")
        except OSError as error:
            raise self._unreadable(error) from error
        if content is None:
            raise Undecodable(f"{self.location} has no schema {number} (no file {number}.avsc)")
        try:
            return (content.decode(),)
        except UnicodeDecodeError as error:
            raise Undecodable(f"schema {number} of {self.location} is no UTF-8") from error

    def check(self) -> None:
        """See `Registry`."""
        try:
            names = Folder(absolute(self.location)).names()
        except OSError as error:
            raise self._unreadable(error) from error
        if not any(name.endswith(".avsc") for name in names):
            raise JobError(f"--schemaRegistry {self.location} has no schemas (no file ID.avsc)")

    def _unreadable(self, error: OSError) -> JobError:
        return JobError(
            f"--schemaRegistry {self.location} cannot be read: {error.strerror or error}"
        )


class NotFound(Exception):
    """The registry answers that it has no such thing."""


@dataclass(frozen=True)
class HttpRegistry:
    """A registry at a URL. credentials: `user:password`, empty for none."""

    url: str
    credentials: str = field(default="", repr=False)

    def texts(self, number: int) -> Texts:
        """See `Registry`."""
        try:
            answer = self._get(f"schemas/ids/{number}")
            kind = answer.get("schemaType", AVRO)
            if kind != AVRO:
                raise Undecodable(f"schema {number} of the registry is {kind}, not {AVRO}")
            references: dict[tuple[str, int], str] = {}
            self._add_references(answer, references)
            return (*references.values(), str(answer["schema"]))
        except NotFound as error:
            raise Undecodable(f"the registry has no schema {number}") from error
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, Undecodable):
                raise
            raise Undecodable(f"schema {number} of the registry is none ({error})") from error

    def check(self) -> None:
        """See `Registry`."""
        try:
            self._get("schemas/types")
        except NotFound:
            return  # an older one answers that, and can be asked

    def _add_references(self, answer: Any, found: dict[tuple[str, int], str]) -> None:
        """The schemas that one refers to, before those that use them."""
        for each in answer.get("references") or ():
            subject, version = str(each["subject"]), int(each["version"])
            if (subject, version) in found:
                continue
            if len(found) >= MAX_REFERENCES:
                raise Undecodable(f"a schema refers to more than {MAX_REFERENCES} others")
            other = self._get(f"subjects/{quote(subject, safe='')}/versions/{version}")
            self._add_references(other, found)
            found[subject, version] = other["schema"]

    def _get(self, path: str) -> Any:
        """Raises NotFound, or JobError once its retries end."""
        why = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(PAUSE_S)
            try:
                return self._asked(path)
            except urllib.error.HTTPError as error:
                with error:
                    if error.code == 404:
                        raise NotFound from error
                    why = f"it answers {error.code} {error.reason}"
                    if error.code in (401, 403) and error.url != self._address(path):
                        why += " behind a redirection, where no credentials are sent"
                if error.code < 500 and error.code != 429:
                    break
            except urllib.error.URLError as error:
                why = str(getattr(error.reason, "strerror", None) or error.reason)
            except (OSError, HTTPException, ValueError) as error:
                why = str(error) or type(error).__name__
        raise JobError(f"--schemaRegistry {self.url} cannot be asked: {why}")

    def _address(self, path: str) -> str:
        return f"{self.url.rstrip('/')}/{path}"

    def _asked(self, path: str) -> Any:
        request = urllib.request.Request(self._address(path))
        if self.credentials:
            encoded = base64.b64encode(self.credentials.encode()).decode()
            # Not to where the registry redirects: that may be another host.
            request.add_unredirected_header("Authorization", f"Basic {encoded}")
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)


def registry_at(location: str, credentials: str = "") -> Remembered:
    """Of a URL, or of a folder. Raises JobError for a URL with a user in it."""
    if location.startswith(("http://", "https://")):
        if "@" in location:  # anywhere: a password may have signs that end the host's part
            raise JobError(
                "--schemaRegistry: a URL is shown in messages and has no user and password (no @): "
                "give these as --schemaRegistryCredentials '${file:PATH}'"
            )
        return Remembered(HttpRegistry(location, credentials))
    return Remembered(SchemaFolder(location))
