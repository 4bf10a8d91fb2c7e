"""The command against Apache Kafka 4.3.1 with TLS and SASL: PLAIN, SCRAM, certificates of clients,
sessions that end (KIP-368), and what Kafka says to whom it does not know.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from kbroker.cli.console.client_properties import ClientProperties
from kbroker.client.cluster import Client
from kbroker.settings.properties import read_properties
from scripts.apache_kafka import ApacheKafka
from scripts.ports import free_port
from spark_jobs.java import java_problem
from tests.certificates import Certificates, make_certificates
from tests.clients.adapters import wait_until

pytestmark = [
    pytest.mark.reference,
    pytest.mark.timeout(300),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

SECURITY = "org.apache.kafka.common.security"
USER, PASSWORD = "ada", 'lo"ve, la=ce'
SESSION_MS = 2_000
LISTENERS: Mapping[str, str] = {
    "INTERNAL": "PLAINTEXT",
    "SECURE": "SASL_SSL",
    "CLEAR": "SASL_PLAINTEXT",
    "CERTIFIED": "SSL",
    "CONTROLLER": "PLAINTEXT",
}
"""Name and protocol. CERTIFIED asks for a certificate of the client."""


class SecuredKafka:
    """A broker with all of LISTENERS."""

    def __init__(self, folder: Path, certificates: Certificates) -> None:
        self.folder = folder
        self.certificates = certificates
        self.addresses = {name: f"127.0.0.1:{free_port()}" for name in LISTENERS}
        quoted = PASSWORD.replace('"', '\\\\"')
        logins = f'{SECURITY}.plain.PlainLoginModule required user_{USER}="{quoted}";'
        overrides = {
            "controller.quorum.voters": f"1@{self.addresses['CONTROLLER']}",
            "listeners": ",".join(f"{name}://{at}" for name, at in self.addresses.items()),
            "listener.security.protocol.map": ",".join(
                f"{name}:{protocol}" for name, protocol in LISTENERS.items()
            ),
            "inter.broker.listener.name": "INTERNAL",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "connections.max.reauth.ms": str(SESSION_MS),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": certificates.server,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": certificates.authority,
            "listener.name.certified.ssl.client.auth": "required",
        }
        for name in ("secure", "clear"):
            prefix = f"listener.name.{name}"
            overrides[f"{prefix}.plain.sasl.jaas.config"] = logins
            for mechanism in ("scram-sha-256", "scram-sha-512"):
                module = f"{SECURITY}.scram.ScramLoginModule required;"
                overrides[f"{prefix}.{mechanism}.sasl.jaas.config"] = module
        self.kafka = ApacheKafka(folder / "kafka", overrides=overrides)
        self.kafka.port = int(self.addresses["INTERNAL"].rpartition(":")[2])

    def properties(self, listener: str, mechanism: str = "", password: str = PASSWORD) -> Path:
        """A file of client properties for a listener."""
        protocol = LISTENERS[listener]
        lines = [f"bootstrap.servers={self.addresses[listener]}", f"security.protocol={protocol}"]
        if protocol.endswith("SSL"):
            lines += ["ssl.truststore.type=PEM"]
            lines += [f"ssl.truststore.location={self.certificates.authority}"]
        if listener == "CERTIFIED":
            lines += ["ssl.keystore.type=PEM"]
            lines += [f"ssl.keystore.location={self.certificates.client}"]
        if mechanism:
            module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
            quoted = password.replace('"', '\\\\"')
            login = f'username="{USER}" password="{quoted}"'
            lines += [f"sasl.mechanism={mechanism}"]
            lines += [f"sasl.jaas.config={SECURITY}.{module} required {login};"]
        path = self.folder / f"{listener}-{mechanism}-{len(password)}.properties"
        path.write_text("\n".join(lines) + "\n")
        return path

    def add_user(self) -> None:
        """Credentials for both of SCRAM's mechanisms."""
        from confluent_kafka.admin import (
            AdminClient,
            ScramCredentialInfo,
            ScramMechanism,
            UserScramCredentialUpsertion,
        )

        admin = AdminClient({"bootstrap.servers": self.addresses["INTERNAL"], "log_level": 0})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            info = ScramCredentialInfo(mechanism, 8192)
            upsertion = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
            for future in admin.alter_user_scram_credentials([upsertion]).values():
                future.result(30)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    certificates = make_certificates(tmp_path_factory.mktemp("certificates"))
    made = SecuredKafka(tmp_path_factory.mktemp("secured"), certificates)
    with made.kafka:
        made.add_user()
        yield made


def kbroker(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kbroker", *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
    )


