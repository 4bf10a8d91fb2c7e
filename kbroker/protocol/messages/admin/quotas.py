"""Client quotas (KIP-546)."""

from __future__ import annotations

from kbroker.protocol.codecs.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    float64,
    int8,
    int16,
    int32,
    string,
)


class DescribeClientQuotasRequest(
    Request, api_key=48, versions="0-1", flexible="1+", listeners="broker"
):
    class ComponentData(Struct):
        entity_type: str = string("0+")
        match_type: int = int8("0+")
        match: str | None = string("0+", nullable="0+")

    components: list[DescribeClientQuotasRequest.ComponentData] = array("ComponentData", "0+")
    strict: bool = boolean("0+")


class DescribeClientQuotasResponse(Response, api_key=48, versions="0-1", flexible="1+"):
    class EntityData(Struct):
        entity_type: str = string("0+")
        entity_name: str | None = string("0+", nullable="0+")

    class ValueData(Struct):
        key: str = string("0+")
        value: float = float64("0+")

    class EntryData(Struct):
        entity: list[DescribeClientQuotasResponse.EntityData] = array("EntityData", "0+")
        values: list[DescribeClientQuotasResponse.ValueData] = array("ValueData", "0+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    entries: list[DescribeClientQuotasResponse.EntryData] | None = array(
        "EntryData", "0+", nullable="0+"
    )


class AlterClientQuotasRequest(
    Request, api_key=49, versions="0-1", flexible="1+", listeners="broker controller"
):
    class EntityData(Struct):
        entity_type: str = string("0+")
        entity_name: str | None = string("0+", nullable="0+")

    class OpData(Struct):
        key: str = string("0+")
        value: float = float64("0+")
        remove: bool = boolean("0+")

    class EntryData(Struct):
        entity: list[AlterClientQuotasRequest.EntityData] = array("EntityData", "0+")
        ops: list[AlterClientQuotasRequest.OpData] = array("OpData", "0+")

    entries: list[AlterClientQuotasRequest.EntryData] = array("EntryData", "0+")
    validate_only: bool = boolean("0+")


class AlterClientQuotasResponse(Response, api_key=49, versions="0-1", flexible="1+"):
    class EntityData(Struct):
        entity_type: str = string("0+")
        entity_name: str | None = string("0+", nullable="0+")

    class EntryData(Struct):
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+")
        entity: list[AlterClientQuotasResponse.EntityData] = array("EntityData", "0+")

    throttle_time_ms: int = int32("0+")
    entries: list[AlterClientQuotasResponse.EntryData] = array("EntryData", "0+")
