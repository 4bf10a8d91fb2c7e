"""Schemas by their ids, from a folder and from a registry over HTTP."""

from __future__ import annotations

import json
import pickle
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from spark_jobs.decoding import registry as registries
from spark_jobs.decoding.errors import Undecodable
from spark_jobs.decoding.registry import registry_at, schema_id
from spark_jobs.errors import JobError

TEXT = '"string"'
ANSWERS: dict[str, object] = {
    "/schemas/types": ["AVRO"],
    "/schemas/ids/1": {"schema": TEXT},
    "/schemas/ids/2": {"schema": "message M {}", "schemaType": "PROTOBUF"},
    "/schemas/ids/3": {
        "schema": '"b.E"',
        "references": [{"name": "b.E", "subject": "a/e", "version": 2}],
    },
    "/subjects/a%2Fe/versions/2": {
        "schema": '"c.F"',
        "references": [{"name": "c.F", "subject": "f", "version": 1}],
    },
    "/subjects/f/versions/1": {"schema": TEXT},
    "/schemas/ids/4": ["no object"],
    "/schemas/ids/5": {"schema": TEXT, "references": [{"subject": "gone", "version": 1}]},
}


class Server:
    """A registry. asked: the paths of all requests."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.credentials: list[str | None] = []
        self.code = 200
        self.location = ""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                outer.credentials.append(self.headers["Authorization"])
                found = ANSWERS.get(self.path)
                self.send_response(404 if found is None else outer.code)
                if outer.location:
                    self.send_header("Location", outer.location + self.path)
                body = json.dumps(found or {"error_code": 40403}).encode()
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"


@contextmanager
def running() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(registries, "PAUSE_S", 0.0)
    with running() as made:
        yield made


def test_schemas_of_a_registry(server: Server) -> None:
    registry = pickle.loads(pickle.dumps(registry_at(server.url)))
    registry.check()
    assert registry.texts(1) == registry.texts(1) == (TEXT,)
    assert registry.texts(3) == (TEXT, '"c.F"', '"b.E"')
    for number, why in (
        (2, "schema 2 of the registry is PROTOBUF, not AVRO"),
        (4, "schema 4 of the registry is none"),
        (5, "the registry has no schema 5"),
        (9, "the registry has no schema 9"),
        (9, "the registry has no schema 9"),
    ):
        with pytest.raises(Undecodable, match=why):
            registry.texts(number)
    assert [server.asked.count(f"/schemas/ids/{number}") for number in (1, 9)] == [1, 1]
    assert set(server.credentials) == {None}


def test_a_schema_that_is_registered_later_is_found(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = registry_at(server.url)
    for _ in range(2):
        with pytest.raises(Undecodable):
            registry.texts(8)
    assert server.asked == ["/schemas/ids/8"]
    monkeypatch.setitem(ANSWERS, "/schemas/ids/8", {"schema": TEXT})
    monkeypatch.setattr(registries, "FORGET_S", 0.0)
    assert registry.texts(8) == (TEXT,)
    monkeypatch.setattr(registries, "MAX_MISSING", 2)
    for number in range(100, 110):
        with pytest.raises(Undecodable):
            registry.texts(number)


def test_credentials_are_sent_and_not_shown(server: Server) -> None:
    registry = registry_at(server.url, "me:secret")
    registry.check()
    assert server.credentials == ["Basic bWU6c2VjcmV0"]
    assert "secret" not in repr(registry)


def test_credentials_stay_with_the_registry(server: Server) -> None:
    with running() as other:
        server.code, server.location = 302, other.url.rstrip("/")
        registry = registry_at(server.url, "me:secret")
        assert registry.texts(1) == (TEXT,)
        assert (server.credentials, other.credentials) == (["Basic bWU6c2VjcmV0"], [None])
        other.code = 401
        with pytest.raises(JobError) as raised:
            registry.check()
    assert str(raised.value) == (
        f"--schemaRegistry {server.url} cannot be asked: it answers 401 Unauthorized behind a "
        "redirection, where no credentials are sent"
    )


@pytest.mark.parametrize("url", ["https://me:secret@host:8081", "http://me:sec/ret@host"])
def test_a_url_with_a_password_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(JobError) as raised:
        registry_at(url)
    assert "give these as --schemaRegistryCredentials" in str(raised.value)
    assert "sec" not in str(raised.value)


@pytest.mark.parametrize(("code", "requests"), [(503, 3), (429, 3), (401, 1)])
def test_a_registry_that_does_not_answer_is_one_line(
    server: Server, code: int, requests: int
) -> None:
    server.code = code
    with pytest.raises(
        JobError, match=rf"{server.url} cannot be asked: it answers {code}"
    ) as raised:
        registry_at(server.url).texts(1)
    assert "\n" not in str(raised.value)
    assert len(server.asked) == requests


def test_a_registry_that_is_down_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registries, "PAUSE_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with pytest.raises(JobError) as raised:
        registry_at(url).check()
    assert str(raised.value) == f"--schemaRegistry {url} cannot be asked: Connection refused"


def test_a_registry_from_before_types_can_be_asked(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(ANSWERS, "/schemas/types")
    registry_at(server.url).check()


def test_schemas_of_a_folder(tmp_path: Path) -> None:
    registry = registry_at(str(tmp_path))
    with pytest.raises(JobError, match="has no schemas"):
        registry.check()
    (tmp_path / "7.avsc").write_text(TEXT)
    (tmp_path / "8.avsc").write_bytes(b"\xff")
    registry.check()
    assert registry.texts(7) == (TEXT,)
    for number, why in ((9, r"has no schema 9 \(no file 9.avsc\)"), (8, "8 of .* is no UTF-8")):
        with pytest.raises(Undecodable, match=why):
            registry.texts(number)


def test_ids() -> None:
    assert schema_id(b"\x00\x00\x00\x01\x00rest") == 256
    for value in (b"", b"\x00\x00\x00\x00", b"\x01\x00\x00\x00\x01"):
        with pytest.raises(Undecodable, match="does not begin with a byte 0"):
            schema_id(value)
