"""Client telemetry (KIP-714)."""

from __future__ import annotations

from kbroker.model import Uuid
from kbroker.protocol.codecs.schema import (
    Binary,
    Request,
    Response,
    array,
    binary,
    boolean,
    int8,
    int16,
    int32,
    uuid,
)


class GetTelemetrySubscriptionsRequest(
    Request, api_key=71, versions="0", flexible="0+", listeners="broker"
):
    client_instance_id: Uuid = uuid("0+")


class GetTelemetrySubscriptionsResponse(Response, api_key=71, versions="0", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    client_instance_id: Uuid = uuid("0+")
    subscription_id: int = int32("0+")
    accepted_compression_types: list[int] = array("int8", "0+")
    push_interval_ms: int = int32("0+")
    telemetry_max_bytes: int = int32("0+")
    delta_temporality: bool = boolean("0+")
    requested_metrics: list[str] = array("string", "0+")


class PushTelemetryRequest(Request, api_key=72, versions="0", flexible="0+", listeners="broker"):
    client_instance_id: Uuid = uuid("0+")
    subscription_id: int = int32("0+")
    terminating: bool = boolean("0+")
    compression_type: int = int8("0+")
    metrics: Binary = binary("0+")


class PushTelemetryResponse(Response, api_key=72, versions="0", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
