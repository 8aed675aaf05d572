"""Turning a source of text into tokenised shards in the store: once per campaign, however often it is interrupted.

The text is cut into blocks; each block becomes one shard. A note under `dataset/parts/`, named by the hash of the
block's text and the tokenizer, says which shard a block became: after an interruption, finished blocks are read
again but neither tokenised nor uploaded. The manifest is written last, by whoever is first.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from blake3 import blake3
from pydantic import ValidationError

from anabasis.campaign.records import DatasetManifest, ShardRef, keys
from anabasis.campaign.spec import DataSpec
from anabasis.errors import CorruptData, InvalidSpec, ObjectNotFound, PreconditionFailed
from anabasis.storage.base import ObjectStore
from anabasis.storage.blobs import hash_bytes, put_blob
from anabasis.training.corpus import Progress, find_source, read_source, text_blocks
from anabasis.training.tokenize import ByteTokenizer, Tokenizer, dtype_of, train_bpe, training_sample

BLOCK_BYTES = 1 << 23
"""Text per shard. At most 8 Mi tokens, so 16 MiB (32 with large vocabularies): seconds to tokenise and to move."""

_PARTS = "dataset/parts/"


def prepare_dataset(
    store: ObjectStore,
    data: DataSpec,
    *,
    seed: int,
    on_progress: Progress | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> DatasetManifest:
    """The campaign's data set: made if it is not there yet. Equal text and spec give an equal manifest.

    Args:
        store: the campaign's root.
        seed: unused: the text keeps its order in the store; `sampling` shuffles it by the campaign's seed.
        on_progress: called many times a second.

    Raises:
        InvalidSpec: (path `data.url`) unreadable, or too small for its validation samples and partitions.
        StoreUnavailable: the source's server or the store does not answer now.
        CorruptData: the manifest that is there cannot be read.
    """
    existing = read_dataset_manifest(store)
    if existing is not None:
        return existing
    manifest = _build(store, data, on_progress=on_progress, block_bytes=block_bytes)
    try:
        store.put(keys.DATASET, manifest.model_dump_json(indent=1).encode(), if_absent=True)
    except PreconditionFailed:  # another one was faster: theirs is the campaign's
        winner = read_dataset_manifest(store)
        if winner is not None:
            manifest = winner
    store.delete_prefix(_PARTS)
    return manifest


def read_dataset_manifest(store: ObjectStore) -> DatasetManifest | None:
    """The manifest, or None when the data set is not complete yet.

    Raises:
        CorruptData: it cannot be read.
    """
    try:
        raw = store.get(keys.DATASET)
    except ObjectNotFound:
        return None
    try:
        return DatasetManifest.model_validate_json(raw)
    except ValidationError as error:
        raise CorruptData(f"{keys.DATASET}: {error.error_count()} problems; delete it to build it anew") from None


@dataclass(slots=True)
class _Totals:
    source_bytes: int = 0
    tokens: int = 0


def _build(store: ObjectStore, data: DataSpec, *, on_progress: Progress | None, block_bytes: int) -> DatasetManifest:
    source = find_source(data.url)
    tokenizer: Tokenizer = ByteTokenizer()
    if data.tokenizer == "bpe":
        sample = training_sample(source, vocabulary_size=data.vocabulary_size, on_progress=on_progress)
        tokenizer = train_bpe(sample, vocabulary_size=data.vocabulary_size, on_progress=on_progress)
    serialized = tokenizer.serialize()
    chunks = read_source(source, max_bytes=data.max_bytes, on_progress=on_progress)
    totals, hasher, shards = _Totals(), blake3(), list[ShardRef]()
    for block in text_blocks(chunks, block_bytes=block_bytes):
        hasher.update(block)
        shard = _shard_of(store, block, tokenizer=tokenizer, salt=serialized, on_progress=on_progress)
        shards.append(shard)
        totals.source_bytes += len(block)
        totals.tokens += shard.tokens
    samples = _training_samples(data, tokens=totals.tokens)
    blob = put_blob(store, f"dataset/tokenizer/{hash_bytes(serialized)}.json", serialized)
    return DatasetManifest(
        source=data.url,
        source_bytes=totals.source_bytes,
        source_hash=hasher.hexdigest(),
        tokenizer=data.tokenizer,
        tokenizer_blob=blob,
        vocabulary_size=tokenizer.vocabulary_size,
        dtype=dtype_of(tokenizer.vocabulary_size),
        tokens=totals.tokens,
        sequence_length=data.sequence_length,
        samples=samples,
        validation_samples=data.validation_samples,
        shards=shards,
    )


def _shard_of(
    store: ObjectStore, block: bytes, *, tokenizer: Tokenizer, salt: bytes, on_progress: Progress | None
) -> ShardRef:
    """The block's shard: by the note of an earlier attempt, or tokenised and uploaded now."""
    note = f"{_PARTS}{blake3(salt).update(block).hexdigest()}.json"
    with suppress(ObjectNotFound, ValidationError):
        return ShardRef.model_validate_json(store.get(note))
    tokens = tokenizer.encode(block, on_progress=on_progress)
    raw = tokens.astype(np.dtype(dtype_of(tokenizer.vocabulary_size)).newbyteorder("<")).tobytes()
    blob = put_blob(store, f"dataset/shards/{hash_bytes(raw)}.bin", raw)
    shard = ShardRef(key=blob.key, hash=blob.hash, size_bytes=blob.size_bytes, tokens=len(tokens))
    store.put(note, shard.model_dump_json().encode())
    if on_progress:
        on_progress(f"stored a shard of {len(tokens)} tokens")
    return shard


def _training_samples(data: DataSpec, *, tokens: int) -> int:
    """Samples to train on: all but the last `validation_samples`; each needs one token more than its length."""
    samples = max(0, tokens - 1) // data.sequence_length - data.validation_samples
    if samples >= data.partitions:
        return samples
    needed = (data.partitions + data.validation_samples) * data.sequence_length + 1
    raise InvalidSpec(
        [
            (
                "data.url",
                f"{data.url!r} gives {tokens} tokens, but data.partitions = {data.partitions} and "
                f"data.validation_samples = {data.validation_samples} of data.sequence_length = "
                f"{data.sequence_length} need {needed}: use more text, or lower these",
            )
        ]
    )
