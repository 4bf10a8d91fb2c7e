"""Values of client properties that stand elsewhere, as Kafka's config providers find them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.cli.console.config_providers import resolve
from kbroker.model import StartupError

PACKAGE = "org.apache.kafka.common.config.provider"
DECLARED = {
    "config.providers": "env, file,directory",
    "config.providers.env.class": f"{PACKAGE}.EnvVarConfigProvider",
    "config.providers.file.class": f"{PACKAGE}.FileConfigProvider",
    "config.providers.directory.class": f"{PACKAGE}.DirectoryConfigProvider",
}
ENVIRONMENT = {"NAME": "ada", "HOME": "/home"}


def resolved(value: str, **more: str) -> str:
    parameters = {f"config.providers.{key.replace('_', '.')}": text for key, text in more.items()}
    return resolve({"key": value, **DECLARED, **parameters}, ENVIRONMENT)["key"]


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    (tmp_path / "secrets.properties").write_text("password=hush\n# no\nempty=\n")
    (tmp_path / "token").write_text("abc")
    return tmp_path


def test_each_provider(secrets: Path) -> None:
    assert resolved("${env:NAME}") == "ada"
    assert resolved(f"${{file:{secrets}/secrets.properties:password}}") == "hush"
    assert resolved(f"${{file:{secrets}/secrets.properties:empty}}") == ""
    assert resolved(f"${{directory:{secrets}:token}}") == "abc"


def test_inside_other_text(secrets: Path) -> None:
    file = f"{secrets}/secrets.properties"
    value = f'a.B required username="${{env:NAME}}" password="${{file:{file}:password}}";'
    assert resolved(value) == 'a.B required username="ada" password="hush";'


def test_what_is_not_declared_stays() -> None:
    """A value is not looked at twice, either."""
    assert resolve({"key": "${env:NAME}"}, ENVIRONMENT) == {"key": "${env:NAME}"}
    assert resolved("${vault:/a:b} $NAME ${NAME}") == "${vault:/a:b} $NAME ${NAME}"
    pairs = {"key": "${env:X}", **DECLARED}
    assert resolve(pairs, {"X": "${env:X}"})["key"] == "${env:X}"


@pytest.mark.parametrize("value", ["${env:NONE}", "${env:/path:NAME}", "${file:key}"])
def test_what_is_not_there(value: str) -> None:
    with pytest.raises(StartupError) as caught:
        resolved(value)
    assert str(caught.value) == f"key: there is no value for {value}"


def test_files_that_are_not_there(secrets: Path) -> None:
    with pytest.raises(StartupError, match=r"/none: no such file, which config.providers are to"):
        resolved(f"${{file:{secrets}/none:password}}")
    for key in ("none", "../token", "", "."):
        with pytest.raises(StartupError, match="there is no value for"):
            resolved(f"${{directory:{secrets}:{key}}}")
    (secrets / "bytes").write_bytes(b"\xff")
    with pytest.raises(StartupError, match="/bytes: cannot be read, or is no text"):
        resolved(f"${{directory:{secrets}:bytes}}")


def test_bounds(secrets: Path) -> None:
    assert resolved("${env:NAME}", env_param_allowlist_pattern="NA.*") == "ada"
    with pytest.raises(StartupError, match="there is no value for"):
        resolved("${env:HOME}", env_param_allowlist_pattern="NA.*")
    value = f"${{directory:{secrets}:token}}"
    assert resolved(value, directory_param_allowed_paths=f"/none,{secrets}") == "abc"
    for outside in (value, f"${{directory:{secrets}/sub/..:token}}"):
        with pytest.raises(StartupError, match=r"is not within allowed.paths="):
            resolved(outside, directory_param_allowed_paths=f"/none,{secrets}/sub")


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ({"config.providers": "env"}, "names env, but config.providers.env.class is not set"),
        (
            {"config.providers": "x", "config.providers.x.class": "a.Vault"},
            "config.providers.x.class=a.Vault: write org.apache.kafka.common.config.provider.Env",
        ),
    ],
)
def test_mistakes(pairs: dict[str, str], message: str) -> None:
    with pytest.raises(StartupError, match=message):
        resolve(pairs, {})
