"""The SCRAM credentials in the metadata."""

from __future__ import annotations

from kbroker.metadata.delta import MetadataDelta
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.scram_credentials import MECHANISMS, credential_iterations
from kbroker.metadata.snapshot import image_records
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.messages.stored.metadata_records import (
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)


def image_of(*records: Message) -> MetadataImage:
    delta = MetadataDelta(MetadataImage())
    for record in records:
        delta.replay(record)
    return delta.apply(offset=len(records), epoch=1)


def credential(name: str, mechanism: int, iterations: int) -> UserScramCredentialRecord:
    return UserScramCredentialRecord(
        name=name,
        mechanism=mechanism,
        salt=b"salt",
        stored_key=b"stored",
        server_key=b"server",
        iterations=iterations,
    )


def test_a_user_may_have_one_credential_of_each_mechanism() -> None:
    image = image_of(
        credential("alice", 1, 4096), credential("alice", 2, 8192), credential("bob", 1, 5000)
    )
    assert credential_iterations(image, "alice") == {1: 4096, 2: 8192}
    assert credential_iterations(image, "bob") == {1: 5000}
    assert credential_iterations(image, "carol") == {}


def test_a_removed_credential_is_not_told() -> None:
    image = image_of(
        credential("alice", 1, 4096),
        RemoveUserScramCredentialRecord(name="alice", mechanism=1),
    )
    assert credential_iterations(image, "alice") == {}


def test_credentials_survive_a_snapshot() -> None:
    image = image_of(credential("alice", 1, 4096))
    assert credential_iterations(image_of(*image_records(image)), "alice") == {1: 4096}


def test_the_mechanisms_are_those_of_kafka() -> None:
    names = {number: mechanism.name for number, mechanism in MECHANISMS.items()}
    assert names == {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
