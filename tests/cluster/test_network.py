"""Networks of nodes: who reaches whom while links are cut, and that nothing is left behind."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.network import Network, network_problem
from tests.cluster.run_names import (
    MOUNTS,
    NAMESPACES,
    new_run_name,
    remove_abandoned,
    start_time_of,
)

pytestmark = pytest.mark.skipif(network_problem() is not None, reason=network_problem() or "")

PORT = 5000
ABANDON = """
import os, subprocess, sys
from pathlib import Path
from tests.cluster.disk import SmallDisk
from tests.cluster.network import Network
from tests.cluster.run_names import new_run_name
run = new_run_name()
network = Network(run, ["a"]).__enter__()
SmallDisk(f"{run}-a", Path(sys.argv[1]), 1 << 20).__enter__()
program = ["sh", "-c", "echo inside; exec sleep 600 > /dev/null"]
inside = subprocess.Popen(
    [*network.command("a"), *program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
)
inside.stdout.readline()
print(run, inside.pid, flush=True)
os._exit(0)
"""


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(new_run_name(), ["a", "b", "c"]) as network:
        yield network


def datagram_socket(network: Network, member: str) -> socket.socket:
    with network.entered(member):
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind((network.addresses[member], PORT))
    made.settimeout(0.2)
    return made


def reaches(network: Network, source: str, target: str) -> bool:
    """Whether a datagram arrives."""
    with datagram_socket(network, source) as sender, datagram_socket(network, target) as receiver:
        sender.sendto(b"x", (network.addresses[target], PORT))
        try:
            return receiver.recv(1) == b"x"
        except TimeoutError:
            return False


def test_a_cut_is_one_way_and_heals(network: Network) -> None:
    assert reaches(network, "a", "b")
    network.cut("a", "b")
    assert not reaches(network, "a", "b")
    assert reaches(network, "b", "a")
    assert reaches(network, "a", "c")
    network.heal("a", "b")
    assert reaches(network, "a", "b")


def test_a_link_that_is_cut_twice_heals_twice(network: Network) -> None:
    network.cut("a", "b")
    network.cut("a", "b")
    network.heal("a", "b")
    assert not reaches(network, "a", "b")
    network.heal("a", "b")
    assert reaches(network, "a", "b")


def test_a_cut_holds_for_connections_that_are_open(network: Network) -> None:
    with network.entered("b"):
        listener = socket.create_server((network.addresses["b"], PORT))
    with network.entered("a"):
        client = socket.create_connection((network.addresses["b"], PORT), timeout=5)
    server, _ = listener.accept()
    with listener, client, server:
        client.sendall(b"1")
        assert server.recv(1) == b"1"
        network.cut("a", "b")
        client.sendall(b"2")
        server.settimeout(0.3)
        with pytest.raises(TimeoutError):
            server.recv(1)
        server.sendall(b"3")
        assert client.recv(1) == b"3"
        network.heal("a", "b")
        server.settimeout(10)
        assert server.recv(1) == b"2"


def test_the_networks_of_two_runs_do_not_meet(network: Network) -> None:
    with Network(new_run_name(), ["a", "b"]) as other:
        assert other.addresses["b"] == network.addresses["b"]
        with datagram_socket(other, "b") as listening:
            assert reaches(network, "a", "b")
            with pytest.raises(TimeoutError):
                listening.recv(1)


def test_the_process_of_a_removed_network_is_ended() -> None:
    with Network(new_run_name(), ["a"]) as network:
        program = [*network.command("a"), "sh", "-c", "echo inside; exec sleep 600"]
        inside = subprocess.Popen(program, stdout=subprocess.PIPE)
        assert inside.stdout is not None
        assert inside.stdout.readline() == b"inside\n"
    with inside:
        assert inside.wait(10) == -9
    assert not (NAMESPACES / network.namespace("a")).exists()
    assert not (NAMESPACES / network.namespace("switch")).exists()


def test_a_run_removes_what_a_killed_run_left(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    command = [sys.executable, "-c", ABANDON, str(disk)]
    left = subprocess.run(command, capture_output=True, text=True, timeout=60)
    run, pid = left.stdout.split()
    remove_abandoned()
    assert [path.name for path in NAMESPACES.iterdir() if path.name.startswith(run)] == []
    assert run not in MOUNTS.read_text()
    assert start_time_of(int(pid)) is None
