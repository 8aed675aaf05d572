"""What S3's and botocore's errors mean to a campaign."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from botocore import exceptions as boto
from urllib3.exceptions import HTTPError

from anabasis.errors import ObjectNotFound, PreconditionFailed, StorageError, StoreDenied, StoreUnavailable

_CREDENTIALS = "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN)"

_DENIED = {
    "NoSuchBucket": "the bucket does not exist; create it, or correct the store's URL",
    "InvalidAccessKeyId": f"the access key is not known there; {_CREDENTIALS}",
    "SignatureDoesNotMatch": f"the secret key is wrong; {_CREDENTIALS}",
    "ExpiredToken": "the session token has expired; renew the credentials",
    "InvalidToken": f"the session token is not valid; {_CREDENTIALS}",
    "TokenRefreshRequired": "the session token has expired; renew the credentials",
    "AccessDenied": "these credentials may not do this; allow s3:GetObject, PutObject, DeleteObject and ListBucket",
    "AccountProblem": "the provider has blocked the account; ask it why",
    "RequestTimeTooSkewed": "this machine's clock is wrong by more than 15 minutes; set it (NTP)",
    "PermanentRedirect": "the bucket is in another region; set AWS_REGION to its region",
    "AuthorizationHeaderMalformed": "the bucket is in another region; set AWS_REGION to its region",
    "IllegalLocationConstraintException": "the bucket is in another region; set AWS_REGION to its region",
    "InvalidBucketName": "this cannot be the name of a bucket; correct the store's URL",
    "QuotaExceeded": "the quota is used up; free some space or raise it",
    "EntityTooLarge": "the server refuses objects of this size; raise its limit",
}

_TRANSIENT_CODES = frozenset(
    {
        "BadDigest",  # damaged on the way
        "ConditionalRequestConflict",  # 409: another conditional write was in flight; the next try knows who won
        "IncompleteBody",
        "InternalError",
        "OperationAborted",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "XAmzContentSHA256Mismatch",  # damaged on the way
    }
)

_NOT_BEGUN = frozenset({"SlowDown", "ServiceUnavailable"})
"""Refusals at the door, with a status that else leaves open whether something happened."""

_MEANINGS: dict[int, tuple[type[StorageError], str]] = {
    301: (StoreDenied, "the bucket is in another region; set AWS_REGION to its region"),
    403: (StoreDenied, f"access is denied; {_CREDENTIALS}, and their rights to this bucket"),
    404: (ObjectNotFound, "no such object"),
    412: (PreconditionFailed, "exists already, or was changed since it was read"),
}

_NO_CREDENTIALS = (boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError)
_NOT_CONNECTED = (boto.EndpointConnectionError, boto.ConnectTimeoutError, boto.ProxyConnectionError)
_BROKEN = (boto.HTTPClientError, boto.IncompleteReadError, HTTPError, OSError)


@dataclass(frozen=True, slots=True)
class Verdict:
    """An error as a campaign sees it.

    Attributes:
        may_have_happened: the request can have had its effect although there was no good answer.
        worth_retrying: at once, by the store itself; only if the error is a `StoreUnavailable`.
    """

    error: StorageError
    may_have_happened: bool = False
    worth_retrying: bool = False


def judge(error: Exception, *, where: str) -> Verdict:
    """Classify what botocore raised.

    Args:
        where: operation, object and endpoint, for the message.
    """
    if isinstance(error, boto.ClientError):
        return _judge_answer(error, where=where)
    if isinstance(error, boto.ReadTimeoutError):  # once is enough: it took its time already
        return Verdict(StoreUnavailable(f"{where}: no answer in time"), may_have_happened=True)
    if isinstance(error, _NOT_CONNECTED):
        return Verdict(StoreUnavailable(f"{where}: no server answers there"), worth_retrying=True)
    if isinstance(error, boto.SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
        return Verdict(StoreDenied(f"{where}: its TLS certificate is not trusted; set AWS_CA_BUNDLE, or mend it"))
    if isinstance(error, _BROKEN):
        text = f"{where}: the connection broke ({type(error).__name__})"
        return Verdict(StoreUnavailable(text), may_have_happened=True, worth_retrying=True)
    if isinstance(error, _NO_CREDENTIALS):
        text = f"no credentials are found; {_CREDENTIALS}"
    else:
        text = " ".join(str(error).split())[:300]
    return Verdict(StoreDenied(f"{where}: {text}"))


def _judge_answer(error: boto.ClientError, *, where: str) -> Verdict:
    details = cast("dict[str, Any]", error.response).get("Error", {})
    code, text, status = str(details.get("Code", "")), str(details.get("Message", "")), _status(error)
    if code in _DENIED:
        return Verdict(StoreDenied(f"{where}: {_DENIED[code]}"))
    if code in _TRANSIENT_CODES or status == 429 or status >= 500:
        return Verdict(
            StoreUnavailable(f"{where}: the server says {status} {code if code != str(status) else text}".rstrip()),
            may_have_happened=status >= 500 and code not in _NOT_BEGUN,
            worth_retrying=True,
        )
    meaning = _MEANINGS.get(status)
    if meaning is not None:
        kind, words = meaning
        return Verdict(kind(f"{where}: {words}"))
    return Verdict(StoreDenied(f"{where}: the server says {status} {code} {text}".rstrip()))


def _status(error: boto.ClientError) -> int:
    return int(cast("dict[str, Any]", error.response).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def range_is_empty(error: boto.ClientError) -> bool:
    """A range was asked for that begins at or behind the object's end: there is an object, and nothing of it there."""
    return _status(error) == 416
