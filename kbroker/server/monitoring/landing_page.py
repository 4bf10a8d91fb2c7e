"""The page at `/`: which node this is, and where its metrics and probes are. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Final

CONTENT_TYPE: Final = "text/html; charset=utf-8"

_PATHS: Final = (
    ("/metrics", "metrics for Prometheus"),
    ("/healthz", "whether the process works"),
    ("/readyz", "whether clients may be sent here"),
)


def landing_page(facts: Mapping[str, str]) -> str:
    """facts: name and value of what is said about the node."""
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>\n"
        for name, value in facts.items()
    )
    links = "".join(f'<li><a href="{path}">{path}</a>: {what}</li>\n' for path, what in _PATHS)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>kbroker</title>\n'
        "<style>body{font-family:sans-serif;margin:2em}th{text-align:left;padding-right:1em}"
        "</style></head>\n"
        f"<body><h1>kbroker</h1>\n<table>\n{rows}</table>\n<ul>\n{links}</ul>\n</body></html>\n"
    )
