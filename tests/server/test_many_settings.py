"""Requests that alter very many settings or features: they are altered in parts, and bounded."""

from __future__ import annotations

from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.broker.controller_channel import LOCAL_LIMITS
from kbroker.controller.configs.configs import ALTERED, Alteration, AlterationOutcome, Alterations
from kbroker.model import ClientIdentity
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.configs import (
    AlterConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from kbroker.protocol.messages.cluster import UpdateFeaturesRequest, UpdateFeaturesResponse
from tests.server.slices import MANY, Sliced, begin


def alter_configs(resources: list[tuple[str, int]]) -> tuple[list[list[str]], list[int]]:
    """What the controller is given in each part, and the answered codes. resources: name and number
    of settings; a name that is there twice is refused.
    """
    kind = IncrementalAlterConfigsRequest
    parts: list[list[str]] = []

    def alter(altered: Alterations, client: ClientIdentity) -> Deferred[list[AlterationOutcome]]:
        names = [each.name for each in altered.resources]
        parts.append(names)
        return Deferred.of([ALTERED for name in names])

    channel = SimpleNamespace(alter_configs=alter, alteration_limits=LOCAL_LIMITS)
    sliced = Sliced(local_controller=channel, channel=channel)
    request = kind(
        resources=[
            kind.AlterConfigsResource(
                resource_type=2,
                resource_name=name,
                configs=[kind.AlterableConfig(name=f"k{index}") for index in range(count)],
            )
            for name, count in resources
        ]
    )
    response = sliced.answer(begin(sliced, ApiKey.INCREMENTAL_ALTER_CONFIGS, request))
    assert [each.resource_name for each in response.responses] == [name for name, _ in resources]
    return parts, [each.error_code for each in response.responses]


def test_many_resources_are_altered_in_parts() -> None:
    names = [f"t{index}" for index in range(500)]
    resources = [("twice", 1), *((name, 1) for name in names), *[("twice", 1)] * 500]
    parts, codes = alter_configs(resources)
    assert max(map(len, parts)) <= 64
    assert list(chain(*parts)) == names
    assert codes == [ErrorCode.INVALID_REQUEST, *[0] * 500, *[ErrorCode.INVALID_REQUEST] * 500]


def test_a_few_resources_are_altered_together() -> None:
    assert alter_configs([("a", 3), ("b", 2)]) == ([["a", "b"]], [0, 0])


def test_no_more_settings_are_altered_than_kafka_does() -> None:
    with pytest.raises(KafkaError) as error:
        alter_configs([(f"t{index}", 1001) for index in range(10)])
    assert error.value.code == ErrorCode.POLICY_VIOLATION


def count_alterations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the settings that were looked at so far."""
    seen: list[str] = []

    def alteration(name: str, *rest: Any) -> Alteration:
        seen.append(name)
        return Alteration(name, *rest)

    monkeypatch.setattr("kbroker.server.handlers.configs.alter_configs.Alteration", alteration)
    return seen


def one_resource(kind: type[Any], settings: int) -> Any:
    configs = [kind.AlterableConfig(name="retention.ms", value="1")] * settings
    return kind(
        resources=[kind.AlterConfigsResource(resource_type=2, resource_name="t", configs=configs)]
    )


ALTERING = [
    (ApiKey.ALTER_CONFIGS, AlterConfigsRequest),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest),
]


@pytest.mark.parametrize(("api_key", "kind"), ALTERING)
def test_too_many_settings_are_refused_unseen(
    api_key: ApiKey, kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = count_alterations(monkeypatch)
    with pytest.raises(KafkaError) as error:
        begin(Sliced(), api_key, one_resource(kind, 10_001))
    assert error.value.code == ErrorCode.POLICY_VIOLATION
    assert not seen


@pytest.mark.parametrize(("api_key", "kind"), ALTERING)
def test_the_loop_has_its_turn_between_the_settings_of_a_resource(
    api_key: ApiKey, kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = count_alterations(monkeypatch)
    outcome = begin(Sliced(), api_key, one_resource(kind, 10_000))
    assert isinstance(outcome, Deferred)
    assert 0 < len(seen) < 5000


class FeatureController:
    """Keeps what it is asked for, and says that all is well."""

    def __init__(self) -> None:
        self.asked: list[UpdateFeaturesRequest] = []

    def update_features(
        self, request: UpdateFeaturesRequest, *, api_version: int
    ) -> Deferred[UpdateFeaturesResponse]:
        self.asked.append(request)
        line = UpdateFeaturesResponse.UpdatableFeatureResult
        return Deferred.of(
            UpdateFeaturesResponse(
                results=[
                    line(feature=each.feature, error_message="NONE")
                    for each in request.feature_updates
                ]
            )
        )


def feature_updates(*names: str) -> UpdateFeaturesRequest:
    kind = UpdateFeaturesRequest.FeatureUpdateKey
    return UpdateFeaturesRequest(
        feature_updates=[
            kind(feature=name, max_version_level=number % 9) for number, name in enumerate(names)
        ]
    )


def test_the_controller_is_given_the_updates_that_decide() -> None:
    controller = FeatureController()
    sliced = Sliced(controller=controller)
    names = [f"unknown-{number}" for number in range(20 * MANY)]
    request = feature_updates("group.version", *names, "unknown-0", "share.version")
    outcome = begin(sliced, ApiKey.UPDATE_FEATURES, request, version=2)
    assert isinstance(outcome, Deferred) and not outcome.done and not controller.asked
    sliced.answer(outcome)
    decisive = controller.asked[0].feature_updates
    assert [each.feature for each in decisive] == ["group.version", "unknown-0", "share.version"]
    assert decisive[1] is request.feature_updates[-2], "the last one of a name counts"
    assert len(request.feature_updates) == len(names) + 3


def test_each_update_of_a_feature_has_its_line() -> None:
    sliced = Sliced(controller=FeatureController())
    request = feature_updates(*["group.version", "share.version"] * 5 * MANY)
    response = sliced.answer(begin(sliced, ApiKey.UPDATE_FEATURES, request, version=1))
    assert [line.feature for line in response.results] == [
        update.feature for update in request.feature_updates
    ]
    assert {line.error_message for line in response.results} == {"NONE"}


def test_a_small_update_of_features_has_no_pause() -> None:
    """The next request of its connection is not handled before it."""
    controller = FeatureController()
    sliced = Sliced(controller=controller)
    begin(sliced, ApiKey.UPDATE_FEATURES, feature_updates(*["group.version"] * 5000), version=1)
    assert controller.asked
