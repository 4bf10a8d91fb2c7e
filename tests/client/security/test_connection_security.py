"""Connections with TLS and SASL to a scripted broker: what they do, and each way it fails."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from kbroker.client.cluster import Client
from kbroker.client.connection import BrokerConnection
from kbroker.client.security import sasl_authentication
from kbroker.client.security.connection_security import ConnectionSecurity
from kbroker.client.security.sasl_properties import Login, SaslProperties, TokenFile
from kbroker.client.security.secret import Secret
from kbroker.client.security.security_properties import SecurityProperties
from kbroker.client.security.tls_properties import TlsProperties
from kbroker.model import StartupError
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.authentication import SaslHandshakeResponse
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.certificates import KEY_PASSWORD, Certificates
from tests.client.conftest import DROP
from tests.client.security.sasl_broker import TOKEN, SaslBroker

Run = Callable[..., None]
METADATA = MetadataRequest(topics=[])
LOGIN = Login("ada", Secret("lovelace"))
ALL = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


def server(certificates: Certificates, keystore: str = "") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keystore or certificates.server)
    return context


def demanding_server(certificates: Certificates) -> ssl.SSLContext:
    """Asks for a certificate of the client."""
    context = server(certificates)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificates.authority)
    return context


def trusting(certificates: Certificates) -> TlsProperties:
    return TlsProperties(truststore_location=certificates.authority)


def tls(properties: TlsProperties) -> ConnectionSecurity:
    return ConnectionSecurity(SecurityProperties(tls=properties))


def sasl(mechanism: str, login: Login | TokenFile = LOGIN) -> ConnectionSecurity:
    return ConnectionSecurity(SecurityProperties(sasl=SaslProperties(mechanism, login)))


async def connect(
    broker: Any, security: ConnectionSecurity | None, host: str = "127.0.0.1"
) -> BrokerConnection:
    return await BrokerConnection.connect(
        host, broker.port, "tests", timeout_s=10, security=security
    )


@contextmanager
def blocking_server(context: ssl.SSLContext) -> Iterator[int]:
    """A port where handshakes fail as with OpenSSL and Java, with an alert; asyncio's servers send
    none.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            accepted, _ = listener.accept()
            with accepted.dup() as kept:
                with suppress(OSError), context.wrap_socket(accepted, server_side=True) as tls:
                    tls.recv(1)
                kept.shutdown(socket.SHUT_WR)
                while kept.recv(4096):  # else a reset may overtake the alert
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(20)


def refused_with_alert(context: ssl.SSLContext, properties: TlsProperties) -> str:
    with blocking_server(context) as port, pytest.raises(StartupError) as caught:
        asyncio.run(
            BrokerConnection.connect("127.0.0.1", port, timeout_s=10, security=tls(properties))
        )
    assert str(caught.value).startswith(f"127.0.0.1:{port}: TLS failed (")
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def refused(broker: Any, security: ConnectionSecurity | None) -> str:
    """The error of TLS, which stays."""
    with pytest.raises(StartupError) as caught:
        await connect(broker, security)
    text = str(caught.value)
    assert text.startswith(f"127.0.0.1:{broker.port}: ")
    assert "\n" not in text
    return text


# -- TLS ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_trusted_broker(run: Run, certificates: Certificates, host: str) -> None:
    async def test(broker: Any) -> None:
        connection = await connect(broker, tls(trusting(certificates)), host)
        response = await connection.request(METADATA, MetadataResponse)
        assert response.cluster_id == "fake"
        connection.close()
        await connection.wait_closed()
        assert connection.is_gone

    run(test, server(certificates))


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_each_version(run: Run, certificates: Certificates, version: str) -> None:
    properties = TlsProperties(truststore_location=certificates.authority, versions=(version,))

    async def test(broker: Any) -> None:
        connection = await connect(broker, tls(properties))
        assert connection._transport is not None
        assert connection._transport.get_extra_info("ssl_object").version() == version
        connection.close()
        await connection.wait_closed()

    run(test, server(certificates))


