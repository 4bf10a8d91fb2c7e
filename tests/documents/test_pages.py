"""What the documents say and name: links, the navigation of the site, commands, messages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from kbroker.cli.app import app
from scripts import docs_hook
from tests.documents.pages import DOCS, GUIDES, ROOT, text_of

PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def nav_pages() -> list[str]:
    """The pages that mkdocs.yml names, by a look at its lines: YAML is not at hand in tests."""
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    return re.findall(r"([\w/-]+\.md)$", navigation, re.MULTILINE)


def test_the_navigation_has_every_page() -> None:
    """A new page of docs/ gets its line in mkdocs.yml; decisions are added by the hook."""
    named = nav_pages()
    assert len(named) == len(set(named))
    every = {*PAGES, *docs_hook.GENERATED} - set(docs_hook.decisions())
    assert set(named) == every


@cache
def anchors(page: str) -> frozenset[str]:
    """The anchors of a page's headings, as mkdocs and GitHub make them of plain titles."""
    text = (DOCS / page).read_text() if page in PAGES else docs_hook.GENERATED[page]()
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return frozenset(
        re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles
    )


def links(page: str) -> Iterator[str]:
    text = re.sub(r"`[^`\n]*`|^```.*?^```$", "", (DOCS / page).read_text(), flags=re.M | re.S)
    yield from re.findall(r"\]\(([^)\s]+)\)", text)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """Also to the pages that are generated, but only on the home page: the others are read outside
    of the site too.
    """
    for link in links(page):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (DOCS / page).parent.joinpath(path).resolve() if path else DOCS / page
        name = target.relative_to(DOCS.resolve()).as_posix()
        is_generated = page == "index.md" and name in docs_hook.GENERATED
        assert target.is_file() or is_generated, link
        assert not anchor or anchor in anchors(name), link


@pytest.mark.parametrize("page", PAGES)
def test_lists_stand_apart(page: str) -> None:
    """A list that follows a line of text is part of its paragraph on the site, unlike on GitHub."""
    text = re.sub(r"^```.*?^```$", "", (DOCS / page).read_text(), flags=re.M | re.S)
    for paragraph in re.split(r"\n\s*\n", text):
        first, *others = paragraph.strip("\n").splitlines() or [""]
        is_list = re.match(r"([-*]|\d+\.) ", first)
        found = [line for line in others if re.match(r"([-*]|\d+\.) ", line)]
        assert is_list or not found, found[0]


def named_commands(text: str) -> Iterator[list[str]]:
    """The words of each `kbroker ...` in the text or in a block, without what it is piped to."""
    blocks = re.findall(r"^```(?:text)?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [part for block in blocks for part in re.split(r"\n|\||&&|;|until ", block)]
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for line in (*lines, *re.findall(r"`([^`\n]+)`", prose)):
        words = re.sub(r"\d?>.*| && .*", "", line).split()
        if words[:1] == ["kbroker"] and len(words) > 1:
            yield words[1:]


@pytest.mark.parametrize("guide", GUIDES)
def test_commands_exist(guide: str) -> None:
    found = list(named_commands(text_of(guide)))
    assert found
    for words in found:
        command: Any = get_command(app)
        rest = list(words)
        while rest and rest[0] in getattr(command, "commands", {}):
            command = command.commands[rest.pop(0)]
        assert not hasattr(command, "commands") or words == ["COMMAND", "--help"], words
        known = {option for parameter in command.params for option in parameter.opts}
        options = {word.split("=")[0] for word in rest if re.match(r"--?[a-zA-Z]", word)}
        assert options <= known | {"--help"}, words


def shown(part: ast.expr) -> str:
    """A piece of an f-string."""
    return str(part.value) if isinstance(part, ast.Constant) else "{}"


@cache
def literals() -> str:
    """All text in the code of kbroker, a line for each string. `{}` stands where a string has a
    value.
    """
    found = []
    for path in sorted((ROOT / "kbroker").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.JoinedStr(values=values):
                    found.append("".join(map(shown, values)))
                case ast.Constant(value=str(text)):
                    found.append(text)
    return "\n".join(found)


def messages() -> list[str]:
    """What the page of troubleshooting quotes: code with a blank, in the first column."""
    cells = re.findall(r"^\| (`[^|]*) \|", text_of("troubleshooting"), re.MULTILINE)
    cells += re.findall(r"^\| log line (`[^|]*) \|", text_of("troubleshooting"), re.MULTILINE)
    quoted = [code for cell in cells for code in re.findall(r"`([^`]+)`", cell)]
    return [code for code in quoted if " " in code]


OF_THE_SYSTEM = {"Connection refused"}


def test_quoted_messages_are_those_of_the_code() -> None:
    """What stands between the dots is text of one of its strings."""
    quoted = set(messages())
    assert quoted >= {*OF_THE_SYSTEM, "is locked by another broker"}
    parts = [part.strip() for each in quoted - OF_THE_SYSTEM for part in each.split("…")]
    assert [part for part in parts if part not in literals()] == []


def test_the_home_page_is_in_the_site_only() -> None:
    assert "index.md" in PAGES
    assert not Path(DOCS / "README.md").exists(), "it would be the home page instead"
