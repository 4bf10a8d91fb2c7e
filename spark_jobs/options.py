"""A job's options: a table with Spark's names, read from the command line and from a file.

`--maxOffsetsPerTrigger 1000`, `--max-offsets-per-trigger 1000` and, in the file of `--config`,
`maxOffsetsPerTrigger: 1000` are the same. Every name that begins with `kafka.` goes to the Kafka
client, `spark.` to the session. The command line wins over the file.

`${env:NAME}` in a value is an environment variable, `${file:PATH}` a file's content and
`${file:PATH:KEY}` a key of a properties file (as Kafka's config providers write it). Secrets are
taken in no other way than from there or from the file: arguments can be seen in `ps`.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .errors import JobError

PREFIXES: Final = ("kafka.", "spark.")
_SECRET = re.compile(
    r"password|secret|jaas|credential|token(?!\.endpoint\.url)|access\.?key|keystore\.key"
    r"|azure\.(account\.key|sas)\.|(private|encryption)\.key\b|client-provided-key",
    re.IGNORECASE,
)
"""In names: at least what Spark hides in its logs (`spark.redaction.regex`)."""
_REMOTE_TOKEN = re.compile(r";\s*token=", re.IGNORECASE)
"""In the address of a Spark Connect server."""
_REFERENCE = re.compile(r"\$\{(env|file):([^}:]+)(?::([^}]+))?\}")
_PROPERTY = re.compile(
    r"((?:\\.|[^=: \t\f\\])*)(?:[ \t\f]*[=:][ \t\f]*|[ \t\f]+|$)((?:\\.|[^\\])*?)[ \t\f]*",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_NAME_IN_YAML = re.compile(r"'[\w!-]{2,}'")
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Option:
    """An option by Spark's name (ours where Spark has none). aliases: other names of it. check:
    raises ValueError for a value that cannot be.
    """

    name: str
    help: str
    metavar: str = "VALUE"
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    check: Callable[[str], object] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All names, without dashes before them."""
        kebab = re.sub(r"([a-z0-9])([A-Z])", r"\1-\2", self.name).lower().replace(".", "-")
        return tuple(dict.fromkeys((self.name, kebab, *self.aliases)))


def add_options(parser: argparse.ArgumentParser, table: Iterable[Option]) -> None:
    """Declare the options of a table, and --config."""
    for option in table:
        parser.add_argument(
            *(f"--{name}" for name in option.names),
            dest=option.name,
            metavar="|".join(option.choices) or option.metavar,
            help=option.help.replace("%", "%%"),
        )
    parser.add_argument(
        "-c",
        "--config",
        metavar="FILE",
        help="options from a file: .yaml, .yml or .properties",
    )
    parser.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of the session"
    )


