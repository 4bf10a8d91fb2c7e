"""The project as a whole: its public names, its documents, and that it runs anywhere."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import kbroker
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.properties import parse_properties
from kbroker.settings.tables.served import OWN_KEYS, SERVED_KEYS
from kbroker.settings.tables.table import BROKER_KEYS, DYNAMIC_ONLY_KEYS
from kbroker.settings.tables.topic_table import TOPIC_KEYS
from tests.conftest import LONG_FILES, SPARK_FILES, SPREAD_TESTS
from tests.untested_modules import REASONS

ROOT = Path(__file__).parents[1]
TEXT = {".py", ".md", ".toml", ".txt", ".properties", ".json", ".cfg", ""}


def tracked_files() -> list[Path]:
    run = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if run.returncode:
        pytest.skip("not a git work tree")
    return [ROOT / name for name in run.stdout.split("\0") if name]


@cache
def sources() -> list[tuple[str, ast.Module]]:
    """The modules of kbroker: path below the repository's root, and what is in it."""
    names = ((path.relative_to(ROOT).as_posix(), path) for path in tracked_files())
    return [
        (name, ast.parse(path.read_text()))
        for name, path in names
        if name.startswith("kbroker/") and path.suffix == ".py" and path.is_file()
    ]


def test_public_names() -> None:
    assert kbroker.__all__ == ["Broker", "BrokerConfig", "__version__"]
    assert dir(kbroker) == sorted(kbroker.__all__)
    assert kbroker.BrokerConfig is BrokerConfig
    assert kbroker.Broker.__name__ == "Broker"
    assert re.fullmatch(r"\d+\.\d+\.\d+", kbroker.__version__)
    with pytest.raises(AttributeError):
        kbroker.no_such_name  # noqa: B018


def test_import_is_light() -> None:
    code = "import sys, kbroker; print('asyncio' in sys.modules, 'kbroker.server' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False False\n"


def test_no_machine_paths() -> None:
    """Nothing in the repository knows where it was written."""
    machine = re.compile("/" + "(work/(main|shared)|home/[a-z]+|Users/[a-z]+|tmp/w)/")
    for path in tracked_files():
        if path.suffix in TEXT and path.is_file():
            text = path.read_text(errors="replace")
            found = machine.search(text)
            assert found is None, f"{path.relative_to(ROOT)}: {found and found[0]}"


def test_the_repository_is_small() -> None:
    assert sum(path.stat().st_size for path in tracked_files() if path.is_file()) < 20_000_000


