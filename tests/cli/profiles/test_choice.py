"""The order of precedence: which cluster a command speaks to, and as which client."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.cli.profiles.choice import Given, choose
from kbroker.cli.profiles.store import Profile, Profiles
from kbroker.model import StartupError

DEFAULT = "localhost:9092"
PROFILES = Profiles(
    {
        "test": Profile({"bootstrap.servers": "test:1", "client.id": "of-test", "acks": "1"}),
        "prod": Profile({"bootstrap.servers": "prod:1", "client.id": "of-prod"}),
        "bare": Profile({"client.id": "of-bare"}),
    },
    current="test",
)
X = {"bootstrap.servers": "x:1"}
FILE = {"bootstrap.servers": "file:1", "client.id": "of-file"}


@pytest.mark.parametrize(
    ("given", "bootstrap", "client_id"),
    [
        pytest.param(Given(), "test:1", "of-test", id="the current profile"),
        pytest.param(Given(environment="env:1"), "env:1", None, id="environment over current"),
        pytest.param(Given(option="b:1"), "b:1", None, id="option over current"),
        pytest.param(Given(pairs=X), "x:1", None, id="-X over current"),
        pytest.param(Given(file=FILE), "file:1", "of-file", id="file over current"),
        pytest.param(
            Given(file={"client.id": "mine"}), "test:1", "mine", id="a file without an address"
        ),
        pytest.param(
            Given(pairs={"client.id": "mine"}, file=FILE), "file:1", "mine", id="-X over file"
        ),
        pytest.param(
            Given(option="b:1", pairs=X, file=FILE, profile="prod", environment="env:1"),
            *("b:1", "of-file"),
            id="option over everything",
        ),
        pytest.param(
            Given(pairs=X, file=FILE, profile="prod", environment="env:1"),
            *("x:1", "of-file"),
            id="-X over file",
        ),
        pytest.param(
            Given(file=FILE, profile="prod", environment="env:1"),
            *("file:1", "of-file"),
            id="file over profile",
        ),
        pytest.param(
            Given(profile="prod", environment="env:1", environment_profile="test"),
            *("prod:1", "of-prod"),
            id="--profile over environment",
        ),
        pytest.param(
            Given(environment="env:1", environment_profile="prod"),
            *("env:1", "of-prod"),
            id="KBROKER_BOOTSTRAP over KBROKER_PROFILE",
        ),
        pytest.param(
            Given(environment_profile="prod"),
            *("prod:1", "of-prod"),
            id="KBROKER_PROFILE over current",
        ),
        pytest.param(Given(option="b:1", profile="prod"), "b:1", "of-prod", id="a named profile"),
        pytest.param(
            Given(profile="bare", environment="env:1"),
            *("env:1", "of-bare"),
            id="a profile without an address",
        ),
        pytest.param(Given(profile="bare"), DEFAULT, "of-bare", id="no address"),
    ],
)
def test_precedence(given: Given, bootstrap: str, client_id: str | None) -> None:
    chosen = choose(given, lambda: PROFILES, DEFAULT)
    assert (chosen.bootstrap, chosen.pairs.get("client.id")) == (bootstrap, client_id)


def test_nothing_of_the_current_profile_reaches_another_cluster() -> None:
    others = [Given(option="b:1"), Given(environment="env:1"), Given(pairs=X), Given(file=FILE)]
    for given in others:
        assert "acks" not in choose(given, lambda: PROFILES, DEFAULT).pairs


def test_without_profiles() -> None:
    assert choose(Given(), Profiles, DEFAULT).bootstrap == DEFAULT
    assert choose(Given(environment_profile=""), Profiles, DEFAULT).bootstrap == DEFAULT
    with pytest.raises(StartupError, match="has no profile 'prod': it has none"):
        choose(Given(profile="prod"), Profiles, DEFAULT)


def test_the_file_of_a_profile_counts_less_than_its_properties(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers=file:1\nclient.id=of-file\nacks=1\n")
    profile = Profile({"client.id": "of-profile"}, path)
    chosen = choose(Given(), lambda: Profiles({"a": profile}, "a"), DEFAULT)
    assert chosen.bootstrap == "file:1"
    assert (chosen.pairs["client.id"], chosen.pairs["acks"]) == ("of-profile", "1")
    path.unlink()
    with pytest.raises(StartupError, match="no such file of client properties"):
        choose(Given(), lambda: Profiles({"a": profile}, "a"), DEFAULT)


def test_the_file_is_not_read_where_no_profile_counts() -> None:
    def refuse() -> Profiles:
        raise AssertionError

    assert choose(Given(environment="env:1"), refuse, DEFAULT).bootstrap == "env:1"
    assert choose(Given(option="b:1"), refuse, DEFAULT).bootstrap == "b:1"
