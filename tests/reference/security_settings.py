"""The conversation about the settings of TLS and SASL that Kafka lets be altered while a broker
runs, held with a broker whose listeners are all PLAINTEXT: each key without a prefix, with that of
the broker's listener and with that of a listener that does not exist, for one broker and for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from kbroker.protocol.messages.admin.configs import DescribeConfigsRequest
from tests.reference.alter_configs import APPEND, BROKER, DELETE, SET, SUBTRACT, alter, replace
from tests.reference.step import Step

PAUSE_S: Final = 0.2
ODD: Final = "no.such"
JAAS: Final = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required"
    ' username="admin" password="hunter2";'
)
PRINCIPALS: Final = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"
ENGINES: Final = "org.apache.kafka.common.security.ssl.DefaultSslEngineFactory"

VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    "principal.builder.class": (PRINCIPALS, ODD, ""),
    "sasl.enabled.mechanisms": ("PLAIN,SCRAM-SHA-256", "PLAIN,,GSSAPI", ""),
    "sasl.jaas.config": (JAAS, ODD),
    "sasl.kerberos.kinit.cmd": ("/bin/kinit", ""),
    "sasl.kerberos.min.time.before.relogin": ("70000", "soon"),
    "sasl.kerberos.principal.to.local.rules": ("RULE:[1:$1@$0](.*@A)s/@.*//,DEFAULT", ODD),
    "sasl.kerberos.service.name": ("kafka", ""),
    "sasl.kerberos.ticket.renew.jitter": ("0.1", "x"),
    "sasl.kerberos.ticket.renew.window.factor": ("0.7", "x"),
    "sasl.login.refresh.buffer.seconds": ("200", "40000", "-1"),
    "sasl.login.refresh.min.period.seconds": ("50", "40000", "901"),
    "sasl.login.refresh.window.factor": ("0.7", "x", "2.0"),
    "sasl.login.refresh.window.jitter": ("0.04", "x", "0.3"),
    "sasl.mechanism.inter.broker.protocol": ("PLAIN", ""),
    "ssl.cipher.suites": ("TLS_AES_128_GCM_SHA256", "a,,b"),
    "ssl.client.auth": ("required", "maybe"),
    "ssl.enabled.protocols": ("TLSv1.2", "TLSv1.2,,TLSv1.3", ODD),
    "ssl.endpoint.identification.algorithm": ("", ODD),
    "ssl.engine.factory.class": (ENGINES, ODD),
    "ssl.key.password": ("hunter2", ""),
    "ssl.keymanager.algorithm": ("PKIX", ODD),
    "ssl.keystore.certificate.chain": ("chain", ""),
    "ssl.keystore.key": ("hunter2", ""),
    "ssl.keystore.location": ("/no/such.p12", ""),
    "ssl.keystore.password": ("hunter2", ""),
    "ssl.keystore.type": ("PKCS12", ODD),
    "ssl.protocol": ("TLSv1.2", ODD),
    "ssl.provider": ("SunJSSE", ODD),
    "ssl.secure.random.implementation": ("SHA1PRNG", ODD),
    "ssl.trustmanager.algorithm": ("SunX509", ODD),
    "ssl.truststore.certificates": ("certificates", ""),
    "ssl.truststore.location": ("/no/such.p12", ""),
    "ssl.truststore.password": ("hunter2", ""),
    "ssl.truststore.type": ("PKCS12", ODD),
}
"""A sensible value of each key, then odd ones."""

READ_ONLY_VALUES: Final[Mapping[str, str]] = {
    "connections.max.reauth.ms": "1000",
    "sasl.server.callback.handler.class": ODD,
    "sasl.server.max.receive.size": "1000",
    "ssl.principal.mapping.rules": "DEFAULT",
}
"""Keys of listeners that can only be set in the file."""

PREFIXES: Final[Mapping[str, str]] = {
    "bare": "",
    "listener": "listener.name.plaintext.",
    "no listener": "listener.name.nosuch.",
}
MECHANISM: Final = "listener.name.plaintext.plain."
SCOPES: Final[Mapping[str, str]] = {"broker": "1", "default": ""}


def told(name: str, *keys: str) -> Step:
    """What the broker tells of these keys of itself, and of all brokers."""
    resources = [
        DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=BROKER, resource_name=broker, configuration_keys=list(keys)
        )
        for broker in SCOPES.values()
    ]
    request = DescribeConfigsRequest(resources=resources, include_synonyms=True)
    return Step(name, 4, lambda _: request)


def key_steps(key: str, title: str, values: tuple[str, ...]) -> Iterator[Step]:
    """One key, for one broker and for all: set to each value, looked at, deleted."""
    for scope, broker in SCOPES.items():
        for value in values:
            named = f"{scope}, {title}"
            yield Step(f"{named}: set {value!r}", 1, alter(BROKER, broker, (key, SET, value)))
            if value == values[0]:
                yield told(f"{named}: told", key)
        yield Step(f"{named}: deleted", 1, alter(BROKER, broker, (key, DELETE, None)))


def odd_steps() -> Iterator[Step]:
    prefix = PREFIXES["listener"]
    for key, value in READ_ONLY_VALUES.items():
        for title, before in (*PREFIXES.items(), ("mechanism", MECHANISM)):
            yield from key_steps(f"{before}{key}", f"{title} {key}", (value,))
    yield from key_steps(f"{MECHANISM}sasl.jaas.config", "mechanism sasl.jaas.config", (JAAS, ODD))
    for key in ("sasl.enabled.mechanisms", "ssl.client.auth"):
        yield from key_steps(f"{MECHANISM}{key}", f"mechanism {key}", VALUES[key][:1])
    upper = "listener.name.PLAINTEXT.ssl.client.auth"
    yield from key_steps(upper, "upper case", ("required", "maybe"))
    yield from key_steps(f"{prefix}ssl.no.such", "unknown with the prefix", ("x",))
    yield from key_steps("ssl.no.such", "unknown", ("x",))
    yield from key_steps("listener.name.plaintext", "no key", ("x",))
    mechanisms = "sasl.enabled.mechanisms"
    for before in ("", prefix):
        name = before + mechanisms
        yield Step(f"append {name}", 1, alter(BROKER, "1", (name, APPEND, "PLAIN,PLAIN")))
        yield told(f"append {name}: told", name)
        yield Step(f"subtract {name}", 1, alter(BROKER, "1", (name, SUBTRACT, "PLAIN,nosuch")))
        yield told(f"subtract {name}: told", name)
        yield Step(f"subtract {name}: deleted", 1, alter(BROKER, "1", (name, DELETE, None)))
    name = f"{prefix}ssl.keystore.password"
    yield Step("append to a password", 1, alter(BROKER, "1", (name, APPEND, "x")))
    pairs = {
        "two without the prefix": ("ssl.keystore.type", "ssl.truststore.type"),
        "one of two": (f"{prefix}ssl.keystore.type", "ssl.keystore.type"),
        "one read-only": (f"{prefix}ssl.keystore.type", "num.partitions"),
        "security and read-only": ("ssl.keystore.type", "num.partitions"),
    }
    for title, keys in pairs.items():
        for scope, broker in SCOPES.items():
            changes = [(key, SET, "7") for key in keys]
            yield Step(f"{title}, {scope}", 1, alter(BROKER, broker, *changes))
    yield told("after what was refused", *pairs["one of two"])
    yield Step(
        "validated",
        1,
        alter(BROKER, "1", (f"{prefix}ssl.keystore.type", SET, "PEM"), validate_only=True),
    )
    yield told("after what was validated", f"{prefix}ssl.keystore.type")
    both = f"{prefix}ssl.client.auth", "ssl.client.auth"
    yield Step("both at once", 1, alter(BROKER, "1", *((key, SET, "required") for key in both)))
    others = f"{prefix}ssl.keystore.type", "ssl.protocol"
    yield Step("both, of a keystore", 1, alter(BROKER, "1", *((key, SET, "x") for key in others)))
    yield Step("both, deleted", 1, alter(BROKER, "1", *((key, DELETE, None) for key in others)))
    nosuch = f"{PREFIXES['no listener']}ssl.protocol", "ssl.protocol"
    yield Step("both, no listener", 1, alter(BROKER, "1", *((key, SET, "x") for key in nosuch)))
    deleted = alter(BROKER, "1", *((key, DELETE, None) for key in nosuch))
    yield Step("no listener deleted", 1, deleted)
    listeners = f"{prefix}ssl.protocol", "listener.security.protocol.map"
    maps = ("TLSv1.2", "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,EXTRA:PLAINTEXT")
    changes = [(key, SET, value) for key, value in zip(listeners, maps, strict=True)]
    yield Step("both, a map", 1, alter(BROKER, "1", *changes))
    mechanism = f"{MECHANISM}sasl.jaas.config", "sasl.jaas.config"
    yield Step("both, a mechanism", 1, alter(BROKER, "1", *((key, SET, "x") for key in mechanism)))
    limits = f"{prefix}max.connections", "ssl.protocol"
    yield Step("both, a limit", 1, alter(BROKER, "1", *((key, SET, "70") for key in limits)))
    yield Step("both, no limit", 1, alter(BROKER, "1", *((key, DELETE, None) for key in limits)))
    replaced = {f"{prefix}ssl.client.auth": "requested", f"{prefix}ssl.protocol": "TLSv1.2"}
    yield Step("replaced", 2, replace(BROKER, "1", **replaced))
    yield told("replaced: told", *replaced)
    yield Step("replaced, refused", 2, replace(BROKER, "1", ssl_keystore_type="JKS"))
    yield Step("replaced by nothing", 2, replace(BROKER, "1"))
    yield told("replaced by nothing: told", *replaced)


BARE: Final = tuple(VALUES)
PREFIXED: Final = tuple(prefix + key for prefix in PREFIXES.values() if prefix for key in VALUES)


def sensible(name: str) -> str:
    """The sensible value of a key, whatever its prefix."""
    return next(values[0] for key, values in VALUES.items() if name.endswith(key))


def altered_one_by_one(title: str, names: tuple[str, ...], operation: int) -> Iterator[Step]:
    """Each key of broker 1 set, or deleted."""
    for name in names:
        value = sensible(name) if operation == SET else None
        yield Step(f"{title}: {name}", 1, alter(BROKER, "1", (name, operation, value)))


def security_steps() -> Iterator[Step]:
    """The whole conversation; at its end every key is set that can be without a prefix."""
    limit = f"{PREFIXES['listener']}max.connections"
    for number in range(3):
        yield Step(f"first {number}", 1, alter(BROKER, "1", (limit, SET, "7"), (limit, SET, "8")))
        yield Step(f"first {number}, set", 1, alter(BROKER, "1", (limit, SET, f"9{number}")))
        yield Step(f"first {number}, deleted", 1, alter(BROKER, "1", (limit, DELETE, None)))
    yield from key_steps(limit, "a limit of a listener", ("70", "x"))
    for key, values in VALUES.items():
        for title, prefix in PREFIXES.items():
            yield from key_steps(prefix + key, f"{title} {key}", values)
    yield from odd_steps()
    yield from altered_one_by_one("bare", BARE, SET)
    yield told("bare: told", *BARE)


def first_restart_steps() -> Iterator[Step]:
    """Asked of the broker when it has been started again; then the keys have prefixes."""
    yield told("bare: told after a restart", *BARE)
    yield from altered_one_by_one("bare deleted", BARE, DELETE)
    yield from altered_one_by_one("prefixed", PREFIXED, SET)
    yield told("prefixed: told", *PREFIXED)


BOTH: Final = ("ssl.protocol", "listener.name.plaintext.ssl.protocol")


def second_restart_steps() -> Iterator[Step]:
    """After another start; at the end a key is set both with and without a prefix."""
    yield told("prefixed: told after a restart", *PREFIXED)
    yield Step("bare beside prefixed", 1, alter(BROKER, "1", (BOTH[0], SET, "TLSv1.2")))
    yield Step("bare deleted again", 1, alter(BROKER, "1", (BOTH[0], DELETE, None)))
    yield from altered_one_by_one("prefixed deleted", PREFIXED, DELETE)
    yield from altered_one_by_one("both", BOTH, SET)
    yield told("both: told", *BOTH)


def third_restart_steps() -> Iterator[Step]:
    """After a third one."""
    yield told("both: told after a restart", *BOTH)


RESTARTS: Final = (first_restart_steps, second_restart_steps, third_restart_steps)

FILE: Final[Mapping[str, str]] = {name: sensible(name) for name in (*BARE, *PREFIXED)}
"""Every key, as in the file of a broker."""


def file_steps() -> Iterator[Step]:
    """What a broker tells whose file sets every key."""
    for name in FILE:
        yield told(f"file: {name}", name)
