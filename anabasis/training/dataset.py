"""The campaign's data set as trainers see it: fixed-length samples by number.

Sample i is the tokens [i·L, i·L + L], L + 1 of them: inputs and, shifted by one, targets. Samples
0 … `manifest.samples` − 1 are trained on; the `manifest.validation_samples` after them never are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anabasis.campaign.records import DatasetManifest
from anabasis.errors import CorruptData
from anabasis.storage.base import ObjectStore
from anabasis.storage.blobs import get_blob
from anabasis.training.corpus import check_source
from anabasis.training.prepare_data import prepare_dataset, read_dataset_manifest
from anabasis.training.shard_cache import MAX_CACHE_BYTES, ShardCache
from anabasis.training.tokenize import ByteTokenizer, Tokenizer, load_tokenizer

__all__ = ["Dataset", "check_source", "prepare_dataset", "read_dataset_manifest"]


class Dataset:
    """Random access to the samples. Shards are downloaded when first needed, and kept on disk.

    Args:
        store: the campaign's root.
        cache_dir: shared by all trainers of a machine.
        on_progress: called for every chunk that is downloaded.
    """

    def __init__(
        self,
        store: ObjectStore,
        manifest: DatasetManifest,
        cache_dir: Path | str,
        *,
        max_cache_bytes: int = MAX_CACHE_BYTES,
        on_progress: Callable[[], None] | None = None,
    ) -> None:
        self.manifest = manifest
        self._store = store
        self._cache = ShardCache(store, Path(cache_dir), max_bytes=max_cache_bytes)
        self._ends = list(accumulate(shard.tokens for shard in manifest.shards))
        self._dtype = np.dtype(manifest.dtype).newbyteorder("<")
        self._on_progress = on_progress
        if (self._ends[-1] if self._ends else 0) != manifest.tokens:
            raise CorruptData(f"dataset: shards have {self._ends[-1:]} tokens, the manifest says {manifest.tokens}")

    @property
    def samples(self) -> int:
        """Samples to train on."""
        return self.manifest.samples

    @property
    def vocabulary_size(self) -> int:
        return self.manifest.vocabulary_size

    @property
    def sequence_length(self) -> int:
        return self.manifest.sequence_length

    def sample(self, number: int) -> Tensor:
        """Sample `number` as int64 [L + 1]; training samples come first, validation samples after them.

        Raises:
            IndexError: there is no such sample.
            StorageError, CorruptData: its shard cannot be had.
        """
        if not 0 <= number < self.manifest.samples + self.manifest.validation_samples:
            raise IndexError(f"sample {number} of {self.manifest.samples} + {self.manifest.validation_samples}")
        length = self.manifest.sequence_length
        return torch.from_numpy(self._tokens(number * length, length + 1))

    def batch(self, numbers: Sequence[int]) -> Tensor:
        """Several samples as int64 [B, L + 1]."""
        return torch.stack([self.sample(number) for number in numbers])

    def validation_batches(self, *, batch_size: int) -> Iterator[Tensor]:
        """The validation samples in order, in batches of int64 [≤ batch_size, L + 1]; always the same."""
        first, end = self.manifest.samples, self.manifest.samples + self.manifest.validation_samples
        for start in range(first, end, batch_size):
            yield self.batch(range(start, min(start + batch_size, end)))

    def tokenizer(self) -> Tokenizer:
        """What turns text into this data set's tokens."""
        if self.manifest.tokenizer_blob is None:
            return ByteTokenizer()
        return load_tokenizer(get_blob(self._store, self.manifest.tokenizer_blob))

    def _tokens(self, first: int, count: int) -> NDArray[np.int64]:
        """Tokens [first, first + count) of the whole, across shards."""
        found = np.empty(count, dtype=np.int64)
        at = 0
        while at < count:
            number = bisect_right(self._ends, first + at)
            shard = self.manifest.shards[number]
            start = first + at - (self._ends[number] - shard.tokens)
            piece: NDArray[Any] = self._cache.tokens(shard, dtype=self._dtype, on_progress=self._on_progress)
            part = piece[start : start + count - at]
            found[at : at + len(part)] = part
            at += len(part)
        return found
