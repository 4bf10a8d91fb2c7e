"""Policies of the operator: they are imported at start, or the start fails."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kbroker.controller.policies import AlteredConfigs, NewTopic
from kbroker.model import StartupError
from kbroker.node.policies import load_policies
from kbroker.settings.broker import BrokerConfig
from kbroker.testing.embedded import EmbeddedBroker


class Policy:
    """One for both; tests name it as a setting would."""

    configs: Mapping[str, str]

    def configure(self, configs: Mapping[str, str]) -> None:
        self.configs = configs

    def validate(self, asked: NewTopic | AlteredConfigs) -> None:
        """Everything is allowed."""


class Broken:
    """It cannot be made."""

    def __init__(self) -> None:
        raise RuntimeError("no database")


class Silent:
    """It cannot be asked."""


HERE = f"{__name__}:"
CREATE, ALTER = "create.topic.policy.class.name", "alter.config.policy.class.name"


def config(**names: str) -> BrokerConfig:
    return BrokerConfig.from_properties({"node.id": "1", **{f"{k}": v for k, v in names.items()}})


def test_policies_are_made_and_told_the_settings() -> None:
    policies = load_policies(config(**{CREATE: HERE + "Policy", ALTER: HERE + "Policy"}))
    assert isinstance(policies.create_topic, Policy)
    assert isinstance(policies.alter_config, Policy)
    assert policies.create_topic.configs["node.id"] == "1"


def test_without_a_setting_there_is_none() -> None:
    policies = load_policies(config())
    assert policies.create_topic is None
    assert policies.alter_config is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("org.example.Policy", "module:Class", id="Java"),
        pytest.param("nosuch.module:Policy", "nosuch", id="module"),
        pytest.param(HERE + "Nosuch", "Nosuch", id="class"),
        pytest.param(HERE + "Broken", "no database", id="constructor"),
        pytest.param(HERE + "Silent", "no method validate", id="method"),
    ],
)
def test_a_policy_that_cannot_be_asked_stops_the_start(name: str, words: str) -> None:
    with pytest.raises(StartupError) as error:
        load_policies(config(**{ALTER: name}))
    assert words in str(error.value)
    assert ALTER in str(error.value) and "\n" not in str(error.value)


def test_no_broker_starts_without_its_policy() -> None:
    with pytest.raises(StartupError, match="nosuch"):
        EmbeddedBroker({CREATE: "nosuch:Policy"}).start()
