"""Kafka's client properties: from a file, from -X, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbroker.cli.console.client_properties import ACTING, ClientProperties
from kbroker.cli.profiles.store import read_client_properties
from kbroker.client.consumer import ConsumerConfig
from kbroker.client.group import GroupConfig
from kbroker.client.producer import ProducerConfig
from kbroker.client.security import security_properties
from kbroker.client.security.sasl_properties import CALLBACK_HANDLER, JWT_RETRIEVER
from kbroker.client.security.tls_properties import KEYSTORE_PASSWORD, TRUSTSTORE_PASSWORD
from kbroker.model import StartupError
from kbroker.protocol.batches.compression import Compression
from kbroker.testing import EmbeddedBroker
from tests.cli.test_app import CLI_DOCUMENT

Kbroker = Callable[..., Any]


def test_what_acts() -> None:
    properties = ClientProperties.checked(
        {
            "acks": "1",
            "auto.offset.reset": "earliest",
            "batch.size": "1000",
            "compression.type": "zstd",
            "enable.idempotence": "true",
            "fetch.max.wait.ms": "100",
            "isolation.level": "read_committed",
            "linger.ms": "20",
            "request.timeout.ms": "7000",
            "session.timeout.ms": "10000",
        }
    )
    assert properties.without_effect == []
    assert properties.timeout_s == 7.0
    assert properties.producer(ProducerConfig()) == ProducerConfig(
        acks=1,
        batch_bytes=1000,
        compression=Compression.ZSTD,
        idempotent=True,
        linger_ms=20.0,
        request_timeout_ms=7000,
    )
    consumer = ConsumerConfig(max_wait_ms=100, isolation_level=1, auto_offset_reset="earliest")
    assert properties.consumer(ConsumerConfig()) == consumer
    group = GroupConfig(session_timeout_ms=10_000, auto_offset_reset="earliest", consumer=consumer)
    assert properties.group(GroupConfig()) == group


def test_what_has_no_effect_is_known() -> None:
    pairs = {"key.serializer": "x", "client.id": "me", "reconnect.backoff.ms": "5"}
    found = ClientProperties.checked(pairs).without_effect
    assert found == ["key.serializer", "reconnect.backoff.ms"]
    assert "client.id" in ACTING


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ({"security.protocol": "TLS"}, "security.protocol=TLS: write PLAINTEXT, SSL"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism: GSSAPI .* is not supported"),
        ({"sasl.mechanism": "PLAIN"}, "^sasl.mechanism is set, but security.protocol is not"),
        ({"linger.ms": "soon"}, "linger.ms=soon: write a whole number"),
        ({"acks": "2"}, "acks=2: write all, -1, 1, 0"),
        ({"compression.type": "rar"}, "compression.type=rar: write none, gzip"),
        ({"enable.idempotence": "yes"}, "write true or false"),
    ],
)
def test_what_is_refused(pairs: dict[str, str], message: str) -> None:
    with pytest.raises(StartupError, match=message):
        ClientProperties.checked(pairs)


def test_plaintext_is_taken() -> None:
    properties = ClientProperties.checked({"security.protocol": "PLAINTEXT"})
    assert properties.without_effect == []
    assert properties.security() is None


def test_tls_and_sasl_are_taken() -> None:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    properties = ClientProperties.checked(
        {
            "config.providers": "env",
            "config.providers.env.class": "x",
            "sasl.jaas.config": f'{module} required username="ada" password="hush";',
            "sasl.mechanism": "PLAIN",
            "security.protocol": "SASL_SSL",
            "ssl.provider": "x",
            "ssl.truststore.location": "/no/such/file",
            "ssl.truststore.type": "PEM",
        }
    )
    assert properties.without_effect == ["ssl.provider"]
    assert "hush" not in repr(properties)
    with pytest.raises(StartupError, match="/no/such/file: cannot read it"):
        properties.security()
    plain = ClientProperties.checked({**properties.pairs, "security.protocol": "SASL_PLAINTEXT"})
    security = plain.security()
    assert security is not None
    assert (security.context, security.authentication("a:1") is None) == (None, False)


def test_a_file_and_pairs(
    cli: Kbroker, kafka_broker: EmbeddedBroker, kafka_topic: str, tmp_path: Path
) -> None:
    """The file gives the cluster; -X wins over it, an option over both."""
    path = tmp_path / "client.properties"
    path.write_text(
        f"bootstrap.servers={kafka_broker.bootstrap_servers}\nauto.offset.reset=latest\nretries=5\n"
    )
    listed = cli("topics", "offsets", kafka_topic, "--command-config", str(path))
    assert (listed.code, listed.lines) == (0, [f"{kafka_topic}\t0\t0\t0\t0"])
    assert listed.err == "these properties have no effect here: retries\n"
    record = tmp_path / "record"
    record.write_text("x\n")
    with_file = ("--command-config", str(path))
    sent = cli("produce", kafka_topic, "-f", str(record), *with_file, "-X", "compression.type=gzip")
    assert sent.code == 0, sent.err
    consumed = cli(
        "consume", kafka_topic, "-x", *with_file, "-X", "auto.offset.reset=earliest", "--json"
    )
    assert [json.loads(line)["value"] for line in consumed.lines] == ["x"]
    wrong = cli("topics", "list", *with_file, "-b", "localhost:1")
    assert wrong.code == 1
    assert "localhost:1" in wrong.err


def test_the_example_of_the_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line of it acts."""
    monkeypatch.setenv("KAFKA_PASSWORD", "hush")
    (block,) = re.findall(r"```properties\n(.*?)```", CLI_DOCUMENT, re.DOTALL)
    path = tmp_path / "secured.properties"
    path.write_text(block)
    properties = ClientProperties.checked(read_client_properties(path))
    assert properties.without_effect == []
    assert 'password="hush"' in (properties.get("sasl.jaas.config") or "")


def test_the_document_names_what_acts() -> None:
    named = set(re.findall(r"`([a-z.]+)`", CLI_DOCUMENT))
    quiet = {CALLBACK_HANDLER, JWT_RETRIEVER, TRUSTSTORE_PASSWORD, KEYSTORE_PASSWORD}
    assert security_properties.ACTING - quiet <= named


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("-X", "security.protocol=TLS"), 1, "kbroker: security.protocol=TLS: write PLAINTEXT, "),
        (("-X", "ssl.keystore.type=PEM"), 1, "kbroker: ssl.keystore.type is set, but security"),
        (("-X", "nonsense"), 2, "nonsense: write it as name=value"),
        (("--command-config", "/no/such/file"), 1, "/no/such/file: no such file of client prop"),
    ],
)
def test_mistakes(cli: Kbroker, arguments: tuple[str, ...], code: int, message: str) -> None:
    result = cli("topics", "list", *arguments)
    assert (result.code, result.err.count("\n")) == (code, 1)
    assert message in result.err
