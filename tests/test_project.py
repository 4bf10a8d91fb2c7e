"""The project as a whole: its public names, its documents, and that it runs anywhere."""

from __future__ import annotations

import ast
import importlib
import logging
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from importlib import metadata
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import msgspec
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import kbroker
from kbroker.protocol.codecs.schema import Message, Struct
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
    takes_session = re.compile(r"^def test_[^)]*\bspark: SparkSession", re.MULTILINE)
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


MODULE_LINES = 500
FUNCTION_LINES = 70


def test_modules_and_functions_are_short() -> None:
    """Modules have 500 lines at most, functions 70 with their decorators not counted."""
    too_long = {}
    for name, tree in sources():
        lines = len((ROOT / name).read_text().splitlines())
        if lines > MODULE_LINES:
            too_long[name] = lines
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                length = node.end_lineno - node.lineno + 1
                if length > FUNCTION_LINES:
                    too_long[f"{name}: {node.name}"] = length
    assert too_long == {}, "split these"


HEADER_LAYOUTS = (
    "kbroker/protocol/batches/batch_header.py",
    "kbroker/protocol/batches/legacy_records.py",
)
BATCH_MODULES = {
    "kbroker.protocol.batches.batch_header",
    "kbroker.protocol.batches.legacy_records",
    "kbroker.protocol.batches.any_magic",
    "kbroker.protocol.batches.records",
}
FIELD_POSITIONS = {8, 12, 16, 17, 21, 22, 23, 27, 35, 43, 51, 53, 57, 61}
FIELD_ACCESS = {"unpack_from", "pack_into"}
PART_OF_HEADER = re.compile(r">(qii.*|qi[^i].*|\d*x.*|.+\dx.*)")
"""Struct formats that begin as a batch header does, or skip bytes to reach a field."""


