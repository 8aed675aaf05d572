from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from anabasis.campaign.records import ModelVersion
from anabasis.errors import CorruptData, Fenced, ObjectNotFound
from anabasis.storage import open_store
from anabasis.storage.base import ObjectStore
from anabasis.storage.registry import get_model, list_models, publish
from anabasis.storage.resilient import Resilient
from tests.support.flaky import FlakyStore

fork = multiprocessing.get_context("fork")


def model(version: int, *, name: str = "demo", campaign: str = "demo") -> ModelVersion:
    return ModelVersion(
        model=name, number=0, campaign=campaign, campaign_version=version, files={}, loss=2.0, validation_loss=None,
        tokens_total=version, published_at=0.0,
    )  # fmt: skip


def test_models_are_numbered_from_one(folder_store: ObjectStore) -> None:
    assert list_models(folder_store) == []
    assert [publish(folder_store, model(version)).number for version in (10, 20)] == [1, 2]
    assert publish(folder_store, model(5, name="another")).number == 1
    assert [(one.model, one.number) for one in list_models(folder_store)] == [("another", 1), ("demo", 1), ("demo", 2)]


def test_publishing_again_is_the_same_model(folder_store: ObjectStore) -> None:
    first = publish(folder_store, model(10))
    publish(folder_store, model(20))
    assert publish(folder_store, model(10).model_copy(update={"loss": 9.0})) == first
    assert publish(folder_store, model(10, campaign="other")).number == 3


def test_one_model_or_the_newest(folder_store: ObjectStore) -> None:
    published = [publish(folder_store, model(version)) for version in (10, 20)]
    assert get_model(folder_store, "demo") == published[1]
    assert get_model(folder_store, "demo", 1) == published[0]
    with pytest.raises(ObjectNotFound, match="no number 3; there are: 1, 2"):
        get_model(folder_store, "demo", 3)
    with pytest.raises(ObjectNotFound, match="published: demo"):
        get_model(folder_store, "nobody")


def _publish(url: str, number: int) -> None:
    store = open_store(url)
    for version in range(10):
        publish(store, model(100 * number + version))
        publish(store, model(version))  # all of them publish these


def test_concurrent_publishers_lose_nothing_and_count_once(tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    children = [fork.Process(target=_publish, args=(url, number)) for number in range(1, 4)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * 3
    published = list_models(open_store(url))
    assert [one.number for one in published] == list(range(1, 41))
    assert len({one.campaign_version for one in published}) == 40


def test_lost_answers_publish_nothing_twice(folder_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    flaky = FlakyStore(folder_store, seed=4, before=0.2, after=0.4)
    store = Resilient(flaky, on_wait=lambda *_: None, give_up_after_seconds=None)
    assert [publish(store, model(version)).number for version in range(20)] == list(range(1, 21))


def test_a_damaged_registry_is_named_and_not_overwritten(folder_store: ObjectStore) -> None:
    folder_store.put("models/demo/registry.json", b"torn")
    for call in (lambda: publish(folder_store, model(1)), lambda: list_models(folder_store)):
        with pytest.raises(CorruptData, match=r"models/demo/registry\.json"):
            call()
    assert folder_store.get("models/demo/registry.json") == b"torn"


def test_files_that_are_called_like_a_registry_are_none(folder_store: ObjectStore) -> None:
    folder_store.put("models/demo/files/abc/registry.json", b"a model's file")
    assert list_models(folder_store) == []


def test_endless_races_are_given_up(folder_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(folder_store, model(1))
    real = folder_store.get_with_etag
    monkeypatch.setattr(folder_store, "get_with_etag", lambda key: (real(key)[0], "old"))
    with pytest.raises(Fenced, match="publish again"):
        publish(folder_store, model(2))