def test_a_certificate_itself_may_be_trusted(run: Run, certificates: Certificates) -> None:
    """As with Java, where every certificate of a truststore is an anchor."""
    properties = TlsProperties(truststore_location=certificates.server)

    async def test(broker: Any) -> None:
        async with Client(broker.address, security=tls(properties)) as client:
            await client.metadata(["events"])

    run(test, server(certificates))


def test_a_broker_that_is_not_trusted(run: Run, certificates: Certificates) -> None:
    async def test(broker: Any) -> None:
        other = TlsProperties(truststore_location=certificates.other_authority)
        for properties in (TlsProperties(), other):
            text = await refused(broker, tls(properties))
            assert "its certificate is not trusted" in text
            assert "ssl.truststore.location" in text

    run(test, server(certificates))


def test_a_name_that_is_not_in_the_certificate(run: Run, certificates: Certificates) -> None:
    async def test(broker: Any) -> None:
        text = await refused(broker, tls(trusting(certificates)))
        assert "certificate is not valid for '127.0.0.1'" in text
        assert "ssl.endpoint.identification.algorithm" in text
        unchecked = TlsProperties(truststore_location=certificates.authority, check_hostname=False)
        async with Client(broker.address, security=tls(unchecked)) as client:
            await client.metadata(["events"])
        other = TlsProperties(
            truststore_location=certificates.other_authority, check_hostname=False
        )
        assert "is not trusted" in await refused(broker, tls(other))

    run(test, server(certificates, certificates.elsewhere))


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_certificate_of_the_client(run: Run, certificates: Certificates, version: str) -> None:
    """In TLS 1.3 the refusal follows after the handshake."""

    async def test(broker: Any) -> None:
        accepted = TlsProperties(
            truststore_location=certificates.authority,
            keystore_location=certificates.encrypted_client,
            key_password=Secret(KEY_PASSWORD),
            versions=(version,),
        )
        async with Client(broker.address, security=tls(accepted)) as client:
            await client.metadata(["events"])

    run(test, demanding_server(certificates))
    none = TlsProperties(truststore_location=certificates.authority, versions=(version,))
    text = refused_with_alert(demanding_server(certificates), none)
    assert text.endswith("see ssl.keystore.location")


def test_no_version_in_common(certificates: Certificates) -> None:
    context = server(certificates)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    properties = TlsProperties(truststore_location=certificates.authority, versions=("TLSv1.2",))
    assert refused_with_alert(context, properties).endswith("see ssl.enabled.protocols")


def test_tls_to_a_broker_without(certificates: Certificates) -> None:
    """Kafka takes the handshake for a request of 369 MB, and hangs up."""

    async def test() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            assert int.from_bytes(await reader.readexactly(4), "big") > 100 * 1024 * 1024
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(KafkaError) as caught:
            await BrokerConnection.connect(
                "127.0.0.1", port, timeout_s=10, security=tls(trusting(certificates))
            )
        assert caught.value.code is ErrorCode.NETWORK_EXCEPTION
        assert "security.protocol" in caught.value.message
        server.close()
        await server.wait_closed()

    asyncio.run(test())


def test_no_tls_to_a_broker_with_it() -> None:
    """Java's TLS answers with an alert."""

    async def test() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(4)
            writer.write(b"\x15\x03\x03\x00\x02\x02\x50")
            await reader.read()
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(StartupError) as caught:
            async with Client(f"127.0.0.1:{port}"):
                pass
        assert str(caught.value) == (
            f"no broker answers: 127.0.0.1:{port}: it speaks TLS: set security.protocol to SSL or "
            "SASL_SSL"
        )
        server.close()
        await server.wait_closed()

    asyncio.run(test())


