"""Levels of loggers, with Kafka's codes and words."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from kbroker.controller.configs.configs import Alteration, AlteredResource
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.server.handlers.configs.broker_loggers import LEVELS, alter_levels, describe_loggers

NAME = "kbroker.server.handlers.configs.broker_loggers"


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    one = logging.getLogger(NAME)
    before = one.level
    yield one
    one.setLevel(before)


def alter(*alterations: Alteration, node: str = "1", validate_only: bool = False) -> None:
    alter_levels(
        1,
        AlteredResource(8, node, alterations),
        validate_only=validate_only,
        set_level=logging.Logger.setLevel,
    )


def level_of(name: str) -> str | None:
    (found,) = [each.value for each in describe_loggers() if each.name == name]
    return found


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_is_set_and_told(logger: logging.Logger, level: str) -> None:
    alter(Alteration(NAME, 0, level))
    assert level_of(NAME) == level
    alter(Alteration(NAME, 1, ""))
    assert logger.level == logging.NOTSET, "Kafka's tools delete with an empty value"


def test_a_trial_sets_nothing(logger: logging.Logger) -> None:
    alter(Alteration(NAME, 0, "FATAL"), validate_only=True)
    assert logger.level == logging.NOTSET


@pytest.mark.parametrize(
    ("node", "alteration", "code", "words"),
    [
        pytest.param("x", Alteration(NAME, 0, "INFO"), 42, "must be an integer", id="no number"),
        pytest.param("2", Alteration(NAME, 0, "INFO"), 42, "Expected 1, but", id="another node"),
        pytest.param("1", Alteration("kbroker.x", 0, "INFO"), 40, "does not exist", id="unknown"),
        pytest.param("1", Alteration("asyncio", 0, "INFO"), 40, "does not exist", id="not ours"),
        pytest.param("1", Alteration(NAME, 0, "LOUD"), 40, "DEBUG, ERROR, FATAL", id="level"),
        pytest.param("1", Alteration("root", 1, None), 42, "not allowed", id="root"),
        pytest.param("1", Alteration(NAME, 2, "INFO"), 42, "APPEND", id="append"),
        pytest.param("1", Alteration(NAME, 3, "INFO"), 42, "SUBTRACT", id="subtract"),
        pytest.param("1", Alteration(NAME, 9, "INFO"), 42, "operation type 9", id="operation"),
    ],
)
def test_what_is_refused_changes_nothing(
    logger: logging.Logger, node: str, alteration: Alteration, code: int, words: str
) -> None:
    with pytest.raises(KafkaError) as refusal:
        alter(Alteration(NAME, 0, "FATAL"), alteration, node=node)
    assert refusal.value.code == ErrorCode(code)
    assert words in refusal.value.message
    assert logger.level == logging.NOTSET


@pytest.mark.parametrize("validate_only", [True, False])
@pytest.mark.parametrize("name", ["root", NAME])
def test_an_embedded_broker_refuses(
    logger: logging.Logger, name: str, *, validate_only: bool
) -> None:
    before = logging.root.level, logger.level
    resource = AlteredResource(8, "1", (Alteration(name, 0, "FATAL"),))
    with pytest.raises(KafkaError) as refusal:
        alter_levels(1, resource, validate_only=validate_only, set_level=None)
    assert refusal.value.code == ErrorCode.INVALID_REQUEST
    assert "node 1: it is embedded in another program" in refusal.value.message
    assert (logging.root.level, logger.level) == before
    assert level_of(name)


def test_the_root_logger_stands_first() -> None:
    names = [each.name for each in describe_loggers()]
    assert names[0] == "root"
    assert names[1:] == sorted(names[1:])
    assert all(name == "kbroker" or name.startswith("kbroker.") for name in names[1:])
