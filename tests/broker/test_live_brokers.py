"""Which brokers may be in an ISR, by the newest committed image."""

from __future__ import annotations

import pytest

from kbroker.broker.live_brokers import LiveBrokers
from kbroker.metadata.image import BrokerRegistration, MetadataImage


def image_of(*, fenced: bool = False, leaves: bool = False) -> MetadataImage:
    broker = BrokerRegistration(2, 7, bytes(16), {}, fenced=fenced, in_controlled_shutdown=leaves)
    return MetadataImage(brokers={2: broker})


@pytest.mark.parametrize(
    ("image", "epoch", "is_shutting_down"),
    [
        pytest.param(MetadataImage(), None, False, id="unknown"),
        pytest.param(image_of(), 7, False, id="alive"),
        pytest.param(image_of(fenced=True), None, False, id="fenced"),
        pytest.param(image_of(leaves=True), 7, True, id="in controlled shutdown"),
    ],
)
def test_what_the_image_says(
    image: MetadataImage, epoch: int | None, is_shutting_down: bool
) -> None:
    brokers = LiveBrokers(lambda: image)
    assert brokers.live_epoch(2) == epoch
    assert brokers.is_shutting_down(2) is is_shutting_down


def test_the_newest_image_counts() -> None:
    images = [image_of()]
    brokers = LiveBrokers(lambda: images[-1])
    assert brokers.live_epoch(2) == 7
    images.append(image_of(fenced=True))
    assert brokers.live_epoch(2) is None
