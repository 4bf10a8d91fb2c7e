"""Rules for the sources of kbroker, checked on their syntax trees: short modules, one place for a
layout, no module-level state, one module that touches the disk, one meaning for a name, and plain
words.
"""

from __future__ import annotations

import ast
import importlib
import io
import logging
import re
import tokenize
from collections.abc import Iterator
from dataclasses import is_dataclass
from enum import Enum
from types import FunctionType, ModuleType

import msgspec
import pytest

from kbroker.protocol.codecs.schema import Message, Struct
from tests.test_project import ROOT, sources, tracked_files

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
PART_OF_HEADER = re.compile(r">(qii.*|qi[^i].*|ii.*|\d*x.*|.+\dx.*)")
"""Struct formats that begin as a batch header does, at its base offset or its length, or skip bytes
to reach a field.
"""


def header_layout_spelled_in(tree: ast.Module) -> Iterator[ast.AST]:
    """Nodes that write a position, a struct format or an attribute bit of a batch header as a
    literal, or read or write a field of it with another struct than the header's.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(slice=place):
                places: list[ast.AST] = [place]
            case ast.Call(func=ast.Attribute(attr=name), args=args) if name in FIELD_ACCESS:
                if any("_POSITION" in ast.unparse(each) for each in args):
                    yield node  # a struct of its own, applied where that field is
                    continue
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
        "INT32.pack_into(batch, LEADER_EPOCH_POSITION, epoch)",
        "LENGTH_AND_EPOCH.unpack_from(view, at + LENGTH_POSITION)",
        'Struct(">ii")',
        'Struct(">57xi")',
        'Struct(">qi4xb6xi8xq")',
    ],
)
def test_a_spelled_layout_is_found(text: str) -> None:
    assert list(header_layout_spelled_in(ast.parse(text)))


USING_ROOMS = ("kbroker", "spark_jobs", "benchmarks", "scripts")
DECORATORS = r"abstractmethod|(cached_)?property|(class|static)method|.*cache|.*setter"
"""Of functions that are used by their name; others register what they decorate."""

UNUSED_IN_KBROKER = {
    "list_commands": "typer calls it",
    "format_commands": "typer calls it",
    "pause_writing": "asyncio calls it",
    "resume_writing": "asyncio calls it",
    "can_write_eof": "a method of asyncio.Transport",
    "is_running": "a node of the simulation, for its scripts",
    "wait_for_exit": "a broker's process in tests of the project and of users",
    "largest_request": "the bound that the memory pool promises, for its tests",
    "watcher_count": "tests of Fetch look for watchers that were left behind",
}
"""Public functions and methods that no code but tests uses, and why they stay."""


def test_no_function_is_for_tests_only() -> None:
    """A name counts as used where it is loaded, as a variable, an attribute or in a string. Methods
    that share their name with a used one are not found.
    """
    defined: dict[str, str] = {}
    used: set[str] = set()
    paths = [p for room in USING_ROOMS for p in sorted((ROOT / room).rglob("*.py"))]
    for path in paths:
        is_kbroker = path.is_relative_to(ROOT / "kbroker")
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
                    used.add(name)
                case ast.Constant(value=str(text)):
                    used.update(re.split(r"[.:]", text))
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if is_kbroker:
                    is_registered = any(
                        not re.fullmatch(DECORATORS, ast.unparse(each))
                        for each in node.decorator_list
                    )
                    if not (name.startswith("_") or is_registered):
                        defined[name] = f"{path.relative_to(ROOT)}:{node.lineno}: {name}"
    unused = {name: where for name, where in defined.items() if name not in used}
    assert [where for name, where in unused.items() if name not in UNUSED_IN_KBROKER] == []
    assert unused.keys() == UNUSED_IN_KBROKER.keys(), "these are used again, or are gone"


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
    r"|.*\.setLevel|logging\.Logger\.\w+"
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


VAGUE = re.compile(r"\b(whoever|whomever|(any|every|no|some)body|anyone|someone|no one)\b", re.I)
"""Words that leave open which part of the system acts; a sentence names the part instead."""
PROSE = ("kbroker/", "spark_jobs/", "scripts/", "benchmarks/", "tests/")


def prose(text: str) -> Iterator[tuple[int, str]]:
    """The comments and docstrings of a module, with their lines."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(docstring))):
                yield node.lineno, docstring


