"""`kbroker profile`, and commands that take a profile, against a broker."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbroker.testing import EmbeddedBroker
from tests.cli.test_completion import completed

Cli = Callable[..., Any]


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "profiles.json"
    monkeypatch.setenv("KBROKER_PROFILES_FILE", str(path))
    return path


@pytest.fixture
def both(cli: Cli, kafka_broker: EmbeddedBroker) -> Cli:
    """The command line with a profile of a broker, which is the current one, and of none."""
    assert cli("profile", "create", "nowhere", "-b", "localhost:1").code == 0
    assert cli("profile", "create", "here", "-b", kafka_broker.bootstrap_servers).code == 0
    return cli


def test_create_list_show_use_set_delete(cli: Cli, tmp_path: Path) -> None:
    assert cli("profile", "list").out == ""
    made = cli("profile", "create", "test", "-b", "localhost:9092", "-X", "linger.ms=20")
    assert (made.code, made.out, made.err) == (0, "", "made profile test, the current one\n")
    config = tmp_path / "prod.properties"
    config.write_text("request.timeout.ms=9000\n")
    addresses = "kafka-1:9092,kafka-2"
    prod = ("profile", "create", "prod", "-b", addresses, "--command-config", str(config))
    assert json.loads(cli(*prod, "--json").out) == {
        "profile": "prod",
        "current": True,
        "bootstrap_servers": ["kafka-1:9092", "kafka-2"],
    }
    assert cli("profile", "use", "test").err == "using profile test, the current one\n"
    assert cli("profile", "list").lines == [
        "prod\tfalse\tkafka-1:9092,kafka-2",
        "test\ttrue\tlocalhost:9092",
    ]
    assert cli("profile", "show").lines == [
        "test\tbootstrap.servers\tlocalhost:9092",
        "test\tlinger.ms\t20",
    ]
    changed = cli("profile", "set", "prod", "-X", "acks=1", "--unset", "command-config")
    assert changed.err == "changed profile prod\n"
    assert list(map(json.loads, cli("profile", "show", "prod", "--json").lines)) == [
        {"profile": "prod", "key": "acks", "value": "1"},
        {"profile": "prod", "key": "bootstrap.servers", "value": addresses},
    ]
    deleted = cli("profile", "delete", "test", "prod")
    assert deleted.err == "deleted profile test, the current one\ndeleted profile prod\n"
    assert cli("profile", "list").out == ""
    gone = cli("profile", "show")
    assert (gone.code, gone.err.count("\n")) == (1, 1)


def test_a_file_is_named_by_its_whole_path_and_not_shown(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("client.properties").write_text("client.id=not-to-be-shown\n")
    assert cli("profile", "create", "a", "--command-config", "client.properties").code == 0
    shown = cli("profile", "show", "a")
    assert shown.lines == [f"a\tcommand-config\t{tmp_path / 'client.properties'}"]
    assert "not-to-be-shown" not in path.read_text()


def test_a_secret_that_was_written_by_hand_is_not_shown(cli: Cli, path: Path) -> None:
    properties = {"sasl.password": "hush", "client.id": "me"}
    path.write_text(json.dumps({"profiles": {"a": {"properties": properties}}}))
    for json_option in ((), ("--json",)):
        shown = cli("profile", "show", "a", *json_option)
        assert shown.code == 0
        assert "hush" not in shown.out + shown.err
        assert "[hidden]" in shown.out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("create", "a", "-X", "ssl.key.password=x"), 2, "name that with --command-config"),
        (("create", "a", "-X", "sasl.jaas.config=x"), 2, "name that with --command-config"),
        (("create", "a", "-X", "acks=7"), 1, "acks=7: write all, -1, 1, 0"),
        (("create", "a", "-X", "bootstrap.servers=a:b"), 2, "is no broker address"),
        (("create", "a", "-b", "a:b:c"), 2, "'a:b:c' is no broker address"),
        (("create", "a", "--command-config", "/no/such"), 1, "/no/such: no such file"),
        (("create", "test"), 1, "there is a profile 'test'"),
        (("create", ""), 2, "a name is empty"),
        (("set", "test"), 2, "give --bootstrap-server, --command-config, -X or --unset"),
        (("set", "test", "--unset", "acks"), 1, "has no property 'acks'"),
        (("set", "nope", "-X", "acks=1"), 1, "has no profile 'nope': there are test"),
        (("use", "nope"), 1, "has no profile 'nope'"),
        (("delete", "test", "nope"), 1, "has no profile 'nope'"),
        (("show", "nope"), 1, "has no profile 'nope'"),
    ],
)
def test_mistakes_change_nothing(
    cli: Cli, path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    assert cli("profile", "create", "test", "-b", "localhost:1").code == 0
    before = path.read_bytes()
    result = cli("profile", *arguments)
    assert (result.code, result.err.count("\n")) == (code, 1)
    assert message in result.err
    assert path.read_bytes() == before


def test_commands_take_the_current_profile(
    both: Cli, kafka_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert both("topics", "list").code == 0
    assert both("topics", "list", "--profile", "nowhere").code == 1
    assert both("profile", "use", "nowhere").code == 0
    assert "localhost:1" in both("topics", "list").err
    here = kafka_broker.bootstrap_servers
    assert both("topics", "list", "--bootstrap-server", here).code == 0
    assert both("topics", "list", "-X", f"bootstrap.servers={here}").code == 0
    assert both("topics", "list", "--profile", "here").code == 0
    monkeypatch.setenv("KBROKER_PROFILE", "here")
    assert both("topics", "list").code == 0
    assert both("topics", "list", "--profile", "nowhere").code == 1
    monkeypatch.setenv("KBROKER_PROFILE", "nowhere")
    monkeypatch.setenv("KBROKER_BOOTSTRAP", here)
    assert both("topics", "list").code == 0
    unknown = both("topics", "list", "--profile", "nope")
    assert (unknown.code, unknown.err.count("\n")) == (1, 1)
    assert "there are here, nowhere" in unknown.err


def test_properties_of_a_profile_act(both: Cli, kafka_broker: EmbeddedBroker) -> None:
    """A note names those that have no effect, as for --command-config."""
    assert both("profile", "set", "here", "-X", "retries=5").code == 0
    assert both("topics", "list").err == "these properties have no effect here: retries\n"
    plain = both("topics", "list", "-b", kafka_broker.bootstrap_servers)
    assert plain.err == ""


def test_a_damaged_file_is_one_line(cli: Cli, path: Path, kafka_broker: EmbeddedBroker) -> None:
    path.write_text("{")
    result = cli("topics", "list")
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert str(path) in result.err
    assert cli("topics", "list", "-b", kafka_broker.bootstrap_servers).code == 0


def test_names_are_completed(both: Cli) -> None:
    assert completed("kbroker profile use n") == ["nowhere"]
    assert completed("kbroker topics list --profile h") == ["here"]


def test_delete_asks_on_a_terminal(both: Cli, path: Path) -> None:
    def answered(answer: bytes) -> int:
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "kbroker", "profile", "delete", "here"]
        process = subprocess.Popen(command, stdin=theirs, stderr=theirs, stdout=theirs)
        os.close(theirs)
        os.write(ours, answer)
        seen = b""
        try:
            while chunk := os.read(ours, 65536):
                seen += chunk
        except OSError:  # the terminal's other end is closed
            pass
        os.close(ours)
        assert f"delete here from {path}?".encode() in seen.replace(b"\r\n", b"")
        return process.wait(60)

    assert answered(b"n\n") == 1
    assert both("profile", "list").lines != []
    assert answered(b"y\n") == 0
    assert [line.split("\t")[0] for line in both("profile", "list").lines] == ["nowhere"]
