"""What a module of the tests uses of other projects: of the functions and classes that it imports
from other modules of `tests`, and of the programs there that it starts, and of these in turn.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]

WHOLE_MODULE: Final = ""
"""In the place of a name that is looked at."""


def marks_of(path: Path) -> set[str]:
    """Full names of the modules, functions and classes that are imported, and `which NAME` for each
    program that is looked for with `shutil.which`.
    """
    waiting, marks = [(path, WHOLE_MODULE)], set[str]()
    seen = set(waiting)
    while waiting:
        module, name = waiting.pop()
        own, used = marks_and_uses(module, name)
        marks |= own
        waiting += used - seen
        seen |= used
    return marks


@cache
def marks_and_uses(path: Path, name: str) -> tuple[frozenset[str], frozenset[tuple[Path, str]]]:
    """The marks in what defines a name of a module, and the names that it uses, with their
    modules.
    """
    marks, used = set[str](), set[tuple[Path, str]]()
    for node in nodes_of(path, name):
        marks.update(marks_in(node))
        used.update(used_in(node, path))
    return frozenset(marks), frozenset(used)


def nodes_of(path: Path, name: str) -> list[ast.AST]:
    """What defines a name of a module; the whole module for WHOLE_MODULE."""
    if name == WHOLE_MODULE:
        return [tree_of(path)]
    return list(definitions(path).get(name, ()))


@cache
def tree_of(path: Path) -> ast.Module:
    """The module's syntax tree."""
    return ast.parse(path.read_text())


@cache
def definitions(path: Path) -> Mapping[str, list[ast.AST]]:
    """The statements of a module that define each of its names."""
    found: dict[str, list[ast.AST]] = {}
    for statement in tree_of(path).body:
        for name in defined_by(statement):
            found.setdefault(name, []).append(statement)
    return found


def defined_by(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement defines."""
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.Assign() | ast.AnnAssign():
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    yield node.id
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            for each in names:
                yield each.asname or each.name.partition(".")[0]


def marks_in(node: ast.AST) -> Iterator[str]:
    """The marks in a piece of code itself."""
    for each in ast.walk(node):
        match each:
            case ast.Import(names=names):
                for imported in names:
                    yield from prefixes(imported.name)
            case ast.ImportFrom(module=str(module), names=names):
                yield from prefixes(module)
                yield from (f"{module}.{imported.name}" for imported in names)
            case ast.Call(
                func=ast.Attribute(attr="which"), args=[ast.Constant(value=str(program))]
            ):
                yield f"which {program}"


def used_in(node: ast.AST, path: Path) -> Iterator[tuple[Path, str]]:
    """Names that a piece of code uses, with their modules: of its own and of others of `tests`."""
    own = {} if isinstance(node, ast.Module) else definitions(path)
    for each in ast.walk(node):
        match each:
            case ast.Name(id=name) if name in own:
                yield path, name
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("tests"):
                for imported in names:
                    inner = module_at(f"{module}.{imported.name}")
                    place = inner or module_at(module)
                    if place is not None:
                        yield place, WHOLE_MODULE if inner else imported.name
            case ast.Constant(value=str(text)):
                place = program_at(text, path)
                if place is not None:
                    yield place, WHOLE_MODULE


def module_at(name: str) -> Path | None:
    """The file of a module of `tests`, if there is one."""
    path = ROOT / f"{name.replace('.', '/')}.py"
    return path if path.is_file() else None


def program_at(text: str, path: Path) -> Path | None:
    """The program that a string of a module names: a module of `tests` for `python -m`, or a file
    beside the module.
    """
    if re.fullmatch(r"tests(\.\w+)+", text):
        return module_at(text)
    if re.fullmatch(r"\w+\.py", text):
        place = path.with_name(text)
        return place if place.is_file() else None
    return None


def prefixes(module: str) -> Iterator[str]:
    """A module and the packages around it."""
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        yield ".".join(parts[:count])
