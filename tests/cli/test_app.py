"""Help, mistakes, exit codes; what needs no broker."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from kbroker import __version__
from kbroker.cli.app import app
from kbroker.cli.serve import ServeOptions, parse_plain
from kbroker.testing import EmbeddedBroker

Cli = Callable[..., Any]

LOG_FOLDER = Path(__file__).parents[1] / "data" / "kafka-4.3.1" / "data" / "compact-0"
CLI_DOCUMENT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with its path of names, groups of commands too."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


TREE = dict(commands(get_command(app)))
COMMANDS = list(TREE)
LEAVES = [path for path, command in TREE.items() if not hasattr(command, "commands")]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help(cli: Cli, command: tuple[str, ...]) -> None:
    result = cli(*command, "--help")
    assert result.code == 0
    assert "Usage: kbroker" in result.out
    assert cli(*command, "-h").out == result.out


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_list_of_commands_cuts_no_summary(
    cli: Cli, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 80 columns. The dots after the jobs stand for more of them."""
    monkeypatch.setenv("COLUMNS", "80")
    _, _, listed = cli(*command, "--help").out.partition("\nCommands:\n")
    cut = [line for line in listed.splitlines() if line.endswith("...")]
    assert [line for line in cut if "archive, restore" not in line] == []


def test_the_commands_are_known() -> None:
    """The tests below are made of the tree of commands: that it is one is checked here."""
    assert {("serve",), ("topics", "create"), ("transactions", "abort")} < set(LEAVES)
    assert len(LEAVES) >= 19


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_examples(cli: Cli, command: tuple[str, ...]) -> None:
    """Of the command itself, with options that it has."""
    text = cli(*command, "--help").out
    examples = re.split(r"Examples?:|Start here:", text)[1:]
    lines = [
        part.strip()
        for line in "".join(examples).splitlines()
        for part in line.split("|")
        if part.strip().startswith(" ".join(["kbroker", *command]))
    ]
    assert lines
    for line in lines:
        words = shlex.split(line)[1:]
        leaf: Any = TREE[()]
        while words and words[0] in getattr(leaf, "commands", {}):
            leaf = leaf.commands[words.pop(0)]
        known = {option for parameter in leaf.params for option in parameter.opts}
        if leaf.context_settings.get("ignore_unknown_options"):
            continue  # they are the Spark pack's
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known, line


@pytest.mark.parametrize("command", LEAVES, ids=" ".join)
def test_every_option_is_explained(command: tuple[str, ...]) -> None:
    unexplained = [each.name for each in TREE[command].params if not getattr(each, "help", None)]
    assert unexplained == []


def test_nothing_at_all_helps(cli: Cli) -> None:
    result = cli()
    assert result.code == 0
    assert "Start here:" in result.out


