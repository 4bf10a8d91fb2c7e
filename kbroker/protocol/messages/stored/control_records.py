"""Keys and values of control records, and the quorum-state file."""

from __future__ import annotations

from kbroker.model import Uuid
from kbroker.protocol.codecs.schema import (
    Data,
    Struct,
    array,
    int16,
    int32,
    int64,
    string,
    struct,
    uint16,
    uuid,
)


class ControlRecordTypeSchema(Data, versions="0"):
    type: int = int16("0+")


class EndTxnMarker(Data, versions="0"):
    coordinator_epoch: int = int32("0+")


class LeaderChangeMessage(Data, versions="0-1", flexible="0+"):
    class Voter(Struct):
        voter_id: int = int32("0+")
        voter_directory_id: Uuid = uuid("1+")

    version: int = int16("0+")
    leader_id: int = int32("0+")
    voters: list[LeaderChangeMessage.Voter] = array("Voter", "0+")
    granting_voters: list[LeaderChangeMessage.Voter] = array("Voter", "0+")


class SnapshotHeaderRecord(Data, versions="0", flexible="0+"):
    version: int = int16("0+")
    last_contained_log_timestamp: int = int64("0+")


class SnapshotFooterRecord(Data, versions="0", flexible="0+"):
    version: int = int16("0+")


class KRaftVersionRecord(Data, versions="0", flexible="0+"):
    version: int = int16("0+")
    k_raft_version: int = int16("0+")


class VotersRecord(Data, versions="0", flexible="0+"):
    class Endpoint(Struct):
        name: str = string("0+")
        host: str = string("0+")
        port: int = uint16("0+")

    class KRaftVersionFeature(Struct):
        min_supported_version: int = int16("0+")
        max_supported_version: int = int16("0+")

    class Voter(Struct):
        voter_id: int = int32("0+")
        voter_directory_id: Uuid = uuid("0+")
        endpoints: list[VotersRecord.Endpoint] = array("Endpoint", "0+")
        k_raft_version_feature: VotersRecord.KRaftVersionFeature = struct(
            "KRaftVersionFeature", "0+"
        )

    version: int = int16("0+")
    voters: list[VotersRecord.Voter] = array("Voter", "0+")


class QuorumStateData(Data, versions="0-1", flexible="0+"):
    class Voter(Struct):
        voter_id: int = int32("0")

    cluster_id: str = string("0")
    leader_id: int = int32("0+", default=-1)
    leader_epoch: int = int32("0+", default=-1)
    voted_id: int = int32("0+", default=-1)
    voted_directory_id: Uuid = uuid("1+")
    applied_offset: int = int64("0")
    current_voters: list[QuorumStateData.Voter] | None = array("Voter", "0", nullable="0")