def collect(
    table: Sequence[Option],
    arguments: argparse.Namespace,
    rest: Sequence[str],
    environment: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Values by canonical name: of the table, and of `kafka.` and `spark.`.

    rest: the arguments that argparse does not know. Raises JobError for unknown names, values that
    cannot be, and secrets on the command line.
    """
    names = {name: option.name for option in table for name in option.names}
    given: dict[str, str] = {
        option.name: value
        for option in table
        if (value := getattr(arguments, option.name)) is not None
    }
    given |= _prefixed(rest, names)
    for item in arguments.conf:
        name, equals, value = item.partition("=")
        if not equals or not name.startswith("spark."):
            raise JobError(f"--conf {name}: write it as spark.name=value")
        given[name] = value
    for name, value in given.items():
        if is_secret(name, value) and not _REFERENCE.search(value):
            raise JobError(
                f"--{name} on the command line can be seen in `ps`: write it into the file of "
                "--config, or as ${file:PATH} or ${env:NAME}"
            )
    values = read_file(arguments.config, names) if arguments.config else {}
    values |= given
    expanded = {name: expand(name, value, environment) for name, value in values.items()}
    for option in table:
        if option.name in expanded:
            _check(option, expanded[option.name])
    return expanded


def is_secret(name: str, value: str) -> bool:
    """Whether no argument of a process may have this value: by the option's name, and an address in
    `spark.remote` that has a token.
    """
    if name == "spark.remote":
        return _REMOTE_TOKEN.search(value) is not None
    return _SECRET.search(name) is not None


def _check(option: Option, value: str) -> None:
    if option.choices and value not in option.choices:
        raise JobError(f"--{option.name} {value}: it is one of {', '.join(option.choices)}")
    if option.check is not None:
        try:
            option.check(value)
        except ValueError as error:
            raise JobError(f"--{option.name} {value}: {error}") from error


def _prefixed(rest: Sequence[str], names: Mapping[str, str]) -> dict[str, str]:
    """`--kafka.a b` and `--kafka.a=b` to pairs."""
    found: dict[str, str] = {}
    waiting = list(rest)
    while waiting:
        argument = waiting.pop(0)
        name, equals, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not name.startswith(PREFIXES):
            raise JobError(f"unknown option {argument.partition('=')[0]}{_similar(name, names)}")
        if not equals:
            if not waiting:
                raise JobError(f"--{name} needs a value")
            value = waiting.pop(0)
        found[name] = value
    return found


def _similar(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), 1)
    return f" (there is --{near[0]})" if near else ""


def read_file(path: str, names: Mapping[str, str]) -> dict[str, str]:
    """The options of a file, by canonical name. names: canonical by any name. Raises JobError."""
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise JobError(f"--config {path}: {reason}") from error
    is_yaml = path.endswith((".yaml", ".yml"))
    try:
        pairs = parse_yaml(text, path) if is_yaml else parse_properties(text)
    except ValueError as error:
        raise JobError(f"--config {path}: {error}") from error
    values = {}
    for name, value in pairs.items():
        if name not in names and not name.startswith(PREFIXES):
            raise JobError(f"{path}: unknown option {name}{_similar(name, names)}")
        values[names.get(name, name)] = value
    return values


def parse_properties(text: str) -> dict[str, str]:
    """Java's properties: `name=value`, `name: value`, comments, lines that go on behind a `\\`,
    escapes. Unlike Java's, a value does not keep white space at its end unless it is escaped.
    Raises ValueError with the number of the line, without what is in it.
    """
    values = {}
    for number, line in _logical_lines(text):
        match = _PROPERTY.fullmatch(line)
        assert match is not None  # no line ends with half an escape
        try:
            name, value = map(_unescaped, match.groups())
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        values[name] = value
    return values


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines that are neither empty nor comments, with those that go on joined, and the number of
    the first one of each.
    """
    first, waiting = 0, ""
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        stripped = line.lstrip(" \t\f")
        if not first:
            if not stripped or stripped[0] in "#!":
                continue
            first = number
        waiting += stripped
        if (len(stripped) - len(stripped.rstrip("\\"))) % 2:
            waiting = waiting[:-1]
        else:
            if waiting:
                yield first, waiting
            first, waiting = 0, ""
    if waiting:
        yield first, waiting


def _unescaped(text: str) -> str:
    """Raises ValueError."""
    found = _ESCAPE.sub(lambda match: _character(match[1]), text)
    # Two escapes may be the halves of one character.
    return found.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _character(escape: str) -> str:
    if escape == "u":
        raise ValueError("\\u needs four hex digits, and a backslash itself is written \\\\")
    return chr(int(escape[1:], 16)) if len(escape) > 1 else _ESCAPED.get(escape, escape)


def parse_yaml(text: str, path: str) -> dict[str, str]:
    """YAML to flat names: nested mappings are joined by dots, lists by commas; values are text as
    it is written. Raises JobError.
    """
    try:
        import yaml
    except ImportError as error:
        raise JobError(
            f"--config {path}: YAML needs PyYAML (pip install pyyaml); or write it as .properties"
        ) from error
    try:
        # Not safe_load: it makes 83 of a password 0123, and true of one that is yes.
        document = yaml.load(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        raise JobError(f"--config {path}: {_yaml_problem(error)}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise JobError(f"--config {path}: it must be a mapping of names to values")
    return dict(_flat(document, ""))


def _yaml_problem(error: Exception) -> str:
    """Where a file is no YAML, and why, without its lines, which may have secrets; a value that
    begins with a sign of YAML is taken for a name, and may be one too.
    """
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    if problem is None or mark is None:  # of a character that no file of YAML may have
        return "it is no YAML"
    shown = _NAME_IN_YAML.sub("'...'", problem)
    place = f"line {mark.line + 1}, column {mark.column + 1}"
    return f"{place}: {shown}; a value with signs of YAML in it needs quotes"


def _flat(document: Mapping[object, object], prefix: str) -> Iterable[tuple[str, str]]:
    for key, value in document.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flat(value, f"{name}.")
        elif isinstance(value, list):
            yield name, ",".join(map(str, value))
        else:
            yield name, str(value)


def expand(name: str, value: str, environment: Mapping[str, str]) -> str:
    """A value with its references replaced. Raises JobError if one leads nowhere."""

    def replaced(match: re.Match[str]) -> str:
        kind, target, key = match.groups()
        if kind == "env":
            if target not in environment:
                raise JobError(f"{name}: there is no environment variable {target}")
            return environment[target]
        try:
            text = Path(target).read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise JobError(f"{name}: {target}: {reason}") from error
        if key is None:
            return text.strip()
        try:
            properties = parse_properties(text)
        except ValueError as error:
            raise JobError(f"{name}: {target}: {error}") from error
        if key not in properties:
            raise JobError(f"{name}: {target} has no key {key}")
        return properties[key]

    return _REFERENCE.sub(replaced, value)


def parse_size(text: str) -> int:
    """`256m`, `1g`, `1000` to bytes. Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or not int(match[1]):
        raise ValueError("write a size such as 256m or 1g")
    return int(match[1]) << (10 * " kmgt".index(match[2].lower() or " "))


def parse_names(text: str) -> tuple[str, ...]:
    """`a, b,a` to (a, b)."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def parse_count(text: str) -> int:
    """A positive number. Raises ValueError."""
    if not text.isdecimal() or not int(text):
        raise ValueError("write a positive number")
    return int(text)


def parse_boolean(text: str) -> bool:
    """`true` or `false`. Raises ValueError."""
    if text.lower() not in ("true", "false"):
        raise ValueError("write true or false")
    return text.lower() == "true"
