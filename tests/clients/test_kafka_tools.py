"""Kafka's tools in a JVM that stays behave as in one of their own."""

from __future__ import annotations

import pytest

from scripts.kafka_jars import KAFKA_VERSION
from spark_jobs.java import java_problem
from tests.clients.kafka_tools import KafkaTools

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

CONFIGS = "kafka.admin.ConfigCommand"


def test_a_tool_that_fails_leaves_nothing_to_the_next(kafka_tools: KafkaTools) -> None:
    failed = kafka_tools.output(CONFIGS, "--nonsense", code=1, errors=True)
    assert "nonsense is not a recognized option" in failed
    # an exit within the tool's own `catch Throwable`
    usage = kafka_tools.output(CONFIGS, "--help", code=1, errors=True)
    assert "Display Kafka version." in usage
    assert "Error while executing" not in usage and "nonsense" not in usage
    version = kafka_tools.output(CONFIGS, "--version", errors=True)
    assert version.split()[0] == KAFKA_VERSION


def test_another_exit_code_is_an_error_with_what_was_printed(kafka_tools: KafkaTools) -> None:
    with pytest.raises(AssertionError, match="nonsense is not a recognized option"):
        kafka_tools.output(CONFIGS, "--nonsense")
