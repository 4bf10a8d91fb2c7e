"""The command against a cluster with TLS and SASL, which a scripted broker stands for; Kafka's own
is in tests/reference/test_secured_kafka.py.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kbroker.client.security import sasl_authentication
from tests.certificates import Certificates, make_certificates
from tests.client.conftest import FakeBroker
from tests.client.security.sasl_broker import SaslBroker

Cli = Callable[..., Any]
JAAS = (
    "org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
    '  username="ada" \\\n  password="{password}";'
)


@contextmanager
def secured(certificates: Certificates, lifetime_ms: int = 0) -> Iterator[FakeBroker]:
    """A broker in a thread of its own, which asks for TLS and SCRAM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server)
    broker = FakeBroker(context)
    SaslBroker(broker, ["SCRAM-SHA-512"], lifetime_ms)
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        async with broker:
            stopped = asyncio.Event()
            started.set_result((asyncio.get_running_loop(), stopped))
            await stopped.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    loop, stopped = started.result(20)
    try:
        yield broker
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(20)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def write_properties(
    path: Path, broker: FakeBroker, certificates: Certificates, password: str = "lovelace"
) -> str:
    """As a user writes them for Kafka's tools."""
    path.write_text(
        f"""bootstrap.servers={broker.address}
security.protocol=SASL_SSL
ssl.truststore.type=PEM
ssl.truststore.location={certificates.authority}
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config={JAAS.format(password=password)}
"""
    )
    return str(path)


def test_commands(cli: Cli, certificates: Certificates, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("a\nb\n")
    with secured(certificates) as broker:
        config = write_properties(tmp_path / "secured.properties", broker, certificates)
        listed = cli("topics", "list", "--command-config", config)
        assert (listed.code, listed.out.split()[0], listed.err) == (0, "events", "")
        sent = cli("produce", "events", "-p", "0", "-f", str(lines), "--command-config", config)
        assert sent.code == 0, sent.err
        read = cli("consume", "events", "-e", "-x", "--command-config", config)
        assert (read.code, read.lines) == (0, ["a", "b"]), read.err


def test_a_profile(
    cli: Cli, certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the path of the properties, and nothing of what is secret in them."""
    profiles = tmp_path / "profiles.json"
    monkeypatch.setenv("KBROKER_PROFILES_FILE", str(profiles))
    with secured(certificates) as broker:
        config = write_properties(tmp_path / "secured.properties", broker, certificates)
        assert cli("profile", "create", "prod", "--command-config", config).code == 0
        listed = cli("topics", "list")
        assert (listed.code, listed.out.split()[0]) == (0, "events")
        shown = cli("profile", "show", "prod")
    assert "lovelace" not in shown.out + shown.err + profiles.read_text()


def test_a_password_of_the_environment(
    cli: Cli, certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADAS_PASSWORD", "lovelace")
    with secured(certificates) as broker:
        path = tmp_path / "secured.properties"
        config = write_properties(path, broker, certificates, "${env:ADAS_PASSWORD}")
        with path.open("a") as file:
            package = "org.apache.kafka.common.config.provider"
            file.write("config.providers=env\n")
            file.write(f"config.providers.env.class={package}.EnvVarConfigProvider\n")
        listed = cli("topics", "list", "--command-config", config)
        assert (listed.code, listed.out.split()[0], listed.err) == (0, "events", "")


def test_a_wrong_password_is_one_line(cli: Cli, certificates: Certificates, tmp_path: Path) -> None:
    with secured(certificates) as broker:
        path = tmp_path / "secured.properties"
        config = write_properties(path, broker, certificates, "hush")
        failed = cli("topics", "list", "--command-config", config)
        assert (failed.code, failed.out) == (1, "")
        assert failed.err == (
            f"kbroker: SASL_AUTHENTICATION_FAILED: {broker.address}: Authentication failed: "
            "Invalid username or password; check sasl.jaas.config and sasl.mechanism\n"
        )


def test_a_broker_that_is_not_trusted_is_one_line(
    cli: Cli, certificates: Certificates, tmp_path: Path
) -> None:
    with secured(certificates) as broker:
        config = write_properties(tmp_path / "secured.properties", broker, certificates)
        other = f"ssl.truststore.location={certificates.other_authority}"
        failed = cli("topics", "list", "--command-config", config, "-X", other)
        assert (failed.code, failed.out, failed.err.count("\n")) == (1, "", 1)
        assert failed.err.startswith(f"kbroker: {broker.address}: its certificate is not trusted")
        unread = cli(
            "topics", "list", "--command-config", config, "-X", "ssl.truststore.location=/none"
        )
        assert (unread.code, unread.err) == (
            1,
            "kbroker: ssl.truststore.location=/none: cannot read it: No such file or directory\n",
        )


def test_sessions_that_end_while_it_reads(
    cli: Cli, certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sasl_authentication, "LIFETIME_USED", 0.0)
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{number}\n" for number in range(100)))
    with secured(certificates, lifetime_ms=60_000) as broker:
        config = write_properties(tmp_path / "secured.properties", broker, certificates)
        sent = cli("produce", "events", "-p", "0", "-f", str(lines), "--command-config", config)
        assert sent.code == 0, sent.err
        read = cli("consume", "events", "-e", "-x", "--command-config", config)
        assert read.lines == lines.read_text().splitlines()
