"""The broker configurations of security: sasl.*, ssl.*, delegation.*, security.*.

The columns are explained in table.py, which joins the tables.
"""

from __future__ import annotations

from typing import Final

from kbroker.settings.tables.keys import HIGH, LOW, MEDIUM, PER_BROKER, ConfigType
from kbroker.settings.tables.keys import ConfigKey as K

BOOLEAN: Final = ConfigType.BOOLEAN
CLASS: Final = ConfigType.CLASS
DOUBLE: Final = ConfigType.DOUBLE
INT: Final = ConfigType.INT
LIST: Final = ConfigType.LIST
LONG: Final = ConfigType.LONG
PASSWORD: Final = ConfigType.PASSWORD
SHORT: Final = ConfigType.SHORT
STRING: Final = ConfigType.STRING

SECURITY_ROWS: Final = (
    K("delegation.token.expiry.check.interval.ms", LONG, "3600000", "[1,...]", LOW),
    K("delegation.token.expiry.time.ms", LONG, "86400000", "[1,...]"),
    K("delegation.token.max.lifetime.ms", LONG, "604800000", "[1,...]"),
    K("delegation.token.secret.key", PASSWORD, None),
    K("sasl.client.callback.handler.class", CLASS, None),
    K("sasl.enabled.mechanisms", LIST, "GSSAPI", "", MEDIUM, PER_BROKER),
    K("sasl.jaas.config", PASSWORD, None, "", MEDIUM, PER_BROKER),
    K("sasl.kerberos.kinit.cmd", STRING, "/usr/bin/kinit", "", MEDIUM, PER_BROKER),
    K("sasl.kerberos.min.time.before.relogin", LONG, "60000", "", MEDIUM, PER_BROKER),
    K("sasl.kerberos.principal.to.local.rules", LIST, "DEFAULT", "", MEDIUM, PER_BROKER),
    K("sasl.kerberos.service.name", STRING, None, "", MEDIUM, PER_BROKER),
    K("sasl.kerberos.ticket.renew.jitter", DOUBLE, "0.05", "", MEDIUM, PER_BROKER),
    K("sasl.kerberos.ticket.renew.window.factor", DOUBLE, "0.8", "", MEDIUM, PER_BROKER),
    K("sasl.login.callback.handler.class", CLASS, None),
    K("sasl.login.class", CLASS, None),
    K("sasl.login.connect.timeout.ms", INT, None, "", LOW),
    K("sasl.login.read.timeout.ms", INT, None, "", LOW),
    K("sasl.login.refresh.buffer.seconds", SHORT, "300", "", MEDIUM, PER_BROKER),
    K("sasl.login.refresh.min.period.seconds", SHORT, "60", "", MEDIUM, PER_BROKER),
    K("sasl.login.refresh.window.factor", DOUBLE, "0.8", "", MEDIUM, PER_BROKER),
    K("sasl.login.refresh.window.jitter", DOUBLE, "0.05", "", MEDIUM, PER_BROKER),
    K("sasl.login.retry.backoff.max.ms", LONG, "10000", "", LOW),
    K("sasl.login.retry.backoff.ms", LONG, "100", "", LOW),
    K("sasl.mechanism.controller.protocol", STRING, "GSSAPI", "", HIGH),
    K("sasl.mechanism.inter.broker.protocol", STRING, "GSSAPI", "", MEDIUM, PER_BROKER),
    K("sasl.oauthbearer.assertion.algorithm", STRING, "RS256", "(case insensitive) [ES256, RS256]"),
    K("sasl.oauthbearer.assertion.claim.aud", STRING, None),
    K("sasl.oauthbearer.assertion.claim.exp.seconds", INT, "300", "[0,...,86400]", LOW),
    K("sasl.oauthbearer.assertion.claim.iss", STRING, None),
    K("sasl.oauthbearer.assertion.claim.jti.include", BOOLEAN, "false"),
    K("sasl.oauthbearer.assertion.claim.nbf.seconds", INT, "60", "[0,...,3600]", LOW),
    K("sasl.oauthbearer.assertion.claim.sub", STRING, None),
    K("sasl.oauthbearer.assertion.file", STRING, None),
    K("sasl.oauthbearer.assertion.private.key.file", STRING, None),
    K("sasl.oauthbearer.assertion.private.key.passphrase", PASSWORD, None),
    K("sasl.oauthbearer.assertion.template.file", STRING, None),
    K("sasl.oauthbearer.client.credentials.client.id", STRING, None),
    K("sasl.oauthbearer.client.credentials.client.secret", PASSWORD, None),
    K("sasl.oauthbearer.clock.skew.seconds", INT, "30", "", LOW),
    K("sasl.oauthbearer.expected.audience", LIST, "", "", HIGH),
    K("sasl.oauthbearer.expected.issuer", STRING, None, "", HIGH),
    K("sasl.oauthbearer.jwks.endpoint.refresh.ms", LONG, "3600000", "", LOW),
    K("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", LONG, "10000", "", LOW),
    K("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", LONG, "100", "", LOW),
    K("sasl.oauthbearer.jwks.endpoint.url", STRING, None),
    K(
        "sasl.oauthbearer.jwt.retriever.class",
        CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
    ),
    K(
        "sasl.oauthbearer.jwt.validator.class",
        CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
    ),
    K("sasl.oauthbearer.scope", STRING, None),
    K("sasl.oauthbearer.scope.claim.name", STRING, "scope", "", LOW),
    K("sasl.oauthbearer.sub.claim.name", STRING, "sub", "", LOW),
    K("sasl.oauthbearer.token.endpoint.url", STRING, None),
    K("sasl.server.callback.handler.class", CLASS, None),
    K("sasl.server.max.receive.size", INT, "524288"),
    K(
        "security.inter.broker.protocol",
        STRING,
        "PLAINTEXT",
        "[PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL]",
    ),
    K("security.providers", STRING, None, "", LOW),
    K("ssl.allow.dn.changes", BOOLEAN, "false", "", LOW),
    K("ssl.allow.san.changes", BOOLEAN, "false", "", LOW),
    K("ssl.cipher.suites", LIST, "", "", MEDIUM, PER_BROKER),
    K("ssl.client.auth", STRING, "none", "[required, requested, none]", MEDIUM, PER_BROKER),
    K("ssl.enabled.protocols", LIST, "TLSv1.2,TLSv1.3", "", MEDIUM, PER_BROKER),
    K("ssl.endpoint.identification.algorithm", STRING, "https", "", LOW, PER_BROKER),
    K("ssl.engine.factory.class", CLASS, None, "", LOW, PER_BROKER),
    K("ssl.key.password", PASSWORD, None, "", MEDIUM, PER_BROKER),
    K("ssl.keymanager.algorithm", STRING, "SunX509", "", MEDIUM, PER_BROKER),
    K("ssl.keystore.certificate.chain", PASSWORD, None, "", MEDIUM, PER_BROKER),
    K("ssl.keystore.key", PASSWORD, None, "", MEDIUM, PER_BROKER),
    K("ssl.keystore.location", STRING, None, "", MEDIUM, PER_BROKER),
    K("ssl.keystore.password", PASSWORD, None, "", MEDIUM, PER_BROKER),
    K("ssl.keystore.type", STRING, "JKS", "", MEDIUM, PER_BROKER),
    K("ssl.principal.mapping.rules", STRING, "DEFAULT", "", LOW),
    K("ssl.protocol", STRING, "TLSv1.3", "", MEDIUM, PER_BROKER),
    K("ssl.provider", STRING, None, "", MEDIUM, PER_BROKER),
    K("ssl.secure.random.implementation", STRING, None, "", LOW, PER_BROKER),
    K("ssl.trustmanager.algorithm", STRING, "PKIX", "", MEDIUM, PER_BROKER),
    K("ssl.truststore.certificates", PASSWORD, None, "", MEDIUM, PER_BROKER),
    K("ssl.truststore.location", STRING, None, "", MEDIUM, PER_BROKER),
    K("ssl.truststore.password", PASSWORD, None, "", MEDIUM, PER_BROKER),
    K("ssl.truststore.type", STRING, "JKS", "", MEDIUM, PER_BROKER),
)
