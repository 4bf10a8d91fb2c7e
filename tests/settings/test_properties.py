"""Properties files as Java reads them, and overrides."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.model import StartupError
from kbroker.settings.properties import parse_overrides, parse_properties, read_properties


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        pytest.param("a=1\nb = 2 \n# c=3\n! d=4\n\n  e=5", {"a": "1", "b": "2", "e": "5"}, id="="),
        pytest.param("a=1\na=2", {"a": "2"}, id="the last one counts"),
        pytest.param("a:1\nb 2", {"a": "1", "b": "2"}, id="other separators"),
        pytest.param("a=1,\\\n   2", {"a": "1,2"}, id="continued line"),
        pytest.param("a=\\u0041", {"a": "A"}, id="escape"),
        pytest.param("a=b=c", {"a": "b=c"}, id="equals sign in the value"),
        pytest.param("a=\r\nb=1\r\n", {"a": "", "b": "1"}, id="empty value, CR LF"),
        pytest.param("listeners=PLAINTEXT://:9092", {"listeners": "PLAINTEXT://:9092"}, id=":"),
        pytest.param("alone", {"alone": ""}, id="key alone"),
        pytest.param("# ümläut\na=ü", {"a": "ü"}, id="utf-8"),
    ],
)
def test_parse(text: str, pairs: dict[str, str]) -> None:
    assert parse_properties(text, source="x") == pairs


def test_bad_escape() -> None:
    with pytest.raises(StartupError, match=r"^x: "):
        parse_properties("a=\\u00zz", source="x")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="no such file"):
        read_properties(tmp_path / "server.properties")


def test_not_text(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StartupError, match="not UTF-8 text"):
        read_properties(path)


def test_directory(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="cannot read it"):
        read_properties(tmp_path)


def test_overrides() -> None:
    assert parse_overrides(["a=1", "b=x=y", "a= 2 "]) == {"a": "2", "b": "x=y"}


@pytest.mark.parametrize("override", ["a", "=1", " =1"])
def test_bad_override(override: str) -> None:
    with pytest.raises(StartupError, match="key=value"):
        parse_overrides([override])