def test_pins_cover_the_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = {
        re.split("==", line)[0].lower().replace("_", "-")
        for name in ("broker", "dev", "docs")
        for line in (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
        if "==" in line
    }
    wanted = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        wanted += extra
    for requirement in wanted:
        name = re.split(r"[<>=;\s\[]", requirement)[0].lower().replace("_", "-")
        assert name in pins, name
    for name in ("broker", "dev", "docs"):
        text = (ROOT / "requirements" / f"{name}.txt").read_text()
        assert "://" not in text
        assert " @ " not in text


def pins(name: str) -> dict[str, str]:
    """Version by canonical name, of the lines of a requirements file itself."""
    lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
    found = (re.match(r"([\w.-]+)==([\w.]+)", line) for line in lines)
    return {canonicalize_name(match[1]): match[2] for match in found if match}


def required(requirements: list[str]) -> Iterator[Requirement]:
    """Those of them that hold here, without the extras."""
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement


@pytest.mark.parametrize(
    ("names", "extras"),
    [(["broker"], []), (["broker", "dev"], ["spark", "dev"]), (["broker", "docs"], ["docs"])],
    ids=["broker", "dev", "docs"],
)
def test_pins_are_closed(names: list[str], extras: list[str]) -> None:
    """What a pinned package needs is pinned too, in a version that it takes; and in broker.txt is
    nothing else.
    """
    if "docs" in names:
        pytest.importorskip("material", reason="mkdocs-material is not installed: make docs")
    pinned = {name: version for file in names for name, version in pins(file).items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    waiting, reached = list(required(wanted)), set[str]()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        assert name in pinned, f"{name} is not pinned"
        assert requirement.specifier.contains(pinned[name]), (requirement, pinned[name])
        if name not in reached:
            reached.add(name)
            waiting += required(metadata.requires(name) or [])
    if names == ["broker"]:
        assert set(pinned) == reached


def test_the_site_and_the_tests_need_the_same_versions() -> None:
    """`make docs` installs into the environment that `make test` has made."""
    site, tests = pins("docs"), pins("broker") | pins("dev")
    shared = site.keys() & tests.keys()
    assert {name: site[name] for name in shared} == {name: tests[name] for name in shared}
    assert "click" in shared


def properties_blocks(path: Path) -> list[str]:
    return re.findall(r"```properties\n(.*?)```", path.read_text(), re.DOTALL)


@pytest.mark.parametrize("name", ["README.md", "docs/configuration.md"])
def test_examples_of_configuration_are_valid(name: str) -> None:
    for block in properties_blocks(ROOT / name):
        config = BrokerConfig.from_properties(parse_properties(block, source=name))
        assert config.warnings == ()


def test_configuration_document_has_every_key() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    documented = set(re.findall(r"^\| `([a-z0-9.]+)` \|", text, re.MULTILINE))
    topics = {
        name
        for name in TOPIC_KEYS
        if not name.startswith(("remote.", "local.", "internal.", "follower.", "leader."))
    }
    internal = {name for name in SERVED_KEYS if BROKER_KEYS[name].internal}
    assert documented >= (SERVED_KEYS - internal) | set(OWN_KEYS) | topics
    known = set(BROKER_KEYS) | set(DYNAMIC_ONLY_KEYS) | set(OWN_KEYS) | set(TOPIC_KEYS)
    assert documented <= known


def test_defaults_in_the_configuration_document() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    broker_part = text[text.index("## Broker") : text.index("## Topics")]
    for name, default in re.findall(r"^\| `([a-z0-9.]+)` \| ([^|]*) \|", broker_part, re.MULTILINE):
        key = BROKER_KEYS.get(name) or OWN_KEYS.get(name) or DYNAMIC_ONLY_KEYS[name]
        expected = key.default
        if name not in DYNAMIC_ONLY_KEYS:
            expected = BrokerConfig.from_properties({}).default_text(name)
        plain = default.partition(" (")[0]  # what it comes to may follow in brackets
        shown = {"none": None, "empty": ""}.get(plain, plain)
        assert shown == expected or name in ("node.id", "process.roles"), key.name


@pytest.mark.parametrize("name", ["README.md", "docs/cli.md"])
def test_commands_in_documents_exist(name: str) -> None:
    """Every `kbroker ...` line names a command and options that its help lists."""
    from typer.main import get_command

    from kbroker.cli.app import app

    text = (ROOT / name).read_text()
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    blocks = "\n".join(block for language, block in found if not language)
    lines = [
        part.strip()
        for line in blocks.splitlines()
        for part in line.split("|")
        if part.strip().startswith("kbroker ")
    ]
    assert lines
    for line in lines:
        words = shlex.split(line)[1:]
        command: Any = get_command(app)
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        assert not hasattr(command, "commands"), line
        known = {option for parameter in command.params for option in parameter.opts}
        options = {word.split("=")[0] for word in words if word.startswith("--")}
        assert options <= known, line


def test_python_in_the_readme_compiles() -> None:
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL):
        compile(block, "README.md", "exec")


def test_make_help_names_what_the_readme_uses() -> None:
    makefile = (ROOT / "Makefile").read_text()
    readme = (ROOT / "README.md").read_text()
    for target in re.findall(r"^make ([a-z-]+)", readme, re.MULTILINE):
        assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE), target
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_architecture_names_every_module_and_decision() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rooms = text.partition("## Rooms")[2].partition("## Arrows")[0]
    named = set(re.findall(r"[a-z_0-9]+", rooms))
    there = {path.stem for path in (ROOT / "kbroker").rglob("*.py")} - {"__init__", "__main__"}
    assert there - named == set()
    for decision in sorted((ROOT / "docs" / "adr").glob("*.md")):
        assert f"docs/adr/{decision.name}" in text
    assert len(text.splitlines()) < 200


def test_documents_and_docstrings_name_modules_that_exist() -> None:
    """A path in backticks that begins with a folder of the project, such as `log/state/roll` or
    `share/reader`, is the end of a path that exists; a name after a dot is not checked.
    """
    existing: set[str] = set()
    folders = {"kbroker", "tests", "benchmarks"}
    for path in tracked_files():
        relative = path.relative_to(ROOT)
        if relative.parts[0] not in ("kbroker", "tests", "benchmarks"):
            continue
        for place in (relative.with_suffix(""), *relative.parents[:-1]):
            existing.update("/".join(place.parts[i:]) for i in range(len(place.parts)))
        if relative.parts[1] != "data":
            folders.update(relative.parts[:-1])
    wrong = []
    for path in tracked_files():
        name = path.relative_to(ROOT).as_posix()
        is_source = name.startswith("kbroker/") and path.suffix == ".py"
        if not path.is_file() or not (is_source or path.suffix == ".md"):
            continue
        found = re.findall(r"`([a-z_0-9]+(?:/[a-z_0-9]+)+)(?:\.\w+)*`", path.read_text())
        wrong += [
            f"{name}: {place}"
            for place in found
            if place.split("/")[0] in folders and place not in existing
        ]
    assert wrong == []


def names_in(tree: ast.Module) -> set[str]:
    """What a module defines or imports at its top."""
    names = set()
    for node in tree.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.Assign(targets=targets):
                names.update(each.id for each in targets if isinstance(each, ast.Name))
            case ast.ImportFrom(names=imported):
                names.update(each.asname or each.name for each in imported)
    return names


