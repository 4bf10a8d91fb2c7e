"""kbroker answers to altered settings of TLS and SASL as Apache Kafka 4.3.1 did with PLAINTEXT
listeners, stores them as it does, and tells them after a restart. See `test_same_answers`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from kbroker.model import StartupError
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.listener_keys import base_of, is_dynamic_security
from kbroker.settings.tables.table import BROKER_KEYS
from kbroker.testing.process import BrokerProcess
from tests.reference.conversation import hold
from tests.reference.security_settings import (
    FILE,
    ODD,
    READ_ONLY_VALUES,
    RESTARTS,
    SCOPES,
    VALUES,
    file_steps,
    security_steps,
)
from tests.reference.step import Step
from tests.reference.test_same_answers import ANSWERS

pytestmark = pytest.mark.clients

CONVERSATIONS: Final[tuple[Callable[[], Iterator[Step]], ...]] = (security_steps, *RESTARTS)
NAMES: Final = [step.name for steps in CONVERSATIONS for step in steps()]
SECRETS: Final = ("hunter2", "PlainLoginModule")

READ_ONLY: Final = "a key that is read-only is so with the prefix of a listener too"
NO_PLUGINS: Final = "a setting that is not Kafka's is refused: there are no plug-ins"
OWN_WORDS: Final = "the message names the keys; Kafka's is that of a Java exception"
AFTER_RESTART: Final = (
    "Kafka confuses settings of a listener with those of all after a restart: it refuses the"
    " latter, and applies neither if both are stored"
)
_PREFIXED: Final = ("listener", "no listener", "mechanism")


def _steps(scopes: Iterable[str], titles: Iterable[str], ends: Iterable[str]) -> list[str]:
    return [f"{scope}, {title}: {end}" for scope in scopes for title in titles for end in ends]


def _stored(value: str) -> tuple[str, ...]:
    """Where Kafka stores it: a class that cannot be loaded only for a listener that it has not."""
    return ("no listener",) if value == ODD else _PREFIXED


DEVIATIONS: Final[Mapping[str, str]] = {
    **{
        step: READ_ONLY
        for key, value in READ_ONLY_VALUES.items()
        for step in [
            *_steps(SCOPES, [f"{title} {key}" for title in _PREFIXED], [f"set {value!r}"]),
            *_steps(["broker"], [f"{title} {key}" for title in _stored(value)], ["told"]),
        ]
    },
    **dict.fromkeys(
        [
            *_steps(
                SCOPES,
                ["mechanism sasl.enabled.mechanisms"],
                [f"set {VALUES['sasl.enabled.mechanisms'][0]!r}"],
            ),
            *_steps(SCOPES, ["mechanism ssl.client.auth"], ["set 'required'"]),
            *_steps(SCOPES, ["unknown with the prefix", "unknown", "no key"], ["set 'x'"]),
            *_steps(SCOPES, ["unknown", "no key"], ["told"]),
            *_steps(
                ["broker"],
                [
                    "mechanism sasl.enabled.mechanisms",
                    "mechanism ssl.client.auth",
                    "unknown with the prefix",
                ],
                ["told"],
            ),
        ],
        NO_PLUGINS,
    ),
    **dict.fromkeys(["both at once", "both, a map", "both, a mechanism"], OWN_WORDS),
    **dict.fromkeys(["bare beside prefixed", "both: told after a restart"], AFTER_RESTART),
}
"""Step -> why our answer is another one."""


def recorded_answers(name: str) -> dict[str, Any]:
    answers: dict[str, Any] = json.loads(ANSWERS.with_name(f"{name}.json").read_text())["answers"]
    return answers


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return recorded_answers("security-settings")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("security")


@pytest.fixture(scope="module")
def given(folder: Path) -> dict[str, Any]:
    answers: dict[str, object] = {}
    for conversation in CONVERSATIONS:
        with BrokerProcess(folder / "data") as broker:
            answers |= hold(broker.host, broker.port, conversation=conversation)
    as_json: dict[str, Any] = json.loads(json.dumps(answers))
    return as_json


@pytest.mark.parametrize("name", NAMES)
def test_same_answer(name: str, recorded: dict[str, Any], given: dict[str, Any]) -> None:
    assert name in recorded, "not recorded yet: python -m tests.reference.record security-settings"
    if name in DEVIATIONS:
        assert given[name] != recorded[name], f"no deviation any more: {DEVIATIONS[name]}"
    else:
        assert given[name] == recorded[name]


def test_every_key_that_kafka_alters_per_broker_is_asked_about() -> None:
    """One that Kafka adds needs a row in `tests/reference/security_settings.py`."""
    keys = {name for name in BROKER_KEYS if is_dynamic_security(name)}
    assert keys == VALUES.keys()


def test_passwords_are_stored_as_text_and_neither_told_nor_logged(
    folder: Path, given: dict[str, Any]
) -> None:
    """Kafka stores them as text in its metadata log too."""
    told = json.dumps({name: answer for name, answer in given.items() if "told" in name})
    log = (folder / "data.log").read_text()
    metadata = b"".join(
        path.read_bytes() for path in folder.glob("data/__cluster_metadata-0/*.log")
    )
    assert "have no effect" in log
    for secret in SECRETS:
        assert secret.encode() in metadata
        assert secret not in told
        assert secret not in log


def is_refused_in_the_file(name: str) -> bool:
    try:
        BrokerConfig.from_properties({name: FILE[name]})
    except StartupError:
        return True
    return False


OF_THE_FILE: Final = [name for name in FILE if not is_refused_in_the_file(name)]


@pytest.fixture(scope="module")
def told_of_the_file(folder: Path) -> dict[str, Any]:
    overrides = {name: FILE[name] for name in OF_THE_FILE}
    with BrokerProcess(folder / "file", overrides=overrides) as broker:
        answers = hold(broker.host, broker.port, conversation=file_steps)
    as_json: dict[str, Any] = json.loads(json.dumps(answers))
    return as_json


@pytest.mark.parametrize("name", OF_THE_FILE)
def test_same_answer_for_keys_of_the_file(name: str, told_of_the_file: dict[str, Any]) -> None:
    step = f"file: {name}"
    assert told_of_the_file[step] == recorded_answers("security-file")[step]


def test_kafka_starts_with_a_file_that_kbroker_refuses() -> None:
    """The deviation that docs/configuration.md names: in the file, SASL and client certificates
    are refused on PLAINTEXT listeners too.
    """
    refused = FILE.keys() - set(OF_THE_FILE)
    assert {base_of(name) for name in refused} == {
        "ssl.client.auth",
        *(name for name in VALUES if name.startswith("sasl.")),
    }
    recorded = recorded_answers("security-file")
    for name in refused:
        broker, _ = sorted(
            recorded[f"file: {name}"]["results"], key=lambda each: -len(each["resource_name"])
        )
        assert [entry["name"] for entry in broker["configs"]] == [name]
