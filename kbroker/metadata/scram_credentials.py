"""SCRAM credentials in the metadata (KIP-554): the mechanisms, and the data that
DescribeUserScramCredentials returns.

`controller/configs/scram_credentials` decides alterations. Source: ScramImage of Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from kbroker.metadata.image import MetadataImage

SCRAM_LEVEL: Final = 11
"""metadata.version 3.5-IV2: the first that stores SCRAM credentials."""


class ScramMechanism(NamedTuple):
    """hash_name: the name in hashlib."""

    name: str
    hash_name: str
    min_iterations: int


MECHANISMS: Final[Mapping[int, ScramMechanism]] = {
    1: ScramMechanism("SCRAM-SHA-256", "sha256", 4096),
    2: ScramMechanism("SCRAM-SHA-512", "sha512", 4096),
}
"""By their number in requests and records."""


def credential_iterations(image: MetadataImage, user: str) -> dict[int, int]:
    """The iterations of each of a user's credentials, by mechanism."""
    return {
        mechanism: image.scram_credentials[mechanism, user].iterations
        for mechanism in MECHANISMS
        if (mechanism, user) in image.scram_credentials
    }
