from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anabasis.campaign.records import DatasetManifest, keys
from anabasis.campaign.spec import DataSpec
from anabasis.errors import CorruptData, InvalidSpec, StoreUnavailable
from anabasis.storage import open_store
from anabasis.storage.base import ObjectStore
from anabasis.training.corpus import find_source
from anabasis.training.dataset import Dataset, prepare_dataset
from anabasis.training.shard_cache import ShardCache

TEXT = b"".join(b"the %d quick brown foxes jump over %d lazy dogs\n" % (i, i * 7 % 100) for i in range(3_000))
BLOCK = 20_000


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT)
    return path


def spec(text: Path, **changes: Any) -> DataSpec:
    values: dict[str, Any] = {
        "url": str(text), "tokenizer": "bytes", "sequence_length": 16, "partitions": 4, "validation_samples": 5,
    }  # fmt: skip
    return DataSpec(**(values | changes))


def prepare(store: ObjectStore, data: DataSpec, **options: Any) -> DatasetManifest:
    return prepare_dataset(store, data, seed=0, block_bytes=BLOCK, **options)


def shards_of(store: ObjectStore) -> set[str]:
    return {info.key for info in store.list("dataset/shards/")}


class Recording:
    """A store that counts writes, and can fail at one of them or hand out damaged bytes."""

    def __init__(self, inner: ObjectStore, *, fail_at_write: int | None = None) -> None:
        self.inner = inner
        self.writes: list[str] = []
        self.reads: list[str] = []
        self.fail_at_write = fail_at_write
        self.damage = 0

    def put(self, key: str, value: Any, **options: Any) -> str:
        if len(self.writes) == self.fail_at_write:
            raise StoreUnavailable("gone")
        self.writes.append(key)
        return self.inner.put(key, value, **options)

    def get(self, key: str, **options: Any) -> bytes:
        self.reads.append(key)
        value = self.inner.get(key, **options)
        if self.damage > 0 and key.startswith("dataset/shards/"):
            self.damage -= 1
            return bytes(len(value))
        return value

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_samples_are_the_text(store: ObjectStore, text: Path, tmp_path: Path) -> None:
    manifest = prepare(store, spec(text))
    assert len(manifest.shards) > 5
    assert manifest.tokens == manifest.source_bytes == len(TEXT)
    assert manifest.samples == (len(TEXT) - 1) // 16 - 5
    dataset = Dataset(store, manifest, tmp_path / "cache")
    for number in (0, 1, 700, BLOCK // 16 - 1, BLOCK // 16, manifest.samples - 1):
        sample = dataset.sample(number)
        assert sample.dtype == torch.int64
        assert bytes(sample.tolist()) == TEXT[number * 16 : number * 16 + 17]


def test_validation_samples_are_the_last_and_none_is_trained_on(store: ObjectStore, text: Path, tmp_path: Path) -> None:
    manifest = prepare(store, spec(text))
    dataset = Dataset(store, manifest, tmp_path / "cache")
    batches = list(dataset.validation_batches(batch_size=2))
    assert [batch.shape for batch in batches] == [(2, 17), (2, 17), (1, 17)]
    assert bytes(batches[0][0].tolist()) == TEXT[manifest.samples * 16 :][:17]
    with pytest.raises(IndexError):
        dataset.sample(manifest.samples + 5)
    with pytest.raises(IndexError):
        dataset.sample(-1)


def test_bpe_tokens_decode_to_the_text(store: ObjectStore, text: Path, tmp_path: Path) -> None:
    manifest = prepare(store, spec(text, tokenizer="bpe", vocabulary_size=400))
    assert manifest.vocabulary_size == 400
    assert manifest.tokens < len(TEXT) / 2
    dataset = Dataset(store, manifest, tmp_path / "cache")
    tokens = torch.cat([dataset.sample(number)[:-1] for number in range(manifest.samples)])
    assert TEXT.startswith(dataset.tokenizer().decode(tokens.tolist()))


def test_the_same_text_gives_the_same_manifest(text: Path, tmp_path: Path) -> None:
    data = spec(text, tokenizer="bpe", vocabulary_size=300)
    one, two = (prepare(open_store(str(tmp_path / name)), data) for name in ("one", "two"))
    assert one == two


def test_preparing_again_reads_nothing(store: ObjectStore, text: Path) -> None:
    first = prepare(store, spec(text))
    text.unlink()
    assert prepare(store, spec(text)) == first


@pytest.mark.parametrize("fail_at_write", [0, 3, 4, 9, 14])
def test_an_interrupted_preparation_goes_on_where_it_was(
    store: ObjectStore, text: Path, tmp_path: Path, fail_at_write: int
) -> None:
    broken = Recording(store, fail_at_write=fail_at_write)
    with pytest.raises(StoreUnavailable):
        prepare(broken, spec(text))  # type: ignore[arg-type]
    assert store.head(keys.DATASET) is None
    done = shards_of(store)
    resumed = Recording(store)
    manifest = prepare(resumed, spec(text))  # type: ignore[arg-type]
    repeated = {key for key in resumed.writes if key in done}
    assert len(repeated) <= 1, "only the shard whose note was not written is uploaded again"
    assert manifest == prepare(open_store(str(tmp_path / "other")), spec(text))
    assert resumed.writes[-1] == keys.DATASET
    assert not store.list("dataset/parts/")


def test_of_two_preparations_one_wins(store: ObjectStore, text: Path) -> None:
    found: list[DatasetManifest] = []
    threads = [threading.Thread(target=lambda: found.append(prepare(store, spec(text)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert found[0] == found[1] == found[2]


def test_only_max_bytes_are_used(store: ObjectStore, text: Path) -> None:
    assert prepare(store, spec(text, max_bytes=10_000)).source_bytes == 10_000


def test_progress_is_reported_all_along(store: ObjectStore, text: Path) -> None:
    words: list[str] = []
    prepare(store, spec(text, tokenizer="bpe", vocabulary_size=300), on_progress=words.append)
    assert {word.split()[0] for word in words} >= {"read", "training", "tokenising", "stored"}


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
def test_a_text_that_is_too_small_is_the_specs_problem(store: ObjectStore, text: Path, tokenizer: str) -> None:
    text.write_bytes(b"short " * 20)
    with pytest.raises(InvalidSpec) as caught:
        prepare(store, spec(text, tokenizer=tokenizer, vocabulary_size=257))
    ((path, message),) = caught.value.problems
    assert path == "data.url"
    assert "need 145" in message  # (4 + 5) · 16 + 1
    assert store.head(keys.DATASET) is None


def test_the_smallest_text_that_suffices(store: ObjectStore, text: Path) -> None:
    text.write_bytes(TEXT[:145])
    assert prepare(store, spec(text)).samples == 4


def test_an_unreadable_manifest_is_corrupt(store: ObjectStore, text: Path) -> None:
    store.put(keys.DATASET, b"{}")
    with pytest.raises(CorruptData, match="manifest"):
        prepare(store, spec(text))


def test_the_default_source_is_enough_for_the_default_spec(store: ObjectStore) -> None:
    manifest = prepare_dataset(store, DataSpec(max_bytes=2_000_000), seed=0)
    assert manifest.vocabulary_size == 1_024
    assert manifest.samples > 2_000
    assert (find_source("python-stdlib").size_bytes or 0) > 5_000_000


# --- the cache ----------------------------------------------------------------------------------------------


def test_a_machine_downloads_each_shard_once(store: ObjectStore, text: Path, tmp_path: Path) -> None:
    manifest = prepare(store, spec(text))
    watched = Recording(store)
    for _ in range(2):
        dataset = Dataset(watched, manifest, tmp_path / "cache")  # type: ignore[arg-type]
        dataset.batch(range(manifest.samples))
    assert sorted(watched.reads) == sorted(shard.key for shard in manifest.shards)


def test_a_download_that_was_damaged_on_the_way_is_repeated(store: ObjectStore, text: Path, tmp_path: Path) -> None:
    manifest = prepare(store, spec(text))
    flaky = Recording(store)
    flaky.damage = 2
    ticks: list[None] = []
    dataset = Dataset(flaky, manifest, tmp_path / "cache", on_progress=lambda: ticks.append(None))  # type: ignore[arg-type]
    assert bytes(dataset.sample(0).tolist()) == TEXT[:17]
    assert len(ticks) == 3
    flaky.damage = 3
    with pytest.raises(CorruptData, match="hash"):
        dataset.sample(manifest.samples)
    assert not list((tmp_path / "cache").glob("*.part"))


@pytest.mark.parametrize("damage", [b"", b"\0" * BLOCK * 2])
def test_a_damaged_file_in_the_cache_is_replaced(store: ObjectStore, text: Path, tmp_path: Path, damage: bytes) -> None:
    manifest = prepare(store, spec(text))
    Dataset(store, manifest, tmp_path / "cache").sample(0)
    (cached,) = (tmp_path / "cache").glob("*.bin")
    cached.write_bytes(damage[: cached.stat().st_size])
    assert bytes(Dataset(store, manifest, tmp_path / "cache").sample(0).tolist()) == TEXT[:17]


def test_the_cache_is_bounded_and_keeps_what_was_used_last(store: ObjectStore, text: Path, tmp_path: Path) -> None:
    manifest = prepare(store, spec(text))
    size = manifest.shards[0].size_bytes
    cache = ShardCache(store, tmp_path / "cache", max_bytes=3 * size)
    first = cache.tokens(manifest.shards[0], dtype=np.dtype("<u2"))
    for shard in manifest.shards:
        cache.tokens(shard, dtype=np.dtype("<u2"))
    names = {path.stem for path in (tmp_path / "cache").glob("*.bin")}
    assert sum(path.stat().st_size for path in (tmp_path / "cache").iterdir()) <= 3 * size
    assert manifest.shards[-1].hash in names
    assert manifest.shards[0].hash not in names
    assert bytes(first[:10].tolist()) == TEXT[:10], "what is mapped stays readable"


def test_a_manifest_that_contradicts_itself_is_corrupt(store: ObjectStore, text: Path, tmp_path: Path) -> None:
    manifest = prepare(store, spec(text))
    with pytest.raises(CorruptData):
        Dataset(store, manifest.model_copy(update={"tokens": 1}), tmp_path / "cache")
