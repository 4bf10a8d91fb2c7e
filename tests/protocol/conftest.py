"""What the tests of this room share: every declared message, and the facts about Kafka 4.3.1."""

from __future__ import annotations

import importlib
import json
import pkgutil
from pathlib import Path
from typing import Any

import pytest

import kbroker.protocol.messages as families
from kbroker.protocol.schema import Message

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="session")
def declared() -> dict[str, type[Message]]:
    """Every message class of `kbroker.protocol.messages`, by its name."""
    found: dict[str, type[Message]] = {}
    for info in pkgutil.iter_modules(families.__path__):
        module = importlib.import_module(f"{families.__name__}.{info.name}")
        for name, value in vars(module).items():
            is_message = isinstance(value, type) and issubclass(value, Message)
            if is_message and value.__module__ == module.__name__:
                assert name not in found, f"{name} is declared twice"
                found[name] = value
    return found


@pytest.fixture(scope="session")
def schema_facts() -> dict[str, dict[str, Any]]:
    """Kafka's schemas by name, without those whose versions are all gone."""
    messages = json.loads((DATA / "kafka" / "messages.json").read_text())["messages"]
    facts = {message["name"]: message for message in messages}
    for group in json.loads((DATA / "kafka" / "metadata-records.json").read_text()).values():
        if isinstance(group, list):
            facts |= {message["name"]: message for message in group}
    return {name: fact for name, fact in facts.items() if fact["validVersions"] != "none"}
