"""Keys without effect are reported once, with the key that was probably meant."""

from __future__ import annotations

import logging

import pytest

from kbroker.settings.broker import BrokerConfig
from kbroker.settings.tables.served import OWN_KEYS, QUIET_KEYS, SERVED_KEYS
from kbroker.settings.warnings import warnings_for


def test_unknown_keys_are_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        broker = BrokerConfig.from_properties(
            {
                "log.retention.hurs": "3",
                "my.key": "1",
                "ssl.keystore.location": "x",
                "alter.log.dirs.replication.quota.window.num": "3",
                "listener.name.internal.ssl.key.password": "hunter2",
                "num.io.threads": "8",
            }
        )
    assert broker.warnings == (
        "log.retention.hurs: unknown key, ignored; did you mean log.retention.hours?",
        "my.key: unknown key, ignored",
        "these keys of Kafka have no effect in this version of kbroker: "
        "alter.log.dirs.replication.quota.window.num, listener.name.internal.ssl.key.password, "
        "ssl.keystore.location",
    )
    assert [record.getMessage() for record in caplog.records] == [
        f"properties: {line}" for line in broker.warnings
    ]
    assert "hunter2" not in caplog.text
    assert broker.explicit["my.key"] == "1"


def test_keys_that_do_something_are_not_named() -> None:
    assert warnings_for([*SERVED_KEYS, *QUIET_KEYS, *OWN_KEYS]) == []
    assert warnings_for([]) == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("log.retention.hurs", "log.retention.hours"),
        ("listener", "listeners"),
        ("completely.different", None),
        ("", None),
    ],
)
def test_what_was_probably_meant(name: str, meant: str | None) -> None:
    (line,) = warnings_for([name])
    assert line.startswith(f"{name}: unknown key, ignored")
    assert ("did you mean" in line) == (meant is not None)
    assert (meant or "") in line


@pytest.mark.parametrize(
    "name",
    ["super.users", "listener.name.x.ssl.key.password", "rsm.config.a", "config.providers.file"],
)
def test_keys_of_kafka_s_plugins_are_its_own_not_unknown(name: str) -> None:
    assert warnings_for([name]) == [
        f"these keys of Kafka have no effect in this version of kbroker: {name}"
    ]