def test_version(cli: Cli) -> None:
    assert cli("--version").out == f"kbroker {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("topics", "foo"), "No such command 'foo'. See: kbroker topics --help"),
        (("topics", "lits"), "Did you mean 'list'? See: kbroker topics --help"),
        (("configs", "describe", "x"), "Invalid value for 'kind': 'x' is not one of 'topic', "),
        (("topics",), "Missing command. See: kbroker topics --help"),
        (("consume", "t", "--nope"), "kbroker consume: No such option: --nope"),
        (("consume", "t", "-g", "g", "-p", "1"), "a group decides on partitions and offsets"),
        (("produce", "t", "-H", "x"), "write it as name=value"),
        (("produce", "t", "-z", "rar"), "'rar' is not one of"),
        (("topics", "list", "-b", "a:b:c"), "'a:b:c' is no broker address: write host:port. See:"),
        (("topics", "list", "-b", ""), "no broker address given"),
        (("consume", "t", "-F", "%z"), "Invalid value for --format: %z is unknown; there are %t"),
        (("consume", "t", "-F", "100%"), "Invalid value for --format: it ends in a lone %"),
        (("groups", "reset-offsets", "g", "-t", "t:x", "--to-latest"), "partitions are numbers"),
        (("topics", "create", "t", "-p", "99999999999"), "'--partitions'"),
        (("topics", "create", "t", "-r", "40000"), "'--replication-factor'"),
        (("transactions", "list", "--longer-than", "9" * 20), "'--longer-than'"),
        (("transactions", "abort", "t", "0", "--producer-epoch", "99999"), "'--producer-epoch'"),
        (("topics", "create", ""), "a name is empty. See: kbroker topics create --help"),
        (("consume", ""), "a name is empty"),
        (("consume", "t", "-g", ""), "a name is empty"),
        (("produce", ""), "a name is empty"),
        (("groups", "delete", "a", ""), "a name is empty"),
        (("groups", "reset-offsets", "g"), "say one of --to-earliest, "),
        (("produce", "t", "-k", ""), "Invalid value for --key-separator: it is empty"),
        (("consume", "t", "--timeout", "-1"), "'--timeout'"),
        (("dump-log",), "Missing argument 'paths'. See: kbroker dump-log --help"),
    ],
)
def test_usage_mistakes(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    result = cli(*arguments)
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("topics", "list", "-b", "localhost:1"), "kbroker: no broker answers: localhost:1: "),
        (("produce", "t", "-f", "/no/such/file"), "kbroker: /no/such/file: No such file"),
        (
            ("groups", "reset-offsets", "g", "--from-file", "/no/such/file"),
            "kbroker: /no/such/file: No such file",
        ),
        (
            ("groups", "reset-offsets", "g", "--from-file", sys.executable),
            f"kbroker: {sys.executable}, line ",
        ),
        (("format", "/no/such/file"), "kbroker: /no/such/file: no such file"),
        (("serve", "/no/such/file"), "kbroker: /no/such/file: no such file"),
        (("serve", "-o", "num.partitions=0"), "kbroker: --override num.partitions=0: Value must"),
    ],
)
def test_mistakes_are_one_line(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    result = cli(*arguments)
    assert result.code == 1
    assert result.err.startswith(message)
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ([], ServeOptions()),
        (["a.properties"], ServeOptions("a.properties")),
        (["-o", "a=1", "x", "--override", "b=2"], ServeOptions("x", ("a=1", "b=2"))),
        (["--override=a=1"], ServeOptions(None, ("a=1",))),
        (["-v"], ServeOptions(verbose=True)),
        (["--log-format", "json"], ServeOptions(logs_json=True)),
        (["--log-format=json", "x"], ServeOptions("x", logs_json=True)),
        (["--log-format=text"], ServeOptions()),
        (["--log-format", "xml"], None),
        (["--log-format="], None),
        (["--log-format"], None),
        (["--help"], None),
        (["-o"], None),
        (["a", "b"], None),
        (["--nope"], None),
    ],
)
def test_plain_arguments_of_serve(arguments: list[str], options: ServeOptions | None) -> None:
    assert parse_plain(arguments) == options


