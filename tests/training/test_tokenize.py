from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabasis.errors import CorruptData
from anabasis.training.corpus import find_source
from anabasis.training.tokenize import (
    BpeTokenizer,
    ByteTokenizer,
    dtype_of,
    load_tokenizer,
    train_bpe,
    training_sample,
)

SAMPLE = [b"def function(argument: int) -> int:\n    return argument + 1\n" * 50, "größer 🙂\n".encode() * 50]


@cache
def trained() -> BpeTokenizer:
    return train_bpe(SAMPLE, vocabulary_size=300)


@pytest.fixture
def bpe() -> BpeTokenizer:
    return trained()


@given(text=st.text(max_size=300))
def test_text_comes_back_from_its_tokens(text: str) -> None:
    for tokenizer in (trained(), ByteTokenizer()):
        tokens = tokenizer.encode(text.encode())
        assert tokenizer.decode(tokens.tolist()) == text.encode()
        assert all(0 <= token < tokenizer.vocabulary_size for token in tokens.tolist())


def test_bpe_is_shorter_than_bytes(bpe: BpeTokenizer) -> None:
    assert len(bpe.encode(SAMPLE[0])) < len(SAMPLE[0]) / 3


def test_text_that_is_no_utf8_is_tokenised_all_the_same(bpe: BpeTokenizer) -> None:
    assert bpe.decode(bpe.encode(b"a\xffb").tolist()) == "a\ufffdb".encode()
    assert ByteTokenizer().decode(ByteTokenizer().encode(b"a\xffb").tolist()) == b"a\xffb"


def test_long_texts_are_tokenised_in_pieces_and_reported(bpe: BpeTokenizer) -> None:
    words: list[str] = []
    text = SAMPLE[0] * 1000
    assert bpe.decode(bpe.encode(text, on_progress=words.append).tolist()) == text
    assert len(words) >= 2


def test_a_tokenizer_survives_the_store(bpe: BpeTokenizer) -> None:
    again = load_tokenizer(bpe.serialize())
    assert again.serialize() == bpe.serialize()
    assert again.encode(SAMPLE[0]).tolist() == bpe.encode(SAMPLE[0]).tolist()
    assert isinstance(load_tokenizer(ByteTokenizer().serialize()), ByteTokenizer)


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b"[1]"])
def test_garbage_is_no_tokenizer(data: bytes) -> None:
    with pytest.raises(CorruptData):
        load_tokenizer(data)


def test_a_short_text_gives_a_small_vocabulary() -> None:
    assert 256 <= train_bpe([b"abab"], vocabulary_size=5_000).vocabulary_size < 300


def test_training_gives_the_same_in_another_process(bpe: BpeTokenizer) -> None:
    program = (
        "import sys; from tests.training.test_tokenize import SAMPLE; from anabasis.training.tokenize import train_bpe;"
        "sys.stdout.buffer.write(train_bpe(SAMPLE, vocabulary_size=300).serialize())"
    )
    environment = {"PYTHONHASHSEED": "7", "RAYON_NUM_THREADS": "3", "TOKENIZERS_PARALLELISM": "true"}
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, env=environment)
    assert found.stdout == bpe.serialize()


def test_the_sample_of_a_folder_comes_from_all_of_it(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"{number}.txt").write_bytes(b"%d" % number * 2_000_000)
    sample = b"".join(training_sample(find_source(str(tmp_path)), vocabulary_size=300))
    assert len(sample) == 4_000_000
    assert {b"0", b"5"} <= {sample[i : i + 1] for i in range(0, len(sample), 1000)}


def test_tokens_are_as_small_as_they_can_be() -> None:
    assert dtype_of(65_536) == "uint16"
    assert dtype_of(65_537) == "uint32"
