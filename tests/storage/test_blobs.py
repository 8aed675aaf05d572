from __future__ import annotations

import pytest
from blake3 import blake3

from anabasis.errors import CorruptData, ObjectNotFound
from anabasis.storage.base import ObjectStore
from anabasis.storage.blobs import get_blob, hash_bytes, put_blob


@pytest.mark.parametrize("size", [0, 1, 20 << 20])
def test_hashes_are_blake3_of_the_bytes_in_whatever_memory(size: int) -> None:
    value = bytes(size)
    assert (
        hash_bytes(value) == hash_bytes(bytearray(value)) == hash_bytes(memoryview(value)) == blake3(value).hexdigest()
    )


def test_a_blob_is_written_once_and_read_back(folder_store: ObjectStore) -> None:
    ref = put_blob(folder_store, "params/x", b"value")
    etag = folder_store.list()[0].etag
    assert put_blob(folder_store, "params/x", b"value") == ref
    assert folder_store.list()[0].etag == etag
    assert get_blob(folder_store, ref) == b"value"
    assert ref.size_bytes == 5


@pytest.mark.parametrize("damaged", [b"", b"valu", b"value!", b"vAlue"])
def test_what_is_not_as_promised_is_corrupt(folder_store: ObjectStore, damaged: bytes) -> None:
    ref = put_blob(folder_store, "k", b"value")
    folder_store.put("k", damaged)
    with pytest.raises(CorruptData, match="promised"):
        get_blob(folder_store, ref)
    folder_store.delete("k")
    with pytest.raises(ObjectNotFound):
        get_blob(folder_store, ref)


def test_writing_again_mends_a_truncated_blob(folder_store: ObjectStore) -> None:
    folder_store.put("k", b"val")
    ref = put_blob(folder_store, "k", b"value")
    assert get_blob(folder_store, ref) == b"value"