def test_prose_says_who_acts() -> None:
    """See `VAGUE`; code in backticks may have a name such as `nobody`."""
    found = []
    for path in tracked_files():
        place = path.relative_to(ROOT).as_posix()
        if path.suffix != ".py" or not place.startswith(PROSE) or not path.is_file():
            continue
        text = path.read_text()
        if not VAGUE.search(text):
            continue
        for line, words in prose(text):
            if vague := VAGUE.search(re.sub(r"`[^`]*`", "", words)):
                found.append(f"{place}:{line}: {vague[0]}")
    assert found == []


def test_vague_words_are_found_in_comments_and_docstrings_only() -> None:
    module = 'def call():\n    """Whoever asks."""\n    return "nobody"  # somebody\n'
    assert [(line, bool(VAGUE.search(words))) for line, words in prose(module)] == [
        (3, True),
        (2, True),
    ]


SHARED_NAMES = {
    # A port, and what stands behind it
    "CoordinatorLog": "a port, and the partition log that implements it",
    "MetadataLog": "a port, and the log of a node that implements it",
    # Both words are Kafka's, in two rooms that do not meet
    "Assignment": "of partitions to a member of a group; of a replica to a log directory",
    "Candidate": "a state of the quorum; a segment that may have a timestamp",
    "Effect": "the union of a core's effects: each of the cores has its own",
    "Header": "of a request or response; of a record",
    "Message": "of the protocol; of a record batch before magic 2",
    "Policies": "per API; the topic and configuration policies of the controller",
    "Position": "where a follower fetches from; where a consumer starts",
    "Producer": "the client's; the id and epoch of a transactional one",
    "ScramMechanism": "the broker's, which has no secrets; the client's",
    "Synonym": "of a setting; the part of the response that says so",
    "Transaction": "the coordinator's; the client's; in a history of operations",
    # The model that checks the broker, named as what it models
    "History": "of the voters; of what clients did",
    "Listener": "of a broker; of the simulated network",
    "Member": "of a classic group; a simulated consumer",
    "Replicas": "of a partition; of one that a fault is aimed at",
    "ReplicaLog": "a port; a replica's log in a history",
    "StoredRecord": "as the scan of a batch finds it; in a history",
    "Workload": "of a streams group's processes; of a simulated cluster",
    # Words of one command line or one module beside one of the broker
    "Reader": "of a client's property; a simulated consumer's",
    # Local aliases that shorten signatures
    "Buffer": "in codecs and batches, which do not import each other",
    "Opened": "what loads one log; what a share partition is, once it is open",
    "Part": "of a frame; of the share state's request",
}
"""Names of two classes or type aliases of kbroker, and what they stand for. An entry goes when one
of them is renamed; none is to be added for names that one reader meets in one module.
"""


def classes_and_aliases(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Public names that stand for a type at the top of a module, and what they are an alias of if
    that is a part of a message, else "". No options of a command, which are `Annotated`, and no
    alias that keeps the name of the part.
    """
    top = list(tree.body)
    for node in tree.body:
        if isinstance(node, ast.If):  # TYPE_CHECKING
            top += node.body
    for node in top:
        part = ""
        match node:
            case ast.ClassDef(name=name):
                pass
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                is_type = isinstance(value, ast.BinOp | ast.Subscript | ast.Attribute)
                text = ast.unparse(value)
                if not is_type or text.startswith("Annotated[") or text.endswith(f".{name}"):
                    continue
                part = text if isinstance(value, ast.Attribute) else ""
            case _:
                continue
        if re.match("[A-Z]+[a-z]", name):
            yield name, part


def test_a_name_means_one_thing() -> None:
    """`SHARED_NAMES` has the exceptions. The classes of messages have the names of their schema."""
    homes: dict[str, set[str]] = {}
    for module, tree in sources():
        if not module.startswith("kbroker/protocol/messages/"):
            for name, part in classes_and_aliases(tree):
                homes.setdefault(name, set()).add(part or module)
    shared = {name: sorted(meanings) for name, meanings in homes.items() if len(meanings) > 1}
    assert {name: shared[name] for name in shared.keys() - SHARED_NAMES} == {}, "rename one"
    assert SHARED_NAMES.keys() - shared == set(), "these have one meaning now"


def test_classes_and_aliases_are_found() -> None:
    module = """
class Waiter: ...
Steps = Generator[None, None, R]
Part = bytes | memoryview
Replica = Response.ReplicaState
ReplicaState = Response.ReplicaState
Topic = Annotated[str, Option()]
R = TypeVar("R")
LIMIT = LIMITS[0]
class _Hidden: ...
if TYPE_CHECKING:
    class Settings(Protocol): ...
"""
    found = dict(classes_and_aliases(ast.parse(module)))
    assert found.pop("Replica") == "Response.ReplicaState"
    assert found == dict.fromkeys(("Waiter", "Steps", "Part", "Settings"), "")
