"""From a URL to a store."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from anabasis.errors import InvalidSpec, StoreDenied
from anabasis.storage.base import ObjectStore, check_key
from anabasis.storage.local import LocalStore


def default_store_url() -> str:
    """Where workers keep campaigns unless told otherwise: `ANABASIS_STORE`, else a folder in the state directory."""
    configured = os.environ.get("ANABASIS_STORE")
    if configured:
        return configured
    return Path(os.path.abspath(os.environ.get("ANABASIS_HOME") or ".anabasis"), "store").as_uri()  # noqa: PTH100


def open_store(url: str) -> ObjectStore:
    """The store at a URL: `file:///folder`, a plain path, or `s3://bucket/prefix`.

    Touches neither disk nor network: whether the store answers shows with the first call. The endpoint of an S3
    store comes from `ANABASIS_S3_ENDPOINT` or `AWS_ENDPOINT_URL`, credentials from where AWS tools have them.

    Raises:
        InvalidSpec: (path `store`) the URL cannot be a store's.
    """
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise InvalidSpec([("store", "must not hold credentials; give them in the environment (AWS_ACCESS_KEY_ID, …)")])
    if parts.query or parts.fragment:
        raise InvalidSpec([("store", f"{url!r} must not have a query or a fragment; escape ? and # in a file URL")])
    if parts.scheme == "s3":
        return _open_s3(url, bucket=parts.netloc, prefix=parts.path)
    if parts.scheme == "file":
        if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
            raise InvalidSpec([("store", f"{url!r} must name an absolute folder of this machine: file:///folder")])
        return LocalStore(_folder(unquote(parts.path), url=url))
    if "://" in url:
        raise InvalidSpec([("store", f"{url!r} has a scheme that is not known; use file:///folder or s3://bucket")])
    return LocalStore(_folder(url, url=url))


def _folder(path: str, *, url: str) -> str:
    if not path or "\0" in path:
        raise InvalidSpec([("store", f"{url!r} names no folder; use file:///folder or a path")])
    return str(Path(path).expanduser())


def _open_s3(url: str, *, bucket: str, prefix: str) -> ObjectStore:
    prefix = unquote(prefix).strip("/")
    try:
        if prefix:
            check_key(prefix)
    except StoreDenied as error:
        raise InvalidSpec([("store", f"{url!r}: {error}")]) from None
    if not bucket:
        raise InvalidSpec([("store", f"{url!r} names no bucket; use s3://bucket/prefix")])
    try:
        from anabasis.storage.s3 import S3Store
    except ImportError:
        raise InvalidSpec([("store", f"{url!r} needs boto3: pip install 'anabasis[s3]'")]) from None
    return S3Store.from_environment(bucket=bucket, prefix=prefix)
