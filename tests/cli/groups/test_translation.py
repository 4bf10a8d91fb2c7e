"""`kbroker groups translate` is a job of the Spark pack."""

from __future__ import annotations

import pytest

from kbroker.cli.groups import translation
from kbroker.testing import EmbeddedBroker
from tests.cli.conftest import Cli


def test_a_group_without_offsets(cli: Cli, kafka_broker: EmbeddedBroker) -> None:
    result = cli("groups", "translate", "absent", "-b", kafka_broker.bootstrap_servers)
    assert (result.code, result.out) == (1, "")
    assert result.err == "kbroker groups: group absent has committed no offsets\n"


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ((), []),
        (
            ("--to-bootstrap-servers", "b:2", "--query-name", "q", "--execute"),
            ["--toBootstrapServers", "b:2", "--queryName", "q", "--execute"],
        ),
        (("--to-group", "h", "--json"), ["--toGroup", "h", "--json"]),
    ],
)
def test_options_are_passed_on(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], passed: list[str]
) -> None:
    ran: list[tuple[list[str], str]] = []

    def run_pack(arguments: list[str], program: str) -> int:
        ran.append((arguments, program))
        return 2

    monkeypatch.setattr(translation, "run_pack", run_pack)
    assert cli("groups", "translate", "g", "-b", "a:1", *given).code == 2
    expected = ["translate", "--group", "g", "--bootstrap-servers", "a:1", *passed]
    assert ran == [(expected, "kbroker groups")]
