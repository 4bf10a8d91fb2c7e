"""`kbroker cluster`: verbs are in `description`, `health`, `versions`, `quorum` and `log_dirs`."""

from __future__ import annotations

import typer

from kbroker.cli.cluster.description import BROKERS_EPILOG, INFO_EPILOG, brokers, info
from kbroker.cli.cluster.health import HEALTH_EPILOG, health
from kbroker.cli.cluster.log_dirs import LOG_DIRS_EPILOG, log_dirs
from kbroker.cli.cluster.quorum import QUORUM_EPILOG, quorum
from kbroker.cli.cluster.versions import (
    API_VERSIONS_EPILOG,
    FEATURES_EPILOG,
    api_versions,
    features,
)

EPILOG = """
\b
Examples:
  kbroker cluster info
  kbroker cluster health
"""
app = typer.Typer(
    help="Show a cluster, its health and its brokers.",
    epilog=EPILOG,
    add_completion=False,
    rich_markup_mode=None,
)

app.command("info", epilog=INFO_EPILOG)(info)
app.command("brokers", epilog=BROKERS_EPILOG)(brokers)
app.command("health", epilog=HEALTH_EPILOG)(health)
app.command("api-versions", epilog=API_VERSIONS_EPILOG)(api_versions)
app.command("features", epilog=FEATURES_EPILOG)(features)
app.command("quorum", epilog=QUORUM_EPILOG)(quorum)
app.command("log-dirs", epilog=LOG_DIRS_EPILOG)(log_dirs)
