"""The file of profiles: where it is, what is in it, and how it is written."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from kbroker.cli.profiles.store import (
    Profile,
    Profiles,
    is_secret,
    profiles_path,
    read_profiles,
    write_profiles,
)
from kbroker.model import StartupError

TWO = Profiles(
    {
        "test": Profile({"bootstrap.servers": "localhost:9092"}),
        "pröd": Profile({"client.id": "me"}, Path("/etc/prod.properties")),
    },
    current="test",
)


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "folder" / "profiles.json"
    monkeypatch.setenv("KBROKER_PROFILES_FILE", str(path))
    return path


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, path: Path, tmp_path: Path) -> None:
    assert profiles_path() == path
    monkeypatch.delenv("KBROKER_PROFILES_FILE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", "/etc/ada")
    assert profiles_path() == Path("/etc/ada/kbroker/profiles.json")
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_CONFIG_HOME", ignored)
        assert profiles_path() == tmp_path / ".config/kbroker/profiles.json"


def test_what_is_written_is_read(path: Path) -> None:
    assert read_profiles() == Profiles()
    write_profiles(TWO)
    assert read_profiles() == TWO
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_the_mode_of_an_older_file_does_not_stay(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("{}")
    path.chmod(0o644)
    write_profiles(TWO)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_write_that_fails_leaves_the_file_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profiles(TWO)
    before = path.read_bytes()

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write_profiles(Profiles())
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_link_stays_one(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir()
    path.symlink_to(tmp_path / "elsewhere.json")
    write_profiles(TWO)
    assert path.is_symlink()
    assert read_profiles() == TWO


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"profiles": []}',
        '{"profiles": {"a": 1}}',
        '{"profiles": {"a": {"properties": {"acks": 1}}}}',
        '{"profiles": {}, "current": 1}',
        '{"profiles": {"a": {"command_config": 1}}}',
    ],
)
def test_a_file_that_is_none(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(StartupError, match=f"{path} is no file of profiles"):
        read_profiles()


def test_what_may_be_left_out(path: Path) -> None:
    path.parent.mkdir()
    path.write_text(json.dumps({"profiles": {"a": {}}}))
    assert read_profiles() == Profiles({"a": Profile()})


def test_a_file_that_cannot_be_read(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(StartupError, match="cannot read it: Is a directory"):
        read_profiles()


def test_profiles_by_name() -> None:
    assert TWO.without("test") == Profiles({"pröd": TWO.by_name["pröd"]})
    assert TWO.without("pröd").current == "test"
    assert TWO.with_profile("test", Profile()).by_name["test"] == Profile()
    with pytest.raises(StartupError, match="no profile 'nope': there are pröd, test"):
        TWO.without("nope")


@pytest.mark.parametrize(
    ("key", "secret"),
    [
        ("sasl.jaas.config", True),
        ("ssl.keystore.location", True),
        ("security.protocol", True),
        ("my.password", True),
        ("bootstrap.servers", False),
        ("linger.ms", False),
    ],
)
def test_secrets(key: str, secret: bool) -> None:
    assert is_secret(key) is secret
