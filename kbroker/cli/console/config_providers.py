"""Values of client properties that stand elsewhere: `${file:/path:key}`, `${env:NAME}` and
`${directory:/path:file}`, once `config.providers` declares them (KIP-297, KIP-421).

    config.providers=env
    config.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider

Unlike Kafka, which then keeps the text as it is, a value that is not there is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from kbroker.model import StartupError

PROVIDERS: Final = "config.providers"
ALLOWED_PATHS: Final = "allowed.paths"
ALLOWED_NAMES: Final = "allowlist.pattern"

_VARIABLE: Final = re.compile(r"\$\{([^}]*?):(?:([^}]*?):)?([^}]*?)\}")
_PACKAGE: Final = "org.apache.kafka.common.config.provider."

Lookup = Callable[[str, str], str | None]
"""Path and key to a value; the path may be empty."""


def resolve(pairs: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The pairs with every variable of a declared provider replaced; other text stays. Raises
    StartupError.
    """
    lookups = _lookups(pairs, environment)
    if not lookups:
        return dict(pairs)
    return {key: _replaced(key, value, lookups) for key, value in pairs.items()}


def _replaced(key: str, value: str, lookups: Mapping[str, Lookup]) -> str:
    def replacement(match: re.Match[str]) -> str:
        lookup = lookups.get(match[1])
        if lookup is None:
            return match[0]
        found = lookup(match[2] or "", match[3])
        if found is None:
            raise StartupError(f"{key}: there is no value for {match[0]}")
        return found

    return _VARIABLE.sub(replacement, value)


def _lookups(pairs: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, Lookup]:
    """By the name of the provider."""
    lookups: dict[str, Lookup] = {}
    for name in filter(None, (part.strip() for part in pairs.get(PROVIDERS, "").split(","))):
        prefix = f"{PROVIDERS}.{name}"
        parameters = {
            key.removeprefix(f"{prefix}.param."): value
            for key, value in pairs.items()
            if key.startswith(f"{prefix}.param.")
        }
        match pairs.get(f"{prefix}.class", "").removeprefix(_PACKAGE):
            case "EnvVarConfigProvider":
                lookups[name] = _of_environment(environment, parameters.get(ALLOWED_NAMES))
            case "FileConfigProvider":
                lookups[name] = _of_files(_read_key, parameters.get(ALLOWED_PATHS))
            case "DirectoryConfigProvider":
                lookups[name] = _of_files(_read_file, parameters.get(ALLOWED_PATHS))
            case "":
                raise StartupError(f"{PROVIDERS} names {name}, but {prefix}.class is not set")
            case other:
                raise StartupError(
                    f"{prefix}.class={other}: write {_PACKAGE}EnvVarConfigProvider, "
                    "FileConfigProvider or DirectoryConfigProvider"
                )
    return lookups


def _of_environment(environment: Mapping[str, str], allowed: str | None) -> Lookup:
    """allowed: a regular expression that a whole name has to match."""

    def lookup(path: str, key: str) -> str | None:
        if path or (allowed is not None and re.fullmatch(allowed, key) is None):
            return None
        return environment.get(key)

    return lookup


def _of_files(read: Callable[[Path, str], str | None], allowed: str | None) -> Lookup:
    """allowed: paths, with commas between them, of which one has to contain the file."""

    def lookup(path: str, key: str) -> str | None:
        if not path:
            return None
        if allowed is not None and not any(
            Path(path).resolve().is_relative_to(Path(each.strip()).resolve())
            for each in allowed.split(",")
        ):
            raise StartupError(f"{path} is not within {ALLOWED_PATHS}={allowed}")
        return read(Path(path), key)

    return lookup


def _read_key(path: Path, key: str) -> str | None:
    from kbroker.settings.properties import read_properties

    if not path.is_file():
        raise StartupError(f"{path}: no such file, which {PROVIDERS} are to read")
    return read_properties(path).get(key)


def _read_file(path: Path, key: str) -> str | None:
    file = path / key
    if file.parent != path or not file.is_file():
        return None
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise StartupError(f"{file}: cannot be read, or is no text") from None
