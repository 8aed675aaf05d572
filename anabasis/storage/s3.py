"""S3, and servers that speak its language, as an object store.

Needs conditional writes (`If-None-Match`, `If-Match`) of the server: AWS S3 and SeaweedFS have them.
"""

from __future__ import annotations

from typing import Any

from anabasis.errors import ObjectNotFound, PreconditionFailed, StoreDenied, StoreUnavailable
from anabasis.storage.base import ObjectInfo, check_key, check_prefix
from anabasis.storage.own_write import etag_if_mine
from anabasis.storage.s3_body import body_of
from anabasis.storage.s3_connection import Connection, Doubt
from anabasis.storage.s3_errors import range_is_empty
from anabasis.storage.s3_multipart import MULTIPART_FROM_BYTES, put_multipart

DELETE_BATCH = 1_000
"""S3's limit of keys in one request."""


class S3Store:
    """A store in a bucket, below a prefix. All stores of one connection share its client and sockets."""

    def __init__(self, connection: Connection, *, prefix: str = "") -> None:
        self._connection = connection
        self._bucket = connection.bucket
        self._base = f"{check_key(prefix)}/" if prefix else ""

    @classmethod
    def from_environment(cls, *, bucket: str, prefix: str = "") -> S3Store:
        """Endpoint and credentials from the environment; nothing is contacted yet."""
        return cls(Connection.from_environment(bucket=bucket), prefix=prefix)

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/{self._base}".rstrip("/")

    def child(self, prefix: str) -> S3Store:
        return S3Store(self._connection, prefix=self._key(prefix.rstrip("/")))

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        if length is not None and length <= 0:
            if self.head(key) is None:
                raise ObjectNotFound(f"{key}: no such object in {self.url}")
            return b""
        if start == 0 and length is None:
            return self._get(key)[0]
        return self._get(key, Range=f"bytes={start}-{'' if length is None else start + length - 1}")[0]

    def get_into(self, key: str, buffer: memoryview, *, start: int = 0) -> int:
        value = self.get(key, start=start, length=len(buffer))
        buffer[: len(value)] = value
        return len(value)

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        return self._get(key)

    def head(self, key: str) -> ObjectInfo | None:
        place = self._place(key)
        try:
            found = self._connection.call("HEAD", key=place["Key"], act=lambda s3: s3.head_object(**place))
        except ObjectNotFound:
            self._expect_bucket()
            return None
        return ObjectInfo(
            key=key,
            size_bytes=int(found["ContentLength"]),
            etag=str(found["ETag"]),
            modified_at=found["LastModified"].timestamp(),
        )

    def put(
        self,
        key: str,
        value: bytes | bytearray | memoryview,
        *,
        if_absent: bool = False,
        if_match: str | None = None,
    ) -> str:
        conditions = {"IfNoneMatch": "*"} if if_absent else {}
        if if_match is not None:
            conditions["IfMatch"] = if_match
        view, doubt = memoryview(value).cast("B"), Doubt()
        try:
            return self._put(key, view, conditions=conditions, doubt=doubt)
        except (PreconditionFailed, ObjectNotFound) as error:
            etag = etag_if_mine(self, key, value) if doubt.exists else None
            if etag is not None:
                return etag
            if isinstance(error, PreconditionFailed):
                raise
            if if_match is not None:  # AWS's answer when there is no such object
                raise PreconditionFailed(f"{key}: is not there any more in {self.url}") from None
            raise StoreUnavailable(f"{key}: the upload to {self.url} was dropped by the server") from None

    def list(self, prefix: str = "", *, start_after: str = "") -> list[ObjectInfo]:
        """As the contract says. SeaweedFS lists folder by folder, not in key order; so all pages are sorted here."""
        check_prefix(prefix)
        if start_after > prefix and not start_after.startswith(prefix):
            return []
        options: dict[str, Any] = {"Bucket": self._bucket, "Prefix": self._base + prefix}
        after = _safe_start(start_after, prefix=prefix)
        if after:
            options["StartAfter"] = self._base + after
        found: list[ObjectInfo] = []
        while True:
            page = self._page(options)
            found += (self._info(entry) for entry in page.get("Contents", []) if not entry["Key"].endswith("/"))
            if not page.get("IsTruncated"):
                break
            options["ContinuationToken"] = page["NextContinuationToken"]
        return sorted((info for info in found if info.key > start_after), key=lambda info: info.key)

    def delete(self, key: str) -> None:
        place = self._place(key)
        try:
            self._connection.call("DELETE", key=place["Key"], act=lambda s3: s3.delete_object(**place))
        except ObjectNotFound:
            self._expect_bucket()

    def delete_prefix(self, prefix: str) -> int:
        if not prefix:
            raise StoreDenied("delete_prefix needs a prefix; an empty one would remove the whole store")
        doomed = [self._base + info.key for info in self.list(prefix)]
        for start in range(0, len(doomed), DELETE_BATCH):
            self._delete_batch(doomed[start : start + DELETE_BATCH])
        return len(doomed)

    def _key(self, key: str) -> str:
        return check_key(self._base + check_key(key))

    def _place(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._key(key)}

    def _get(self, key: str, **options: str) -> tuple[bytes, str]:
        place = self._place(key)

        def act(s3: Any) -> tuple[bytes, str]:
            try:
                answer = s3.get_object(**place, **options)
            except s3.exceptions.ClientError as error:
                if range_is_empty(error):
                    return b"", ""
                raise
            with answer["Body"] as body:  # read here, so that a connection that breaks is retried
                return body.read(), str(answer["ETag"])

        return self._connection.call("GET", key=place["Key"], act=act)

    def _put(self, key: str, view: memoryview, *, conditions: dict[str, str], doubt: Doubt) -> str:
        place = self._place(key)
        if len(view) >= MULTIPART_FROM_BYTES:
            return put_multipart(self._connection, place["Key"], view, conditions=conditions, doubt=doubt)
        answer = self._connection.call(
            "PUT",
            key=place["Key"],
            act=lambda s3: s3.put_object(**place, Body=body_of(view), **conditions),
            doubt=doubt,
        )
        return str(answer["ETag"])

    def _page(self, options: dict[str, Any]) -> dict[str, Any]:
        return self._connection.call("LIST", key=options["Prefix"], act=lambda s3: s3.list_objects_v2(**options))

    def _info(self, entry: dict[str, Any]) -> ObjectInfo:
        return ObjectInfo(
            key=str(entry["Key"]).removeprefix(self._base),
            size_bytes=int(entry["Size"]),
            etag=str(entry["ETag"]),
            modified_at=entry["LastModified"].timestamp(),
        )

    def _delete_batch(self, batch: list[str]) -> None:
        request = {"Objects": [{"Key": key} for key in batch], "Quiet": True}
        answer = self._connection.call(
            "DELETE", key=batch[0], act=lambda s3: s3.delete_objects(Bucket=self._bucket, Delete=request)
        )
        for failure in answer.get("Errors", []):
            text = f"DELETE s3://{self._bucket}/{failure.get('Key')}: {failure.get('Code')} {failure.get('Message')}"
            raise StoreDenied(text) if failure.get("Code") == "AccessDenied" else StoreUnavailable(text)

    def _expect_bucket(self) -> None:
        """That an object is not there is only true of a bucket that is there: an answer to HEAD does not say."""
        if self._connection.was_seen:
            return
        try:
            self._connection.call("HEAD", act=lambda s3: s3.head_bucket(Bucket=self._bucket))
        except ObjectNotFound:
            raise StoreDenied(
                f"s3://{self._bucket}: the bucket does not exist; create it, or correct the store's URL"
            ) from None


def _safe_start(start_after: str, *, prefix: str) -> str:
    """A beginning of `start_after` from which no server leaves out a key that belongs into the answer.

    A server that lists folder by folder has `a/x` before `a-x`, although `-` comes before `/`: so the beginning has
    no such character. And it takes a start that is also a folder's name for the whole folder: so it ends inside a
    name, where `start_after` goes on with what comes behind `/`.
    """
    end = len(prefix)
    while end < len(start_after) and start_after[end] >= "/":
        end += 1
    while end > len(prefix) and (start_after[end : end + 1] <= "/" or start_after[end - 1] == "/"):
        end -= 1
    return start_after[:end] if end > len(prefix) else ""