def test_a_reset_that_overtakes_an_alert(run: Run, certificates: Certificates) -> None:
    async def test(broker: Any) -> None:
        broker.script(ApiKey.API_VERSIONS, DROP)
        with pytest.raises(KafkaError) as caught:
            await connect(broker, tls(trusting(certificates)))
        assert caught.value.code is ErrorCode.NETWORK_EXCEPTION
        assert "ssl.keystore.location" in caught.value.message

    run(test, server(certificates))


def test_no_tls_to_a_broker_that_hangs_up(run: Run) -> None:
    """As Java does that knows no message in what it received."""

    async def test(broker: Any) -> None:
        broker.script(ApiKey.API_VERSIONS, DROP)
        with pytest.raises(KafkaError) as caught:
            await connect(broker, None)
        assert caught.value.code is ErrorCode.NETWORK_EXCEPTION
        assert caught.value.message.endswith("if its listener speaks TLS, set security.protocol")

    run(test)


# -- SASL -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ALL)
def test_mechanisms(run: Run, mechanism: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    credentials = TokenFile(str(token)) if mechanism == "OAUTHBEARER" else LOGIN

    async def test(broker: Any) -> None:
        made = SaslBroker(broker, ALL)
        async with Client(broker.address, security=sasl(mechanism, credentials)) as client:
            await client.metadata(["events"])
        assert made.authenticated == 1
        keys = [key for key, _, _ in broker.requests]
        rounds = keys.count(ApiKey.SASL_AUTHENTICATE)
        assert rounds == (2 if mechanism.startswith("SCRAM") else 1)
        first = [ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, *[ApiKey.SASL_AUTHENTICATE] * rounds]
        assert keys == [*first, ApiKey.METADATA]

    run(test)


def test_sasl_over_tls(run: Run, certificates: Certificates) -> None:
    properties = SecurityProperties(
        tls=trusting(certificates), sasl=SaslProperties("SCRAM-SHA-512", LOGIN)
    )

    async def test(broker: Any) -> None:
        made = SaslBroker(broker, ALL)
        async with Client(broker.address, security=ConnectionSecurity(properties)) as client:
            await client.metadata(["events"])
            await client.connection(broker.host, broker.port, "another")
        assert made.authenticated == 2

    run(test, server(certificates))


@pytest.mark.parametrize("mechanism", ALL)
def test_who_is_not_known(run: Run, mechanism: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("another")
    wrong = Login("ada", Secret("hush"))
    credentials = TokenFile(str(token)) if mechanism == "OAUTHBEARER" else wrong

    async def test(broker: Any) -> None:
        SaslBroker(broker, ALL)
        with pytest.raises(KafkaError) as caught:
            async with Client(broker.address, security=sasl(mechanism, credentials)):
                pass
        assert str(caught.value) == (
            f"SASL_AUTHENTICATION_FAILED: {broker.address}: Authentication failed: Invalid "
            "username or password; check sasl.jaas.config and sasl.mechanism"
        )

    run(test)


def test_a_mechanism_that_the_broker_has_not(run: Run) -> None:
    async def test(broker: Any) -> None:
        SaslBroker(broker, ["PLAIN"])
        with pytest.raises(KafkaError) as caught:
            async with Client(broker.address, security=sasl("SCRAM-SHA-256")):
                pass
        assert caught.value.code is ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert (
            f"{broker.address}: SCRAM-SHA-256 is not among its mechanisms (PLAIN)"
            in caught.value.message
        )

    run(test)


def test_a_broker_without_sasl(run: Run) -> None:
    async def test(broker: Any) -> None:
        with pytest.raises(KafkaError, match=r"ILLEGAL_SASL_STATE: .* asks for no SASL"):
            await connect(broker, sasl("PLAIN"))
        SaslBroker(broker, ALL)
        answer = SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        broker.script(ApiKey.SASL_HANDSHAKE, answer)
        with pytest.raises(KafkaError, match=r"ILLEGAL_SASL_STATE: .* asks for no SASL"):
            await connect(broker, sasl("PLAIN"))

    run(test)


def test_a_broker_that_asks_for_sasl(run: Run) -> None:
    """Kafka closes the connection at the first request that is not of SASL."""

    async def test(broker: Any) -> None:
        SaslBroker(broker, ALL)
        connection = await connect(broker, None)
        broker.script(ApiKey.METADATA, lambda request, version: broker.drop_connections())
        with pytest.raises(KafkaError) as caught:
            await connection.request(METADATA, MetadataResponse)
        assert caught.value.message.endswith("asks for SASL, set security.protocol")

    run(test)


def test_a_token_is_read_again_for_each_connection(run: Run, tmp_path: Path) -> None:
    token = tmp_path / "token"
    security = sasl("OAUTHBEARER", TokenFile(str(token)))

    async def test(broker: Any) -> None:
        made = SaslBroker(broker, ALL)
        with pytest.raises(StartupError, match="cannot read it: No such file"):
            await connect(broker, security)
        token.write_text(" \n")
        with pytest.raises(StartupError, match="is empty; it has no token"):
            await connect(broker, security)
        token.write_text(TOKEN)
        (await connect(broker, security)).close()
        assert made.authenticated == 1

    run(test)


# -- sessions that end (KIP-368) ------------------------------------------------------------------


def test_a_session_is_renewed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a request, in between no others, and these in their order."""
    monkeypatch.setattr(sasl_authentication, "LIFETIME_USED", 0.0)  # at once
    topics = [f"t{number}" for number in range(20)]

    async def test(broker: Any) -> None:
        made = SaslBroker(broker, ALL, lifetime_ms=60_000)
        connection = await connect(broker, sasl("SCRAM-SHA-256"))
        requests = [
            MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)])
            for name in topics
        ]
        await asyncio.gather(
            *(connection.request(request, MetadataResponse) for request in requests)
        )
        connection.close()
        assert made.authenticated == 1 + len(topics)
        keys = [key for key, _, _ in broker.requests][1:]
        exchange = [ApiKey.SASL_HANDSHAKE, *[ApiKey.SASL_AUTHENTICATE] * 2]
        assert keys == exchange + [*exchange, ApiKey.METADATA] * len(topics)
        asked = [request.topics[0].name for request in broker.asked(ApiKey.METADATA)]
        assert asked == topics

    run(test)


def test_a_session_that_lasts_is_left_alone(run: Run) -> None:
    async def test(broker: Any) -> None:
        made = SaslBroker(broker, ALL, lifetime_ms=3_600_000)
        connection = await connect(broker, sasl("PLAIN"))
        for _ in range(3):
            await connection.request(METADATA, MetadataResponse)
        connection.close()
        assert made.authenticated == 1

    run(test)


def test_a_session_that_is_not_renewed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection ends, and the next one says why."""
    monkeypatch.setattr(sasl_authentication, "LIFETIME_USED", 0.0)

    async def test(broker: Any) -> None:
        SaslBroker(broker, ALL, lifetime_ms=60_000)
        async with Client(broker.address, security=sasl("PLAIN")) as client:
            connection = await client.any_connection()
            SaslBroker(broker, ["SCRAM-SHA-256"])
            with pytest.raises(KafkaError) as caught:
                await connection.request(METADATA, MetadataResponse)
            assert caught.value.code is ErrorCode.UNSUPPORTED_SASL_MECHANISM
            assert connection.is_closed
            with pytest.raises(KafkaError) as caught:
                await client.metadata(["events"])
            assert caught.value.code is ErrorCode.UNSUPPORTED_SASL_MECHANISM

    run(test)


def test_a_broker_that_stops_answering_while_a_session_is_renewed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sasl_authentication, "LIFETIME_USED", 0.0)

    async def test(broker: Any) -> None:
        SaslBroker(broker, ALL, lifetime_ms=60_000)
        connection = await connect(broker, sasl("PLAIN"))
        broker.script(ApiKey.SASL_HANDSHAKE, None)
        with pytest.raises(KafkaError) as caught:
            await connection.request(METADATA, MetadataResponse, timeout_s=0.05)
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
        assert connection.is_closed

    run(test)
