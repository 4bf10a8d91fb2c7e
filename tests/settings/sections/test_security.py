"""A broker with security settings that this version does not implement does not start."""

from __future__ import annotations

import pytest

from kbroker.model import StartupError
from kbroker.settings.broker import BrokerConfig

KAFKA_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("authorizer.class.name", KAFKA_AUTHORIZER),
        ("super.users", "User:admin"),
        ("allow.everyone.if.no.acl.found", "false"),
        ("principal.builder.class", "com.example.Builder"),
        ("security.inter.broker.protocol", "SASL_SSL"),
        ("delegation.token.secret.key", "hunter2"),
        ("delegation.token.master.key", "hunter2"),
        ("connections.max.reauth.ms", "3600000"),
        ("sasl.enabled.mechanisms", "SCRAM-SHA-512"),
        ("sasl.jaas.config", "com.example.PlainLoginModule required password=hunter2;"),
        ("sasl.server.callback.handler.class", "com.example.Handler"),
        ("sasl.mechanism.inter.broker.protocol", "PLAIN"),
        ("ssl.client.auth", "required"),
        ("ssl.client.auth", "requested"),
        ("ssl.principal.mapping.rules", "RULE:^CN=(.*?)$/$1/"),
        ("listener.name.plaintext.ssl.client.auth", "required"),
        ("listener.name.outside.sasl.enabled.mechanisms", "PLAIN"),
        ("listener.name.outside.plain.sasl.jaas.config", "x required password=hunter2;"),
        ("listener.name.outside.scram-sha-256.sasl.jaas.config", "x required;"),
        ("listener.name.outside.principal.builder.class", "com.example.Builder"),
    ],
)
def test_security_that_is_not_there(name: str, value: str) -> None:
    with pytest.raises(StartupError) as caught:
        BrokerConfig.from_properties({name: value}, source="server.properties")
    said = str(caught.value)
    assert said.startswith("server.properties: ")
    assert "authenticates no clients and checks no permissions" in said
    assert name in said or name == "delegation.token.master.key"
    assert "allowed: leave it out" in said
    assert "\n" not in said
    assert "hunter2" not in said


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("authorizer.class.name", ""),
        ("super.users", ""),
        ("allow.everyone.if.no.acl.found", "true"),
        ("security.inter.broker.protocol", "PLAINTEXT"),
        ("connections.max.reauth.ms", "0"),
        ("sasl.enabled.mechanisms", "GSSAPI"),
        ("ssl.client.auth", "none"),
        ("ssl.principal.mapping.rules", "DEFAULT"),
        ("ssl.keystore.location", "/etc/kafka/keys.jks"),
        ("listener.name.inside.ssl.keystore.location", "/etc/kafka/keys.jks"),
    ],
)
def test_what_promises_nothing_is_no_mistake(name: str, value: str) -> None:
    BrokerConfig.from_properties({name: value})


def test_all_of_them_are_named_in_one_line() -> None:
    with pytest.raises(StartupError) as caught:
        BrokerConfig.load(
            None,
            [
                f"authorizer.class.name={KAFKA_AUTHORIZER}",
                "super.users=User:admin",
                "ssl.client.auth=required",
            ],
        )
    assert str(caught.value).startswith("--override authorizer.class.name=")
    assert "as do super.users, ssl.client.auth" in str(caught.value)


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("name", ["OUTSIDE", "CONTROLLER"])
def test_a_listener_with_a_protocol_that_is_not_served(protocol: str, name: str) -> None:
    """The controllers' too, whether or not this version opens it."""
    properties = {
        "listeners": f"PLAINTEXT://:9092,{name}://:9093",
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{name}:{protocol}",
        "controller.listener.names": "CONTROLLER",
    }
    with pytest.raises(StartupError, match=f"listener {name} uses {protocol}, which this version"):
        BrokerConfig.from_properties(properties)