WAYS = [
    ("SECURE", "PLAIN"),
    ("SECURE", "SCRAM-SHA-256"),
    ("SECURE", "SCRAM-SHA-512"),
    ("CLEAR", "SCRAM-SHA-256"),
    ("CERTIFIED", ""),
]


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_commands(kafka: SecuredKafka, listener: str, mechanism: str) -> None:
    topic = f"topic-{listener}-{mechanism}".lower()
    path = kafka.properties(listener, mechanism)
    config = ("--command-config", str(path))

    def is_there() -> bool:  # credentials of SCRAM reach the broker a little later
        return kbroker("topics", "create", topic, "--if-not-exists", *config).returncode == 0

    wait_until(is_there, 60, "the topic")
    listed = kbroker("topics", "list", *config)
    assert topic in listed.stdout
    assert listed.stderr == ""
    sent = kbroker("produce", topic, *config, text="a\nb\nc\n")
    assert sent.returncode == 0, sent.stderr
    group = ("-g", f"group-{topic}", "-n", "3")
    read = kbroker("consume", topic, "-e", *group, *config)
    assert (read.returncode, read.stdout.splitlines()) == (0, ["a", "b", "c"]), read.stderr
    groups = kbroker("groups", "list", *config)
    assert f"group-{topic}" in groups.stdout


def test_the_file_is_one_of_kafkas(kafka: SecuredKafka) -> None:
    """Its tools take the same one."""
    for listener, mechanism in (("SECURE", "SCRAM-SHA-512"), ("CERTIFIED", "")):
        config = ("--command-config", str(kafka.properties(listener, mechanism)))
        address = ("--bootstrap-server", kafka.addresses[listener])
        command = kafka.kafka.java("org.apache.kafka.tools.TopicCommand", "--list", *address)
        run = subprocess.run([*command, *config], capture_output=True, text=True, timeout=120)
        assert run.returncode == 0, run.stdout + run.stderr


def test_a_session_is_renewed_in_time(kafka: SecuredKafka) -> None:
    """One connection outlives three sessions; Kafka would close it at the first request late."""
    path = kafka.properties("SECURE", "SCRAM-SHA-256")
    security = ClientProperties.checked(read_properties(path)).security()

    async def test() -> None:
        async with Client(kafka.addresses["SECURE"], security=security) as client:
            connection = await client.any_connection()
            loop = asyncio.get_running_loop()
            end_s = loop.time() + 3 * SESSION_MS / 1000
            while loop.time() < end_s:
                await client.metadata([])
                await asyncio.sleep(0.1)
            await asyncio.sleep(1.5 * SESSION_MS / 1000)  # the session ends while nothing is sent
            await client.metadata([])
            assert await client.any_connection() is connection

    asyncio.run(test())


def failure(kafka: SecuredKafka, path: Path, *arguments: str) -> str:
    run = kbroker("topics", "list", "--command-config", str(path), *arguments)
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (1, "", 1), run.stderr
    return run.stderr


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password(kafka: SecuredKafka, mechanism: str) -> None:
    text = failure(kafka, kafka.properties("SECURE", mechanism, password="another"))
    assert text.startswith(
        f"kbroker: SASL_AUTHENTICATION_FAILED: {kafka.addresses['SECURE']}: Authentication failed"
    )
    assert "another" not in text


def test_a_mechanism_that_is_not_there(kafka: SecuredKafka, tmp_path: Path) -> None:
    path = kafka.properties("CLEAR", "PLAIN")
    token = tmp_path / "token"
    token.write_text("abc")
    module = f"{SECURITY}.oauthbearer.OAuthBearerLoginModule required;"
    text = failure(
        kafka,
        path,
        *("-X", "sasl.mechanism=OAUTHBEARER", "-X", f"sasl.jaas.config={module}"),
        *("-X", f"sasl.oauthbearer.token.endpoint.url=file://{token}"),
    )
    assert "UNSUPPORTED_SASL_MECHANISM" in text
    assert "OAUTHBEARER is not among its mechanisms (PLAIN, SCRAM-SHA-256, SCRAM-SHA-512)" in text


def test_wrong_protocols(kafka: SecuredKafka) -> None:
    """Each of them is said in a line, within the timeout of a request."""
    plain, secure = kafka.properties("INTERNAL"), kafka.properties("SECURE", "PLAIN")
    timeout = ("-X", "request.timeout.ms=3000")
    for path, listener, expected in (
        (plain, "SECURE", "speaks TLS"),
        (plain, "CLEAR", "if its listener asks for SASL, set security.protocol"),
        (secure, "CLEAR", "security.protocol"),
        (kafka.properties("CLEAR", "PLAIN"), "INTERNAL", "its listener asks for no SASL"),
        (secure, "CERTIFIED", "ssl.keystore.location"),
    ):
        assert expected in failure(kafka, path, "-b", kafka.addresses[listener], *timeout)


def test_a_broker_that_is_not_trusted(kafka: SecuredKafka) -> None:
    path = kafka.properties("SECURE", "PLAIN")
    other = f"ssl.truststore.location={kafka.certificates.other_authority}"
    assert "its certificate is not trusted" in failure(kafka, path, "-X", other)
