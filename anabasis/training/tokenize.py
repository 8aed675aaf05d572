"""From text to tokens: bytes as they are, or byte-level BPE trained on the spot.

Byte pair encoding: Sennrich, Haddow and Birch 2016 (arXiv:1508.07909), on bytes as in GPT-2, by the `tokenizers`
library. Training is deterministic: the same sample gives the same merges, whatever the number of threads.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from anabasis.errors import CorruptData
from anabasis.training.corpus import Progress, Source, read_source, split_text

BYTE_VOCABULARY = 256

PIECE_BYTES = 1 << 16
"""Text encoded at a time: the encoder's cost does not depend on it, and progress is reported often."""

PIECES_AT_ONCE = 16
"""Pieces given to the encoder's threads together: a megabyte, under half a second on one core."""

MIN_SAMPLE_BYTES = 4_000_000
"""Trains 1,024 entries in a second on one core; a longer sample hardly changes them."""

MAX_SAMPLE_BYTES = 32_000_000
SAMPLE_BYTES_PER_ENTRY = 250
"""Large vocabularies need more text to be frequent in; at 32,768 entries this is 8 MB."""

TICK_SECONDS = 0.25
"""Between progress reports while the library trains: it does not report itself."""

Tokens = NDArray[np.integer[Any]]


class Tokenizer(Protocol):
    """Text to tokens and back."""

    @property
    def vocabulary_size(self) -> int:
        """Tokens are 0 … this − 1."""
        ...

    def encode(self, text: bytes, *, on_progress: Progress | None = None) -> Tokens:
        """Tokens of a text, of the smallest of uint16 and uint32 that holds the vocabulary."""
        ...

    def decode(self, tokens: Sequence[int]) -> bytes:
        """The text; invalid UTF-8 of the original has become U+FFFD in a BPE."""
        ...

    def serialize(self) -> bytes:
        """For `load_tokenizer`; equal for equal tokenizers."""
        ...


def dtype_of(vocabulary_size: int) -> Literal["uint16", "uint32"]:
    return "uint16" if vocabulary_size <= 1 << 16 else "uint32"


class ByteTokenizer:
    """One token per byte."""

    vocabulary_size = BYTE_VOCABULARY

    def encode(self, text: bytes, *, on_progress: Progress | None = None) -> Tokens:
        return np.frombuffer(text, dtype=np.uint8).astype(np.uint16)

    def decode(self, tokens: Sequence[int]) -> bytes:
        return bytes(tokens)

    def serialize(self) -> bytes:
        return b'{"type":"bytes"}'


class BpeTokenizer:
    """Byte-level BPE. The vocabulary can be smaller than wished when the text is short."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.vocabulary_size: int = inner.get_vocab_size()

    def encode(self, text: bytes, *, on_progress: Progress | None = None) -> Tokens:
        dtype = np.dtype(dtype_of(self.vocabulary_size))
        encoded = [np.empty(0, dtype)]
        pieces = [piece.decode(errors="replace") for piece in split_text(text, limit=PIECE_BYTES)]
        for first in range(0, len(pieces), PIECES_AT_ONCE):
            entries = self._inner.encode_batch_fast(pieces[first : first + PIECES_AT_ONCE], add_special_tokens=False)
            encoded.extend(np.asarray(entry.ids, dtype=dtype) for entry in entries)
            if on_progress:
                on_progress("tokenising")
        return np.concatenate(encoded)

    def decode(self, tokens: Sequence[int]) -> bytes:
        return self._inner.decode(list(tokens), skip_special_tokens=False).encode()

    def serialize(self) -> bytes:
        return self._inner.to_str().encode()


def load_tokenizer(data: bytes) -> Tokenizer:
    """The tokenizer that `serialize` wrote.

    Raises:
        CorruptData: these bytes are no tokenizer.
    """
    from tokenizers import Tokenizer as Inner

    try:
        if json.loads(data).get("type") == "bytes":
            return ByteTokenizer()
        return BpeTokenizer(Inner.from_str(data.decode()))
    except Exception as error:  # tokenizers raises plain Exception
        raise CorruptData(f"tokenizer of {len(data)} bytes cannot be read: {error}") from None


def train_bpe(sample: Iterable[bytes], *, vocabulary_size: int, on_progress: Progress | None = None) -> BpeTokenizer:
    """Train on a sample of the text; the alphabet is all 256 bytes, so every text can be encoded."""
    from tokenizers import Tokenizer as Inner
    from tokenizers import decoders, models, pre_tokenizers, trainers

    inner = Inner(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)  # pyright: ignore[reportAttributeAccessIssue]
    inner.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        show_progress=False,
        special_tokens=[],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    texts = [piece.decode(errors="replace") for piece in sample]
    _while_reporting(lambda: inner.train_from_iterator(texts, trainer), "training the tokenizer", on_progress)
    return BpeTokenizer(inner)


def training_sample(source: Source, *, vocabulary_size: int, on_progress: Progress | None = None) -> list[bytes]:
    """A bounded sample of a source: its beginning, or every k-th of its parts, so that all of a folder is heard."""
    wanted = min(max(MIN_SAMPLE_BYTES, SAMPLE_BYTES_PER_ENTRY * vocabulary_size), MAX_SAMPLE_BYTES)
    stride = max(1, (source.size_bytes or 0) // wanted) if len(source.parts) > 1 else 1
    chosen = Source(url=source.url, parts=source.parts[::stride], size_bytes=source.size_bytes)
    return list(read_source(chosen, max_bytes=wanted, on_progress=on_progress))


def _while_reporting(work: Callable[[], Any], what: str, on_progress: Progress | None) -> None:
    """Run `work` (which releases the interpreter's lock) in a thread, and report while it runs."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # raised again below, in the caller's thread
            failures.append(error)

    thread = threading.Thread(target=run, name="train-tokenizer", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(TICK_SECONDS)
        if on_progress:
            on_progress(what)
    if failures:
        raise failures[0]
