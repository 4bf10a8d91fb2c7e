"""The first voters of a dynamic quorum (KIP-853), in the form of `kbroker format
--initial-controllers`: `id@host:port:directory-id`, separated by commas (Kafka's DynamicVoters).
"""

from __future__ import annotations

from kbroker.model import StartupError, is_reserved_uuid, uuid_from_string
from kbroker.quorum.raft.voters.voter_set import Voter, VoterEndpoint

MAX_PORT = 65535


def parse_initial_voters(text: str, listener_name: str) -> tuple[Voter, ...]:
    """By id. listener_name: the first of controller.listener.names. Raises StartupError."""
    voters: dict[int, Voter] = {}
    for item in text.strip().split(","):
        if item:
            voter = _parse(item.strip(), listener_name)
            if voter.id in voters:
                raise StartupError(f"Node id {voter.id} was specified more than once.")
            voters[voter.id] = voter
    if not voters:
        raise StartupError("No voters given.")
    return tuple(voters[voter_id] for voter_id in sorted(voters))


def _parse(item: str, listener_name: str) -> Voter:
    number, at, address = item.partition("@")
    if not at:
        raise StartupError(f"{item}: No @ found in dynamic voter string.")
    if not number:
        raise StartupError(f"{item}: Invalid @ at beginning of dynamic voter string.")
    if not (number.isascii() and number.isdecimal() and int(number) < 2**31):
        raise StartupError(f"{item}: Failed to parse node id in dynamic voter string.")
    if not address:
        raise StartupError(f"{item}: No hostname found after node id.")
    if address.startswith("["):
        host, bracket, rest = address[1:].partition("]")
        if not bracket:
            raise StartupError(
                f"{item}: Hostname began with left bracket, but no right bracket was found."
            )
        if not rest.startswith(":"):
            raise StartupError(f"{item}: Port section must start with a colon.")
        rest = rest[1:]
    else:
        host, colon, rest = address.partition(":")
        if not colon:
            raise StartupError(f"{item}: No colon following hostname could be found.")
    port, colon, directory = rest.partition(":")
    if not colon:
        raise StartupError(f"{item}: No colon following port could be found.")
    if not (port.isascii() and port.isdecimal()):
        raise StartupError(f"{item}: Failed to parse port in dynamic voter string.")
    if int(port) > MAX_PORT:
        raise StartupError(f"{item}: Invalid port {port} in dynamic voter string.")
    try:
        directory_id = uuid_from_string(directory)
    except ValueError:
        message = f"{item}: Failed to parse directory ID in dynamic voter string."
        raise StartupError(message) from None
    if is_reserved_uuid(directory_id):
        raise StartupError(f"{item}: Invalid reserved directory ID {directory}.")
    return Voter(int(number), directory_id, (VoterEndpoint(listener_name, host, int(port)),))
