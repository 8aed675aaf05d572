"""Large objects in parts: parallel, each with its own retries, and beyond the 5 GB of one request."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from anabasis.errors import StorageError
from anabasis.storage.s3_body import body_of
from anabasis.storage.s3_connection import Connection, Doubt

MULTIPART_FROM_BYTES = 256 << 20
"""Below, one request is quicker. What a killed writer leaves of its parts stays invisible until a lifecycle rule of
the bucket (abort incomplete multipart uploads) removes it: so only the largest objects take this way."""

PART_BYTES = 64 << 20
PARALLEL_PARTS = 4
MAX_PARTS = 10_000
"""S3's limit."""


def put_multipart(
    connection: Connection, key: str, view: memoryview, *, conditions: dict[str, str], doubt: Doubt
) -> str:
    """Upload in parts; the object appears at the end, whole, if the conditions hold then. Returns its etag.

    Args:
        conditions: `IfNoneMatch` or `IfMatch`, checked by the server on completion.
    """
    where = {"Bucket": connection.bucket, "Key": key}
    began = connection.call("START UPLOAD", key=key, act=lambda s3: s3.create_multipart_upload(**where))
    upload = {**where, "UploadId": began["UploadId"]}
    size = max(PART_BYTES, -(-len(view) // MAX_PARTS))

    def put_part(number: int) -> dict[str, Any]:
        part = view[(number - 1) * size : number * size]
        answer = connection.call(
            "PUT PART",
            key=key,
            act=lambda s3: s3.upload_part(**upload, PartNumber=number, Body=body_of(part)),
        )
        return {"PartNumber": number, "ETag": answer["ETag"]}

    try:
        with ThreadPoolExecutor(PARALLEL_PARTS, thread_name_prefix="upload") as pool:
            parts = list(pool.map(put_part, range(1, -(-len(view) // size) + 1)))
        answer = connection.call(
            "FINISH UPLOAD",
            key=key,
            act=lambda s3: s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts}, **conditions),
            doubt=doubt,
        )
    except StorageError:
        with suppress(StorageError):
            connection.call("ABORT UPLOAD", key=key, act=lambda s3: s3.abort_multipart_upload(**upload))
        raise
    return str(answer["ETag"])