def test_serve_does_without_the_command_line_libraries() -> None:
    """What decides how quickly a broker starts; the bad key ends it before it listens."""
    code = (
        "import sys; sys.argv[1:] = ['serve', '-o', 'num.partitions=0']\n"
        "from kbroker.__main__ import main\n"
        "code = main()\n"
        "heavy = {'typer', 'rich', 'click', 'javaproperties', 'difflib', 'json'} & set(sys.modules)"
        "\nprint(code, sorted(heavy))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "1 []\n"


def test_what_a_fresh_broker_does_not_need_is_not_imported_at_its_start(tmp_path: Path) -> None:
    """Handlers, coordinators and share services: a tenth of an idle broker's memory."""
    code = (
        "import asyncio, sys\n"
        "from kbroker.node.node import Broker\n"
        "from kbroker.settings.broker import BrokerConfig\n"
        "async def run():\n"
        "    properties = {'log.dirs': sys.argv[1], 'listeners': 'PLAINTEXT://127.0.0.1:0'}\n"
        "    broker = Broker(BrokerConfig.from_properties(properties))\n"
        "    await broker.start()\n"
        "    await broker.stop()\n"
        "asyncio.run(run())\n"
        "late = ['server.handlers', 'coordinator.group', 'coordinator.runtime', 'share',\n"
        "    'log.cleaner.round', 'controller.scram_credentials', 'protocol.messages.groups']\n"
        "print([each for each in late for name in sys.modules\n"
        "    if name.startswith(f'kbroker.{each}.') or name == f'kbroker.{each}'])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "logs")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == "['server.handlers']\n"


def test_the_types_of_groups_are_imported_with_the_first_shard() -> None:
    code = (
        "import sys, kbroker.node.run\n"
        "from kbroker.server.handlers import all_handlers\n"
        "all_handlers()\n"
        "types = ['classic', 'consumer', 'share', 'streams']\n"
        "print([e for e in types if f'kbroker.coordinator.group.{e}.group' in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "enabled"), [([], False), (["a", "b"], True)], ids=["serve", "mistake"]
)
def test_the_collector_is_off_while_serve_imports(arguments: list[str], enabled: bool) -> None:
    code = (
        f"import gc, sys; sys.argv[1:] = ['serve', *{arguments}]\n"
        "from kbroker import __main__\n"
        "import kbroker.cli.app, kbroker.cli.serve\n"
        "def entered(*options): print(gc.isenabled()); return 0\n"
        "kbroker.cli.app.run = kbroker.cli.serve.run_serve = entered\n"
        "__main__.main()"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == f"{enabled}\n"


def test_format(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    override = f"log.dirs={folder}"
    made = cli("format", "-o", override, "--cluster-id", "MkU3OEVBNTcwNTJENDM2Qk")
    assert (made.code, len(made.lines)) == (0, 1), made.err
    assert "cluster.id=MkU3OEVBNTcwNTJENDM2Qk" in (folder / "meta.properties").read_text()
    again = cli("format", "-o", override)
    assert again.code == 1
    assert "already formatted" in again.err
    assert cli("format", "-o", override, "-g", "-t", "MkU3OEVBNTcwNTJENDM2Qk").code == 0


def test_format_of_one_of_several_controllers(cli: Cli, tmp_path: Path) -> None:
    """Its start does not format an empty directory: one line says what does."""
    folder = tmp_path / "data"
    settings = {
        "log.dirs": folder,
        "process.roles": "controller",
        "listeners": "CONTROLLER://127.0.0.1:0",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
    }
    overrides = [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]
    command = [sys.executable, "-m", "kbroker", "serve", *overrides]
    started = subprocess.run(command, capture_output=True, text=True, check=False)
    assert started.returncode == 1
    assert (
        "run `kbroker format CONFIGURATION --cluster-id ID --no-initial-controllers` (in"
        in started.stderr.splitlines()[-1]
    )
    formatting = ("format", *overrides, "-t", "MkU3OEVBNTcwNTJENDM2Qk")
    line = cli(*formatting).err
    assert line.startswith("kbroker: Because controller.quorum.voters is not set")
    assert line.count("\n") == 1
    both = cli(*formatting, "--standalone", "-N")
    assert both.code == 2
    assert "give only one of --standalone" in both.err
    made = cli(*formatting, "--standalone", "-r", "4.2", "-f", "streams.version=0")
    assert (made.code, len(made.lines)) == (0, 1), made.err
    assert made.out.endswith("with metadata.version 4.2-IV1.\n")


def in_a_shell(line: str) -> tuple[int, str]:
    """Exit code and standard error of a command that a shell runs."""
    environment = {**os.environ, "K": f"{sys.executable} -m kbroker"}
    run = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, check=False, env=environment
    )
    return run.returncode, run.stderr


@pytest.mark.parametrize("stream", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_a_standard_stream_that_is_closed(stream: str) -> None:
    assert in_a_shell(f"$K --help {stream}") == (0, "")
    assert in_a_shell(f"$K dump-log {LOG_FOLDER} {stream}") == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
@pytest.mark.parametrize("command", ["--version", "topics create --help"])
def test_output_that_cannot_be_written_is_one_line(command: str) -> None:
    assert in_a_shell(f"$K {command} > /dev/full") == (1, "kbroker: No space left on device\n")


def exit_codes() -> list[tuple[int, str]]:
    """The rows of the table of exit codes: code and example."""
    rows = re.findall(r"^\| (\d+) \| [^|]+ \| `([^`]+)` \|", CLI_DOCUMENT, re.MULTILINE)
    return [(int(code), example) for code, example in rows]


def test_the_table_of_exit_codes_is_whole() -> None:
    assert {code for code, _ in exit_codes()} == {0, 1, 2, 130}


@pytest.mark.parametrize(("code", "example"), [row for row in exit_codes() if row[0] != 130])
def test_exit_codes_are_as_documented(cli: Cli, code: int, example: str) -> None:
    _, *arguments = shlex.split(example)
    result = cli(*arguments)
    assert result.code == code
    assert result.err.count("\n") == (1 if code else 0)


def test_ctrl_c_is_130(kafka_broker: EmbeddedBroker, kafka_topic: str) -> None:
    """Of a command that has begun its work: it has printed a record."""
    kafka_broker.create_topic(f"{kafka_topic}-c")
    command = [sys.executable, "-m", "kbroker", "produce", f"{kafka_topic}-c"]
    environment = {**os.environ, "KBROKER_BOOTSTRAP": kafka_broker.bootstrap_servers}
    subprocess.run(command, input=b"x\n", env=environment, check=True, capture_output=True)
    command = [sys.executable, "-m", "kbroker", "consume", f"{kafka_topic}-c", "-e"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        # a shell starts background jobs, perhaps this run, with SIGINT ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            assert process.stdout.readline() == b"x\n"
            process.send_signal(signal.SIGINT)
            assert (process.wait(20), process.stderr.read()) == (130, b"")
        finally:
            process.kill()


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m kbroker dump-log {LOG_FOLDER} 2>&1 | true"
    shell = ["bash", "-c", f"{command}; echo ${{PIPESTATUS[0]}}"]
    run = subprocess.run(shell, capture_output=True, text=True, check=True)
    assert run.stdout == "0\n"
