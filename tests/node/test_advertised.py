"""Advertised addresses that this machine cannot use are logged at the start."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Iterator

import pytest

from kbroker.metadata.image import Endpoint
from kbroker.node import advertised
from kbroker.server.network.listener import BoundListener

UNRESOLVABLE = f"{'x' * 64}.invalid"
"""A part of a name has 63 characters at most, so no resolver is asked."""


@pytest.fixture
def open_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port on which every connection is refused."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


def endpoint(host: str, port: int) -> Endpoint:
    return Endpoint("OUTSIDE", host, port, 0)


def test_an_address_that_answers_is_no_problem(open_port: int) -> None:
    assert advertised.problem_with(endpoint("127.0.0.1", open_port)) is None


def test_a_port_where_nothing_listens(closed_port: int) -> None:
    problem = advertised.problem_with(endpoint("127.0.0.1", closed_port))
    assert problem == "cannot connect to it (Connection refused)"


@pytest.mark.parametrize("host", [UNRESOLVABLE, "b\u00fccher..example"])
def test_a_name_that_does_not_resolve(host: str) -> None:
    problem = advertised.problem_with(endpoint(host, 9092))
    assert problem is not None
    assert problem.startswith(f"cannot resolve {host} (")


def test_one_of_several_addresses_is_enough(
    open_port: int, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inet = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
    found = [(*inet, ("127.0.0.1", port)) for port in (closed_port, open_port)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert advertised.problem_with(endpoint("broker", 9092)) is None


def test_a_family_that_this_machine_does_not_have(
    open_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", open_port))
    found = [(9_999, socket.SOCK_STREAM, 0, "", ("::1", open_port))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    problem = advertised.problem_with(endpoint("broker", 9092))
    assert problem is not None and problem.startswith("cannot connect to it")
    found.append(here)
    assert advertised.problem_with(endpoint("broker", 9092)) is None


def test_an_address_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(socket.socket):
        def connect(self, address: object) -> None:
            raise TimeoutError(errno.ETIMEDOUT, "timed out")

    monkeypatch.setattr(socket, "socket", Silent)
    problem = advertised.problem_with(endpoint("127.0.0.1", 9092))
    assert problem == "cannot connect to it (no answer)"


def test_the_listeners_own_addresses_are_not_tried() -> None:
    bound = [
        BoundListener("PLAINTEXT", "127.0.0.1", 9092, "PLAINTEXT"),
        BoundListener("OUTSIDE", "", 19092, "PLAINTEXT"),
    ]
    own = Endpoint("PLAINTEXT", "127.0.0.1", 9092, 0)
    unbound = Endpoint("CONTROLLER", "localhost", 9093, 0)
    every = [own, endpoint("host", 19092), unbound]
    assert advertised.to_try(every, bound) == [endpoint("host", 19092)]
    assert advertised.try_in_background([]) is None


def test_they_are_logged_from_a_thread(
    closed_port: int, open_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    both = [endpoint("127.0.0.1", port) for port in (open_port, closed_port)]
    with caplog.at_level(logging.WARNING):
        thread = advertised.try_in_background(both)
        assert thread is not None and thread.daemon
        thread.join(20)
    (line,) = caplog.messages
    assert line == (
        f"clients are told to connect to OUTSIDE://127.0.0.1:{closed_port}, but this machine"
        " cannot connect to it (Connection refused): check advertised.listeners"
    )
