"""Properties files and `--override key=value`, the two sources of static settings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kbroker.model import StartupError


def read_properties(path: Path) -> dict[str, str]:
    """The pairs of a Java properties file (UTF-8). Raises StartupError if it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise StartupError(
            f"{path}: no such file; give the path of a server.properties, or none for defaults"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise StartupError(f"{path}: cannot read it: {reason}") from None
    return parse_properties(text, source=str(path))


def parse_properties(text: str, *, source: str) -> dict[str, str]:
    """The pairs in the text of a properties file; of equal keys the last is used, as in Java.

    Plain `key=value` lines are read here; javaproperties is loaded only for escapes, continued
    lines and the other separators. source: for the message of the StartupError.
    """
    pairs: dict[str, str] = {}
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        key, equals, value = stripped.partition("=")
        key = key.rstrip()
        if not equals or "\\" in stripped or not _is_plain(key):
            return _parse_any(text, source)
        pairs[key] = value.lstrip()
    return pairs


def _is_plain(key: str) -> bool:
    return bool(key) and not any(character in key for character in " \t\f:")


def _parse_any(text: str, source: str) -> dict[str, str]:
    from javaproperties import InvalidUEscapeError, loads

    try:
        pairs = loads(text)
    except InvalidUEscapeError as error:
        raise StartupError(f"{source}: {error}; a backslash-u needs four hex digits") from None
    return {str(key): str(value).strip() for key, value in pairs.items()}


def parse_overrides(overrides: Iterable[str]) -> dict[str, str]:
    """The pairs of `key=value` arguments; later ones override earlier ones. Raises StartupError."""
    pairs: dict[str, str] = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key.strip():
            raise StartupError(f"--override {override}: write it as key=value")
        pairs[key.strip()] = value.strip()
    return pairs
