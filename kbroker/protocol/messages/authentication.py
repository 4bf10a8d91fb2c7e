"""SASL, SCRAM credentials, delegation tokens, and the principal inside an Envelope."""

from __future__ import annotations

from kbroker.protocol.codecs.schema import (
    Binary,
    Data,
    Request,
    Response,
    Struct,
    array,
    binary,
    boolean,
    int8,
    int16,
    int32,
    int64,
    string,
)


class SaslHandshakeRequest(Request, api_key=17, versions="0-1", listeners="broker controller"):
    mechanism: str = string("0+")


class SaslHandshakeResponse(Response, api_key=17, versions="0-1"):
    error_code: int = int16("0+")
    mechanisms: list[str] = array("string", "0+")


class SaslAuthenticateRequest(
    Request, api_key=36, versions="0-2", flexible="2+", listeners="broker controller"
):
    auth_bytes: Binary = binary("0+")


class SaslAuthenticateResponse(Response, api_key=36, versions="0-2", flexible="2+"):
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    auth_bytes: Binary = binary("0+")
    session_lifetime_ms: int = int64("1+", default=0, ignorable=True)


class DescribeUserScramCredentialsRequest(
    Request, api_key=50, versions="0", flexible="0+", listeners="broker controller"
):
    class UserName(Struct):
        name: str = string("0+")

    users: list[DescribeUserScramCredentialsRequest.UserName] | None = array(
        "UserName", "0+", nullable="0+"
    )


class DescribeUserScramCredentialsResponse(Response, api_key=50, versions="0", flexible="0+"):
    class CredentialInfo(Struct):
        mechanism: int = int8("0+")
        iterations: int = int32("0+")

    class DescribeUserScramCredentialsResult(Struct):
        user: str = string("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+")
        credential_infos: list[DescribeUserScramCredentialsResponse.CredentialInfo] = array(
            "CredentialInfo", "0+"
        )

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    results: list[DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult] = array(
        "DescribeUserScramCredentialsResult", "0+"
    )


class AlterUserScramCredentialsRequest(
    Request, api_key=51, versions="0", flexible="0+", listeners="broker controller"
):
    class ScramCredentialDeletion(Struct):
        name: str = string("0+")
        mechanism: int = int8("0+")

    class ScramCredentialUpsertion(Struct):
        name: str = string("0+")
        mechanism: int = int8("0+")
        iterations: int = int32("0+")
        salt: Binary = binary("0+")
        salted_password: Binary = binary("0+")

    deletions: list[AlterUserScramCredentialsRequest.ScramCredentialDeletion] = array(
        "ScramCredentialDeletion", "0+"
    )
    upsertions: list[AlterUserScramCredentialsRequest.ScramCredentialUpsertion] = array(
        "ScramCredentialUpsertion", "0+"
    )


class AlterUserScramCredentialsResponse(Response, api_key=51, versions="0", flexible="0+"):
    class AlterUserScramCredentialsResult(Struct):
        user: str = string("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+")

    throttle_time_ms: int = int32("0+")
    results: list[AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult] = array(
        "AlterUserScramCredentialsResult", "0+"
    )


class CreateDelegationTokenRequest(
    Request, api_key=38, versions="0-3", flexible="2+", listeners="broker controller"
):
    class CreatableRenewers(Struct):
        principal_type: str = string("0+")
        principal_name: str = string("0+")

    owner_principal_type: str | None = string("3+", nullable="3+")
    owner_principal_name: str | None = string("3+", nullable="3+")
    renewers: list[CreateDelegationTokenRequest.CreatableRenewers] = array(
        "CreatableRenewers", "0+"
    )
    max_lifetime_ms: int = int64("0+")


class CreateDelegationTokenResponse(Response, api_key=38, versions="0-3", flexible="2+"):
    error_code: int = int16("0+")
    principal_type: str = string("0+")
    principal_name: str = string("0+")
    token_requester_principal_type: str = string("3+")
    token_requester_principal_name: str = string("3+")
    issue_timestamp_ms: int = int64("0+")
    expiry_timestamp_ms: int = int64("0+")
    max_timestamp_ms: int = int64("0+")
    token_id: str = string("0+")
    hmac: Binary = binary("0+")
    throttle_time_ms: int = int32("0+")


class RenewDelegationTokenRequest(
    Request, api_key=39, versions="0-2", flexible="2+", listeners="broker controller"
):
    hmac: Binary = binary("0+")
    renew_period_ms: int = int64("0+")


class RenewDelegationTokenResponse(Response, api_key=39, versions="0-2", flexible="2+"):
    error_code: int = int16("0+")
    expiry_timestamp_ms: int = int64("0+")
    throttle_time_ms: int = int32("0+")


class ExpireDelegationTokenRequest(
    Request, api_key=40, versions="0-2", flexible="2+", listeners="broker controller"
):
    hmac: Binary = binary("0+")
    expiry_time_period_ms: int = int64("0+")


class ExpireDelegationTokenResponse(Response, api_key=40, versions="0-2", flexible="2+"):
    error_code: int = int16("0+")
    expiry_timestamp_ms: int = int64("0+")
    throttle_time_ms: int = int32("0+")


class DescribeDelegationTokenRequest(
    Request, api_key=41, versions="0-3", flexible="2+", listeners="broker controller"
):
    class DescribeDelegationTokenOwner(Struct):
        principal_type: str = string("0+")
        principal_name: str = string("0+")

    owners: list[DescribeDelegationTokenRequest.DescribeDelegationTokenOwner] | None = array(
        "DescribeDelegationTokenOwner", "0+", nullable="0+"
    )


class DescribeDelegationTokenResponse(Response, api_key=41, versions="0-3", flexible="2+"):
    class DescribedDelegationTokenRenewer(Struct):
        principal_type: str = string("0+")
        principal_name: str = string("0+")

    class DescribedDelegationToken(Struct):
        principal_type: str = string("0+")
        principal_name: str = string("0+")
        token_requester_principal_type: str = string("3+")
        token_requester_principal_name: str = string("3+")
        issue_timestamp: int = int64("0+")
        expiry_timestamp: int = int64("0+")
        max_timestamp: int = int64("0+")
        token_id: str = string("0+")
        hmac: Binary = binary("0+")
        renewers: list[DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer] = array(
            "DescribedDelegationTokenRenewer", "0+"
        )

    error_code: int = int16("0+")
    tokens: list[DescribeDelegationTokenResponse.DescribedDelegationToken] = array(
        "DescribedDelegationToken", "0+"
    )
    throttle_time_ms: int = int32("0+")


class DefaultPrincipalData(Data, versions="0", flexible="0+"):
    type: str = string("0+")
    name: str = string("0+")
    token_authenticated: bool = boolean("0+")