def header_layout_spelled_in(tree: ast.Module) -> Iterator[ast.AST]:
    """Nodes that write a position, a struct format or an attribute bit of a batch header as a
    literal.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(slice=place):
                places: list[ast.AST] = [place]
            case ast.Call(func=ast.Attribute(attr=name), args=args) if name in FIELD_ACCESS:
                places = list(args[1:])
            case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr(), right=right):
                sides = {type(left): left, type(right): right}
                names = ast.unparse(left) + " " + ast.unparse(right)
                if isinstance(sides.get(ast.Constant), ast.Constant) and "attributes" in names:
                    yield node
                continue
            case ast.Constant(value=str(text)) if PART_OF_HEADER.fullmatch(text):
                yield node
                continue
            case _:
                continue
        numbers = (each for place in places for each in ast.walk(place))
        if any(isinstance(n, ast.Constant) and n.value in FIELD_POSITIONS for n in numbers):
            yield node


def test_one_module_knows_the_layout_of_a_batch_header() -> None:
    """`protocol/batches/batch_header` has the positions, struct formats and attribute bits, and
    `protocol/batches/legacy_records` those of messages; other modules import them by name.
    """
    for name, tree in sources():
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        if name in HEADER_LAYOUTS or not imported & BATCH_MODULES:
            continue
        for node in header_layout_spelled_in(tree):
            raise AssertionError(f"{name}:{getattr(node, 'lineno', 0)}: {ast.unparse(node)}")


@pytest.mark.parametrize(
    "text",
    [
        "batch[16]",
        "INT16.unpack_from(batch, at + 21)",
        "int.from_bytes(data[at + 8 : at + 12])",
        "header.attributes & 0x20",
        'Struct(">57xi")',
        'Struct(">qi4xb6xi8xq")',
    ],
)
def test_a_spelled_layout_is_found(text: str) -> None:
    assert list(header_layout_spelled_in(ast.parse(text)))


OWN_DESTRUCTORS = {"kbroker/log/storage/files.py": {"os.close", "contextlib.suppress"}}
"""Modules whose objects have a destructor, and all that it may call."""


def test_no_destructor_reaches_the_state_of_the_loop() -> None:
    """It runs in the thread that drops the last reference: a worker's, often enough. So what is
    charged, counted or registered is given back by a call, and nothing by `__del__`, a weak
    reference's callback or a finalizer.
    """
    found: dict[str, set[str]] = {}
    for name, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name == "__del__":
                calls = (call for call in ast.walk(node) if isinstance(call, ast.Call))
                found.setdefault(name, set()).update(ast.unparse(call.func) for call in calls)
            elif isinstance(node, ast.Call):
                called = ast.unparse(node.func).rpartition(".")[2]
                is_told = called == "finalize" or called.startswith("Weak")
                is_told |= called in ("ref", "proxy") and len(node.args) + len(node.keywords) > 1
                assert not is_told, f"{name}:{node.lineno}: {ast.unparse(node)}"
    assert found == OWN_DESTRUCTORS


TOUCHES_FILES = {
    "kbroker/log/storage/files.py": "the files of log directories",
    "kbroker/log/storage/directory_lock.py": "the lock of a log directory",
    "kbroker/log/storage/descriptor_reserve.py": "the null device, for spare descriptors",
    "kbroker/node/run.py": "the null device, for room in the table of descriptors",
    "kbroker/server/network/response_writer.py": "sendfile, on a duplicate of the socket",
    "kbroker/server/network/page_cache.py": "looks at the page cache, through open files",
    "kbroker/server/monitoring/process_metrics.py": "/proc",
    "kbroker/settings/properties.py": "the configuration file",
    "kbroker/client/security/key_files.py": "certificates, keys and tokens of a client",
    "kbroker/__main__.py": "standard streams that are closed",
}
"""Modules that may call the system for files, and for which. Those of `cli` (its user's files),
`testing` and `simulation` (temporary folders) may, too.
"""
FREE_TO_TOUCH_FILES = ("kbroker/cli/", "kbroker/testing/", "kbroker/simulation/")


FILE_CALL = re.compile(
    r"os\.(f?open|close|p?readv?|p?writev?|sendfile|f(data)?sync|f?truncate|[fl]?stat(vfs)?"
    r"|rename|replace|unlink|remove(dirs)?|rmdir|mkdir|makedirs|listdir|scandir|walk|(sym)?link"
    r"|f?chmod|utime|access|dup2?|fdopen|lseek|path\.(exists|is\w+|get\w+))"
    r"|open|.+\.(exists|is_file|is_dir|iterdir|r?glob|mkdir|rmdir|stat|chmod|read_text|read_bytes"
    r"|write_text|write_bytes|symlink_to|hardlink_to|samefile)"
)
"""What calls that touch the disk look like, those of `os` and of `pathlib.Path`."""


def test_only_one_module_touches_the_disk() -> None:
    """A simulated disk takes the place of `log.storage.files`: it sees all that is written."""
    for name, tree in sources():
        if name in TOUCHES_FILES or name.startswith(FREE_TO_TOUCH_FILES):
            continue
        for node in ast.walk(tree):
            where = f"{name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Import | ast.ImportFrom):
                modules = {each.name for each in node.names} | {getattr(node, "module", None)}
                assert not modules & {"shutil", "tempfile", "fcntl"}, where
            elif isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert not FILE_CALL.fullmatch(called), f"{where}: {called}"


MUTABLE_GLOBALS = {
    "kbroker.log.storage.descriptor_reserve.RESERVE": "descriptors are the process's; has a lock",
    "kbroker.server.handlers.records.produce._NO_RECORD_ERRORS": "empty, shared, only encoded",
}
"""Module globals that could be changed, and why they may be there."""

CACHED_FUNCTIONS = {
    "kbroker.coordinator.group.membership.metadata_hash._group_hash": "xxh3 of bytes",
    "kbroker.coordinator.group.membership.metadata_hash._topic_hash": "xxh3 of plain values",
    "kbroker.metadata.patterns._compiled": "an RE2 pattern of its text; RE2 objects are const",
    "kbroker.coordinator.runtime.key_hash._cached_hash": "Java's hash of a string",
    "kbroker.coordinator.runtime.key_hash._prefix_code": "Java's hash of a string",
    "kbroker.protocol.response_errors._with_codes": "fields of a class",
    "kbroker.protocol.codecs.schema._range": "a range of versions of its text",
    "kbroker.server.slicing.large_requests._lists_of": "names of fields of a class",
    "kbroker.protocol.apis.request_class": "a class of a number",
    "kbroker.protocol.apis.response_class": "a class of a number",
}
"""Functions of nothing but their immutable arguments. `functools` locks its caches."""


def module_name(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr | None]]:
    """Name and annotation of what a module assigns when it is imported."""
    blocks = [tree.body]
    for statement in (each for body in blocks for each in body):
        match statement:
            case ast.Assign():
                named = (name for target in statement.targets for name in ast.walk(target))
                yield from ((name.id, None) for name in named if isinstance(name, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
                yield name, statement.annotation
            case ast.If() | ast.For() | ast.With() | ast.While():
                blocks += [statement.body, getattr(statement, "orelse", [])]
            case ast.Try():
                handlers = (handler.body for handler in statement.handlers)
                blocks += [statement.body, statement.orelse, statement.finalbody, *handlers]


def is_read_only(annotation: ast.expr | None, module: ModuleType) -> bool:
    """Whether mypy refuses changes of a collection that is annotated so."""
    text = "" if annotation is None else ast.unparse(annotation)
    text = re.sub(r"^(Final|ClassVar)\[(.*)\]$", r"\2", text)
    kind = getattr(module, text, None)
    text = text if kind is None else str(kind).removeprefix("collections.abc.")
    return text.startswith(("Mapping[", "Sequence[", "AbstractSet["))


def is_immutable(value: object) -> bool:
    """Whether nothing of an object can be changed, or nothing that is meant to be: Python has no
    constant classes, functions and loggers; messages are read-only by rule.
    """
    match value:
        case tuple() | frozenset():
            return all(map(is_immutable, value))
        case Message() | Struct() | type() | ModuleType() | FunctionType() | logging.Logger():
            return True
    kind = type(value)
    if kind.__module__ in ("builtins", "typing", "types", "re", "_struct", "pathlib"):
        return not isinstance(value, list | dict | set | bytearray)
    if isinstance(value, Enum) or (is_dataclass(value) and kind.__dataclass_params__.frozen):
        return True
    if isinstance(value, msgspec.Struct):
        return value.__struct_config__.frozen
    return not any("__dict__" in vars(each) or vars(each).get("__slots__") for each in kind.__mro__)


def test_no_module_has_state() -> None:
    """Ten nodes may run in one process, on one thread or on ten: what they change belongs to one of
    them (`node.resources`).
    """
    found, cached = set(), set()
    for name, tree in sources():
        if name == "kbroker/__main__.py" or name.startswith("kbroker/cli/"):
            continue  # they run once in a process of their own
        module = importlib.import_module(module_name(name))
        for variable, annotation in assignments(tree):
            value = getattr(module, variable, None)
            if variable != "__all__" and not (
                is_immutable(value) or is_read_only(annotation, module)
            ):
                found.add(f"{module.__name__}.{variable}")
        for node in ast.walk(tree):
            assert not isinstance(node, ast.Global), f"{name}:{node.lineno}"
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                decorators = [ast.unparse(each) for each in node.decorator_list]
                if any(re.match(r"(functools\.)?(lru_)?cache\b", each) for each in decorators):
                    cached.add(f"{module.__name__}.{node.name}")
            elif isinstance(node, ast.ClassDef):
                for variable, annotation in assignments(ast.Module(node.body, [])):
                    value = getattr(module, node.name, None)
                    value = None if value is None else vars(value).get(variable)
                    is_slots = variable in ("__slots__", "__match_args__")
                    if isinstance(value, list | dict | set) and not is_slots:
                        assert is_read_only(annotation, module), f"{name}: {node.name}.{variable}"
    assert found == set(MUTABLE_GLOBALS)
    assert cached == set(CACHED_FUNCTIONS)


OF_THE_PROCESS = re.compile(
    r"gc\.(freeze|unfreeze|collect|enable|disable|set_threshold|callbacks\.\w+)|signal\.\w+"
    r"|.*\.add_signal_handler|sys\.set\w+|resource\.setrlimit|logging\.(basicConfig|disable)"
    r"|os\.(umask|chdir|putenv|nice|fork|_exit|dup2)|locale\.setlocale|random\.seed"
)


def test_only_the_command_changes_the_process() -> None:
    """A broker that is embedded in a user's process leaves alone what others of it depend on."""
    allowed = (
        "kbroker/cli/",
        "kbroker/__main__.py",
        "kbroker/node/run.py",
        "kbroker/node/loop/garbage.py",
        "kbroker/simulation/garbage.py",  # while a seed runs, in a process of its own
    )
    for name, tree in sources():
        if name.startswith(allowed):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert not OF_THE_PROCESS.fullmatch(called), f"{name}:{node.lineno}: {called}"
