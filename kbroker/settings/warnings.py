"""Warnings for the operator about settings that are unknown or have no effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kbroker.settings.rules import LISTENER_KEYS
from kbroker.settings.tables.served import OWN_KEYS, QUIET_KEYS, SERVED_KEYS
from kbroker.settings.tables.table import BROKER_KEYS

_FOREIGN_PREFIXES: Final = ("listener.name.", "rsm.config.", "rlmm.config.", "config.providers.")
_FOREIGN_KEYS: Final = frozenset({"super.users", "allow.everyone.if.no.acl.found"})


def warnings_for(explicit: Iterable[str] | Mapping[str, str]) -> list[str]:
    """Warnings for the explicit keys: one per unknown key, and one for all keys without effect."""
    unserved: list[str] = []
    lines: list[str] = []
    for name in explicit:
        if name in SERVED_KEYS or name in QUIET_KEYS or name in OWN_KEYS:
            continue
        if name.startswith("listener.name.") and name.endswith(
            tuple(f".{k}" for k in LISTENER_KEYS)
        ):
            continue
        if name in BROKER_KEYS or name in _FOREIGN_KEYS or name.startswith(_FOREIGN_PREFIXES):
            unserved.append(name)
        else:
            lines.append(f"{name}: unknown key, ignored{_suggestion(name)}")
    if unserved:
        names = ", ".join(sorted(unserved))
        lines.append(f"these keys of Kafka have no effect in this version of kbroker: {names}")
    return lines


def _suggestion(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, SERVED_KEYS, n=1, cutoff=0.8)
    return f"; did you mean {close[0]}?" if close else ""
