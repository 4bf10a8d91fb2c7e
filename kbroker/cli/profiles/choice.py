"""Which cluster a command speaks to, and with which client properties: the order of precedence.

The command line wins over the environment, and the environment over the current profile. The
current profile is that of one cluster: where something else gives an address, nothing of it
counts, so that the properties of one cluster (a password perhaps) do not reach another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kbroker.cli.console.client_properties import BOOTSTRAP_SERVERS
from kbroker.cli.profiles.store import Profiles

PROFILE_VARIABLE: Final = "KBROKER_PROFILE"


@dataclass(frozen=True, slots=True)
class Given:
    """The settings of the command line and the environment; None where one is not given."""

    option: str | None = None
    """The value of --bootstrap-server."""
    pairs: Mapping[str, str] = field(default_factory=dict)
    """The client properties of all -X options."""
    file: Mapping[str, str] = field(default_factory=dict)
    """The client properties of the file of --command-config."""
    profile: str | None = None
    """The value of --profile."""
    environment: str | None = None
    """The value of KBROKER_BOOTSTRAP."""
    environment_profile: str | None = None
    """The value of KBROKER_PROFILE."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """An address, not checked yet, and client properties."""

    bootstrap: str
    pairs: Mapping[str, str]


def choose(given: Given, read_profiles: Callable[[], Profiles], default: str) -> Chosen:
    """Apply the order of precedence. read_profiles: called only if a profile can count. default:
    the address where nothing gives one. Raises StartupError for a profile that does not exist.
    """
    on_command_line = (
        given.option,
        given.pairs.get(BOOTSTRAP_SERVERS),
        given.file.get(BOOTSTRAP_SERVERS),
    )
    addresses = [*on_command_line]
    profile: dict[str, str] = {}
    if given.profile is not None:
        profile = read_profiles().profile(given.profile).pairs()
        addresses += [profile.get(BOOTSTRAP_SERVERS), given.environment]
    elif given.environment_profile:
        profile = read_profiles().profile(given.environment_profile).pairs()
        addresses += [given.environment, profile.get(BOOTSTRAP_SERVERS)]
    elif given.environment is None and all(address is None for address in on_command_line):
        profiles = read_profiles()
        if profiles.current is not None:
            profile = profiles.profile(profiles.current).pairs()
        addresses.append(profile.get(BOOTSTRAP_SERVERS))
    else:
        addresses.append(given.environment)
    address = next((address for address in addresses if address is not None), default)
    return Chosen(address, {**profile, **given.file, **given.pairs})
