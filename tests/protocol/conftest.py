"""What the tests of this room share: every declared message, and the facts about Kafka 4.3.1 with
the versions of 3.9.0 that 4 dropped."""

from __future__ import annotations

import gzip
import importlib
import io
import json
import pkgutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

import kbroker.protocol.messages as families
from kbroker.protocol.codecs.schema import Message, VersionRange

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="session")
def declared() -> dict[str, type[Message]]:
    """Every message class of `kbroker.protocol.messages`, by its name."""
    found: dict[str, type[Message]] = {}
    for info in pkgutil.walk_packages(families.__path__, f"{families.__name__}."):
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            is_message = isinstance(value, type) and issubclass(value, Message)
            if is_message and value.__module__ == module.__name__:
                assert name not in found, f"{name} is declared twice"
                found[name] = value
    return found


def with_dropped_versions(new: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    """The schema of Kafka 4 with the versions below its lowest, as 3.9.0 has them.

    What both describe must say the same there; what 3.9.0 alone has must lie below altogether.
    """
    lowest, dropped = VersionRange(new["validVersions"]), VersionRange(old["validVersions"])
    assert dropped.low < lowest.low
    assert old.get("flexibleVersions", "none") == new.get("flexibleVersions", "none")
    high = VersionRange(new["validVersions"]).high
    fields = _merged_fields(new["fields"], old["fields"], lowest.low)
    return {**new, "validVersions": f"{dropped.low}-{high}", "fields": fields}


def _merged_fields(
    new: list[dict[str, Any]], old: list[dict[str, Any]], lowest: int
) -> list[dict[str, Any]]:
    merged = {field["name"]: field for field in new}
    order = [field["name"] for field in new]
    for index, field in enumerate(old):
        name = field["name"]
        if name not in merged:
            assert VersionRange(field["versions"]).high < lowest, name
            merged[name] = field
            order.insert(order.index(old[index - 1]["name"]) + 1, name)
            continue
        same = merged[name]
        for key in ("type", "tag", "default", "flexibleVersions"):
            assert same.get(key) == field.get(key), name
        for key in ("versions", "nullableVersions", "taggedVersions"):
            ranges = [VersionRange(fact.get(key, "none")) for fact in (same, field)]
            below = [[v for v in range(lowest) if v in versions] for versions in ranges]
            assert below[0] == below[1], name
        if "fields" in field:
            merged[name] = {
                **same, "fields": _merged_fields(same["fields"], field["fields"], lowest)
            }  # fmt: skip
    return [merged[name] for name in order]


@pytest.fixture(scope="session")
def schema_facts() -> dict[str, dict[str, Any]]:
    """Kafka's schemas by name, without those that have no version left."""
    messages = json.loads((DATA / "kafka" / "messages.json").read_text())["messages"]
    facts = {message["name"]: message for message in messages}
    old = json.loads((DATA / "kafka" / "messages-3.9.0.json").read_text())["messages"]
    for message in old:
        facts[message["name"]] = with_dropped_versions(facts[message["name"]], message)
    for group in json.loads((DATA / "kafka" / "metadata-records.json").read_text()).values():
        if isinstance(group, list):
            facts |= {message["name"]: message for message in group}
    return {name: fact for name, fact in facts.items() if fact["validVersions"] != "none"}


@pytest.fixture(scope="module")
def kafka_logs() -> dict[str, bytes]:
    """The log of each folder `v<magic>-<codec>`."""
    archive_path = DATA / "kafka-4.3.1" / "legacy.tar.gz"
    logs = {}
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(archive_path.read_bytes()))) as archive:
        for member in archive.getmembers():
            stream = archive.extractfile(member)
            if stream is not None:
                logs[Path(member.name).parent.name] = stream.read()
    return logs