def modules_by_their_ends() -> dict[tuple[str, ...], set[str]]:
    """The names in each module, by each end of the module's path; and each end of a package's."""
    found: dict[tuple[str, ...], set[str]] = {}
    for name, tree in sources():
        parts = tuple(part for part in Path(name).with_suffix("").parts if part != "__init__")
        for end in range(1, len(parts) + 1):
            for start in range(end):
                found.setdefault(parts[start:end], set())
        names = names_in(tree)
        for start in range(len(parts)):
            found[parts[start:]] |= names
    return found


NO_MODULES = {
    "consumer.topics": "a method of kafka-python's",
    "group.protocol": "a setting of Kafka's consumers",
    "kbroker.commit": "an option of a table",
    "security.protocol": "a setting of Kafka's clients",
    "server.properties": "a file",
}
"""Dotted names that look like those of modules, beside the keys of brokers, topics and groups."""


def test_dotted_names_are_those_of_modules_that_exist() -> None:
    """A name in backticks such as `log.state.roll` that begins with a package of kbroker is the end
    of a module's path, perhaps followed by a name in that module. Most dotted names in documents
    are settings, so there this holds for two parts that are both names of packages or modules.
    """
    existing = modules_by_their_ends()
    packages = {part for path in existing for part in path[:-1]}
    modules = {path[-1] for path in existing}
    keys = (ROOT / "docs" / "configuration-keys.md").read_text()
    wrong = []
    for path in tracked_files():
        place = path.relative_to(ROOT).as_posix()
        is_source = place.startswith(("kbroker/", "tests/", "benchmarks/")) and path.suffix == ".py"
        if not path.is_file() or not (is_source or path.suffix == ".md"):
            continue
        for name in re.findall(r"`([a-z_0-9]+(?:\.\w+)+)(?:\(\))?`", path.read_text()):
            parts = tuple(name.split("."))
            if parts[0] not in packages or f"`{name}`" in keys or name in NO_MODULES:
                continue
            if not is_source and (parts[1] not in modules or any(map(str.islower, parts[2:]))):
                continue
            known = max(end for end in range(1, len(parts) + 1) if parts[:end] in existing)
            if known < len(parts) and parts[known] not in existing[parts[:known]]:
                wrong.append(f"{place}: {name}")
    assert wrong == []


def modules_without_a_test() -> set[str]:
    """Paths relative to kbroker/ of the modules for which no test file is named."""
    found = set()
    for name, _ in sources():
        module = Path(name).relative_to("kbroker")
        test = ROOT / "tests" / module.with_name(f"test_{module.name}")
        if module.name != "__init__.py" and not test.is_file():
            found.add(module.as_posix())
    return found


def test_files_that_begin_early_exist() -> None:
    """A name is the last folder and the file, as tests/conftest.py compares them."""
    assert [name for name in LONG_FILES if not any((ROOT / "tests").rglob(name))] == []


def test_files_with_a_session_of_spark_go_to_one_worker() -> None:
    takes_session = re.compile(r"^ *def test_[^)]*\bspark: SparkSession", re.MULTILINE)
    files = (ROOT / "tests" / "spark").rglob("test_*.py")
    found = {path for path in files if takes_session.search(path.read_text())}
    assert {path.relative_to(ROOT).as_posix() for path in found} == SPARK_FILES


def test_tests_whose_parts_go_to_all_workers_have_parts() -> None:
    for file, _, name in (each.partition("::") for each in SPREAD_TESTS):
        parametrized = re.compile(rf"^@pytest.mark.parametrize\(.*\)\ndef {name}\(", re.MULTILINE)
        assert parametrized.search((ROOT / file).read_text()), (file, name)


def test_every_module_has_its_test() -> None:
    """kbroker/log/segment.py has tests/log/test_segment.py, or tests/untested_modules.py says which
    test file covers the module and why.
    """
    explained: dict[str, str] = {}
    untested = modules_without_a_test()
    for pattern, reason in REASONS.items():
        # a glob's `*` stays within one folder, `**/` is any number of them
        glob = re.compile(
            re.escape(pattern).replace(r"\*\*/", "(?:[^/]*/)*").replace(r"\*", "[^/]*")
        )
        matched = {name for name in untested if glob.fullmatch(name)}
        assert matched, f"{pattern}: no such module, or each of them has a test: remove the reason"
        for name in matched:
            assert name not in explained, f"{name}: explained by {explained[name]} and {pattern}"
            explained[name] = pattern
        assert (ROOT / "tests" / reason.covered_by).is_file(), (pattern, reason.covered_by)
        assert reason.covered_by.rpartition("/")[2].startswith("test_"), pattern
        assert reason.why, pattern
    missing = sorted(untested - set(explained))
    assert missing == [], "modules need a test of their name, or a reason"
