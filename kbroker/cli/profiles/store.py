"""The file of profiles: JSON, by default `~/.config/kbroker/profiles.json`.

A profile holds Kafka's client properties, `bootstrap.servers` among them, and the path of a file of
more of them. Secrets stand in that file only, never here.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from kbroker.model import StartupError

FILE_VARIABLE: Final = "KBROKER_PROFILES_FILE"
"""The environment variable that names another file."""

SECURITY_PREFIXES: Final = ("sasl.", "security.", "ssl.")
_SECRET_WORDS: Final = ("password", "secret", "jaas", "token")


def is_secret(key: str) -> bool:
    """Whether a property may not stand in a profile, and is not shown."""
    return key.startswith(SECURITY_PREFIXES) or any(word in key for word in _SECRET_WORDS)


@dataclass(frozen=True, slots=True)
class Profile:
    """properties: Kafka's client properties. command_config: a file of more; they count less."""

    properties: Mapping[str, str] = field(default_factory=dict)
    command_config: Path | None = None

    def pairs(self) -> dict[str, str]:
        """All of its client properties. Raises StartupError for a file that cannot be read."""
        return {**read_client_properties(self.command_config), **self.properties}


@dataclass(frozen=True, slots=True)
class Profiles:
    """What is in the file. current: the name of one of them, or None."""

    by_name: Mapping[str, Profile] = field(default_factory=dict)
    current: str | None = None

    def profile(self, name: str) -> Profile:
        """Raises StartupError for a name that is not in the file."""
        if name not in self.by_name:
            known = (
                f"there are {', '.join(sorted(self.by_name))}" if self.by_name else "it has none"
            )
            raise StartupError(f"{profiles_path()} has no profile {name!r}: {known}")
        return self.by_name[name]

    def with_profile(self, name: str, profile: Profile) -> Profiles:
        """With this one in place of the one of the same name, if there is one."""
        return replace(self, by_name={**self.by_name, name: profile})

    def without(self, name: str) -> Profiles:
        """Without this one, which may be the current one. Raises StartupError as `profile` does."""
        self.profile(name)
        rest = {each: profile for each, profile in self.by_name.items() if each != name}
        return Profiles(rest, None if self.current == name else self.current)


def profiles_path() -> Path:
    """The file; it need not exist. Source: the XDG base directory specification."""
    if named := os.environ.get(FILE_VARIABLE):
        return Path(named).expanduser()
    base = os.environ.get("XDG_CONFIG_HOME", "")
    # a relative path there is to be ignored
    folder = Path(base) if os.path.isabs(base) else Path.home() / ".config"
    return folder / "kbroker" / "profiles.json"


def read_client_properties(path: Path | None) -> dict[str, str]:
    """A file of Kafka's client properties, with what its `config.providers` stand for; none without
    a file. Raises StartupError.
    """
    from kbroker.cli.console.config_providers import resolve
    from kbroker.settings.properties import read_properties

    if path is None:
        return {}
    if not path.is_file():
        raise StartupError(f"{path}: no such file of client properties")
    return resolve(read_properties(path), os.environ)


def read_profiles() -> Profiles:
    """Empty without a file. Raises StartupError for one that cannot be read."""
    path = profiles_path()
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        return Profiles(
            {_text(name): _profile(each) for name, each in read["profiles"].items()},
            _optional_text(read.get("current")),
        )
    except FileNotFoundError:
        return Profiles()
    except OSError as error:
        raise StartupError(f"{path}: cannot read it: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError):  # JSONDecodeError is a ValueError
        raise StartupError(
            f"{path} is no file of profiles; repair or remove it, kbroker profile create makes one"
        ) from None


# Any: JSON of unknown shape
def _profile(read: Any) -> Profile:
    properties = {_text(key): _text(value) for key, value in read.get("properties", {}).items()}
    path = _optional_text(read.get("command_config"))
    return Profile(properties, None if path is None else Path(path))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _optional_text(value: object) -> str | None:
    return None if value is None else _text(value)


def write_profiles(profiles: Profiles) -> None:
    """Replace the file in one step, with mode 0600: another command reads the old one or the new
    one. Raises OSError.
    """
    path = profiles_path().resolve()  # what a link points to is replaced, not the link
    made = {
        "current": profiles.current,
        "profiles": {
            name: {
                "properties": dict(profile.properties),
                "command_config": None
                if profile.command_config is None
                else str(profile.command_config),
            }
            for name, profile in profiles.by_name.items()
        },
    }
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump(made, stream, indent=2, ensure_ascii=False)
            stream.write("\n")
            stream.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
