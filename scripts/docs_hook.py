"""The hook of mkdocs (mkdocs.yml): the pages of the documentation site that are made when it is
built, and the decisions in its navigation. `make docs` builds the site.

The functions that begin with `on_` have the names and arguments that mkdocs calls. Nothing else
here needs mkdocs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scripts import docs_commands, docs_compatibility, docs_tools

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT: Final = Path(__file__).parents[1]
DOCS: Final = ROOT / "docs"
DECISIONS_INDEX: Final = "adr/index.md"

DECISIONS_HEAD: Final = """# Decisions

Why kbroker is built as it is: context, decision, cost, and how we would know that it was wrong.
"""


def from_root(name: str) -> str:
    """A document of the repository's root, with its links as they are from `docs`."""
    return (ROOT / name).read_text().replace("](docs/", "](")


def decisions() -> list[str]:
    """The pages of the decisions, by number."""
    return [f"adr/{path.name}" for path in sorted((DOCS / "adr").glob("[0-9]*.md"))]


def title_of(page: str) -> str:
    """The title of a page below `docs`. Raises LookupError if it has none."""
    found = re.match(r"# (.+)", (DOCS / page).read_text())
    if found is None:
        raise LookupError(f"docs/{page} does not begin with a title")
    return found[1]


def decisions_page() -> str:
    """The list of decisions."""
    lines = [f"- [{title_of(page)}]({Path(page).name})" for page in decisions()]
    return DECISIONS_HEAD + "\n" + "\n".join(lines) + "\n"


GENERATED: Final[Mapping[str, Callable[[], str]]] = {
    "commands.md": docs_commands.page,
    "compatibility.md": docs_compatibility.page,
    "tools.md": docs_tools.page,
    "architecture.md": lambda: from_root("ARCHITECTURE.md"),
    "changelog.md": lambda: from_root("CHANGELOG.md"),
    DECISIONS_INDEX: decisions_page,
}
"""What makes each page that does not stand in `docs`."""


# Any: the navigation is what YAML gives, lists and dicts of names
def with_decisions(navigation: list[Any]) -> list[Any]:
    """The navigation with the decisions behind their index."""
    found: list[Any] = []
    for entry in navigation:
        match entry:
            case dict():
                found.append(
                    {
                        title: with_decisions(inner) if isinstance(inner, list) else inner
                        for title, inner in entry.items()
                    }
                )
            case str() if entry == DECISIONS_INDEX:
                found += [entry, *decisions()]
            case _:
                found.append(entry)
    return found


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Complete the navigation."""
    config.nav = with_decisions(config.nav or [])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    for name, make in GENERATED.items():
        files.append(File.generated(config, name, content=make()))
    return files
