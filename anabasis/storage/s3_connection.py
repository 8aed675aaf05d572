"""One bucket: its client, made when it is first needed, and calls with a few retries."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

from boto3.session import Session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from anabasis.errors import PreconditionFailed, StoreDenied
from anabasis.storage.s3_errors import judge

CONNECT_TIMEOUT_SECONDS = 5.0
"""To connect: a few lost packets are tolerated; a machine that is gone costs no more."""

READ_TIMEOUT_SECONDS = 20.0
"""Of silence in an answer. Below the heartbeat timeout of nodes: a store that hangs must not look like a frozen node.
S3's slowest answers take some seconds."""

MAX_ATTEMPTS = 4
"""Of one request. What these do not heal is an outage, and whoever calls knows how long to wait for its end."""

RETRY_WITHIN_SECONDS = 10.0
"""No further attempt begins after this."""

FIRST_DELAY_SECONDS = 0.1
MAX_CONNECTIONS = 32
MAX_SHARED = 8

T = TypeVar("T")


@dataclass(slots=True)
class Doubt:
    """Whether a write may have happened although it failed."""

    exists: bool = False


class Connection:
    """A bucket of an S3 endpoint. Thread-safe.

    Args:
        endpoint: None: AWS's own, by region.
        credentials: (access key id, secret key) instead of those in the environment: for tests.

    Attributes:
        was_seen: an answer has shown that the bucket exists.
    """

    def __init__(
        self,
        *,
        bucket: str,
        endpoint: str | None = None,
        region: str | None = None,
        credentials: tuple[str, str] | None = None,
        connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
        read_timeout_seconds: float = READ_TIMEOUT_SECONDS,
    ) -> None:
        self.bucket = bucket
        self._endpoint = endpoint
        self._region = region
        self._credentials = credentials
        self._timeouts = (connect_timeout_seconds, read_timeout_seconds)
        self._guard = threading.Lock()
        self._client: Any = None
        self.was_seen = False

    @classmethod
    def from_environment(cls, *, bucket: str) -> Connection:
        """Endpoint, region and credentials from the environment and AWS's configuration files.

        A process has one connection per bucket and environment: a client costs a tenth of a second and some memory.
        """
        names = ("ANABASIS_S3_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        endpoint = next((os.environ[name] for name in names if os.environ.get(name)), None)
        settings = tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_")))
        return _shared(os.getpid(), bucket, endpoint, settings)

    def client(self) -> Any:
        """The boto3 client. Raises `StoreDenied` when the configuration makes no sense."""
        with self._guard:
            if self._client is None:
                try:
                    self._client = self._make_client()
                except (BotoCoreError, ValueError) as error:
                    raise StoreDenied(f"s3://{self.bucket}: {' '.join(str(error).split())[:300]}") from None
            return self._client

    def call(self, operation: str, *, act: Callable[[Any], T], key: str = "", doubt: Doubt | None = None) -> T:
        """Do something with the client, and again if that can help; all errors become `StorageError`s.

        Args:
            act: called with the client; must be repeatable.
            doubt: told when an attempt failed that can have had its effect.
        """
        client, started, delay = self.client(), time.monotonic(), FIRST_DELAY_SECONDS
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                result = act(client)
            except (BotoCoreError, ClientError, HTTPError, OSError) as error:
                verdict = judge(error, where=self._where(operation, key))
                self.was_seen = self.was_seen or isinstance(verdict.error, PreconditionFailed)
                if doubt is not None and verdict.may_have_happened:
                    doubt.exists = True
                late = time.monotonic() - started > RETRY_WITHIN_SECONDS
                if late or not verdict.worth_retrying or attempt == MAX_ATTEMPTS:
                    raise verdict.error from None
            else:
                self.was_seen = True
                return result
            time.sleep(random.uniform(delay / 2, delay))
            delay *= 3
        raise AssertionError("unreachable")

    def _make_client(self) -> Any:
        key_id, secret = self._credentials or (None, None)
        config = Config(
            connect_timeout=self._timeouts[0],
            read_timeout=self._timeouts[1],
            retries={"total_max_attempts": 1},  # `call` knows better what may be repeated
            signature_version="s3v4",
            s3={"addressing_style": "path" if self._endpoint else "auto"},
            # AWS's newer default checksums (trailers) are refused by many S3-compatible servers; we hash ourselves.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            max_pool_connections=MAX_CONNECTIONS,
            tcp_keepalive=True,
        )
        session = Session(aws_access_key_id=key_id, aws_secret_access_key=secret, region_name=self._region)
        region = session.region_name or ("us-east-1" if self._endpoint else None)
        return session.client("s3", endpoint_url=self._endpoint, region_name=region, config=config)

    def _where(self, operation: str, key: str) -> str:
        place = f"s3://{self.bucket}/{key}" if key else f"s3://{self.bucket}"
        host = urlsplit(self._endpoint).netloc.rpartition("@")[2] if self._endpoint else ""
        return f"{operation} {place}{f' at {host}' if host else ''}"


@lru_cache(maxsize=MAX_SHARED)
def _shared(_process: int, bucket: str, endpoint: str | None, _settings: tuple[tuple[str, str], ...]) -> Connection:
    """By process, too: sockets must not be shared with a forked child."""
    return Connection(bucket=bucket, endpoint=endpoint, region=os.environ.get("AWS_REGION") or None)
