from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from anabasis.campaign.records import Roster, VersionManifest, keys
from anabasis.campaign.spec import parse_spec
from anabasis.errors import CorruptData, Fenced, ObjectNotFound
from anabasis.storage import open_store
from anabasis.storage.base import ObjectStore
from anabasis.storage.resilient import Resilient
from anabasis.storage.versions import (
    commit_version,
    newest_version,
    read_roster,
    read_spec,
    read_version,
    try_read_version,
    write_roster,
    write_spec,
)
from tests.report.samples import manifests
from tests.support.flaky import FlakyStore

fork = multiprocessing.get_context("fork")


def roster(generation: int, *, slots: int = 1) -> Roster:
    return Roster(
        campaign="demo", generation=generation, phase="training", slots=list(range(slots)), members=[], target_rounds=9
    )


# --- versions ---------------------------------------------------------------------------------------------


def test_a_version_is_read_as_it_was_committed(folder_store: ObjectStore) -> None:
    for manifest in manifests(3, rollback_at=3):
        assert try_read_version(folder_store, manifest.version) is None
        with pytest.raises(ObjectNotFound):
            read_version(folder_store, manifest.version)
        commit_version(folder_store, manifest)
        assert read_version(folder_store, manifest.version) == manifest
        assert try_read_version(folder_store, manifest.version) == manifest


def test_only_one_manifest_becomes_a_version(folder_store: ObjectStore) -> None:
    first, other = manifests(1)[1], manifests(1, nonce="other")[1]
    commit_version(folder_store, first)
    commit_version(folder_store, first)  # again, after a crash before the answer: the same bytes
    with pytest.raises(Fenced, match="version 1 of 'demo'"):
        commit_version(folder_store, other)
    assert read_version(folder_store, 1) == first


def _commit(url: str, number: int) -> None:
    store = open_store(url)
    for manifest in manifests(10, nonce=f"writer{number}"):
        try:
            commit_version(store, manifest)
            store.put(f"won/{manifest.version}/{number}", b"")
        except Fenced:
            continue


def test_of_concurrent_committers_one_wins_each_version(tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    children = [fork.Process(target=_commit, args=(url, number)) for number in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * 4
    store = open_store(url)
    for version in range(1, 11):
        (won,) = store.list(f"won/{version}/")
        header = read_version(store, version).contributions[0].header
        assert header.nonce.startswith(f"writer{won.key.rpartition('/')[2]}")


def test_a_commit_through_a_flaky_store_is_not_fenced_by_itself(
    folder_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    flaky = FlakyStore(folder_store, seed=3, before=0.3, after=0.4)
    store = Resilient(flaky, on_wait=lambda *_: None, give_up_after_seconds=None)
    for manifest in manifests(20):
        commit_version(store, manifest)
    assert newest_version(store) == 20


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b'{"version": 1}', b"\xff"])
def test_a_damaged_version_is_named(folder_store: ObjectStore, value: bytes) -> None:
    folder_store.put(keys.version(1), value)
    with pytest.raises(CorruptData, match=r"^versions/000001.json: .*") as caught:
        read_version(folder_store, 1)
    assert "\n" not in str(caught.value)


def test_a_version_under_another_number_is_corrupt(folder_store: ObjectStore) -> None:
    folder_store.put(keys.version(2), manifests(1)[1].model_dump_json().encode())
    with pytest.raises(CorruptData, match="says that it is version 1"):
        read_version(folder_store, 2)


def test_fields_of_newer_writers_are_ignored(folder_store: ObjectStore) -> None:
    value = manifests(0)[0].model_dump_json().encode()
    folder_store.put(keys.version(0), value[:-1] + b', "from_the_future": 1}')
    assert read_version(folder_store, 0) == manifests(0)[0]


def test_the_newest_version(folder_store: ObjectStore) -> None:
    assert newest_version(folder_store) is None
    for number in (0, 1, 2, 9, 10, 99_999, 100_000, 100_001, 100_002):
        folder_store.put(keys.version(number), b"")
        assert newest_version(folder_store) == number
        assert newest_version(folder_store, at_least=number) == number
        assert newest_version(folder_store, at_least=max(0, number - 1)) == number
        assert newest_version(folder_store, at_least=number + 1) is None
    folder_store.put("versions/notes.txt", b"")
    folder_store.put("versions/200000.json/x", b"")
    assert newest_version(folder_store) == 100_002


def test_the_newest_of_more_than_a_million_versions(folder_store: ObjectStore) -> None:
    for number in (0, 999_998, 999_999, 1_000_000, 1_000_001, 1_500_000):
        folder_store.put(keys.version(number), b"")
    for at_least in (0, 99_999, 100_000, 100_001, 100_002, 999_998, 999_999, 1_000_000, 1_500_000):
        assert newest_version(folder_store, at_least=at_least) == 1_500_000


# --- roster -----------------------------------------------------------------------------------------------


def test_the_newest_generation_of_the_roster_wins(folder_store: ObjectStore) -> None:
    assert read_roster(folder_store) is None
    assert write_roster(folder_store, roster(3))
    assert write_roster(folder_store, roster(3)), "a retried write is the same write"
    assert not write_roster(folder_store, roster(3, slots=2))
    assert not write_roster(folder_store, roster(2))
    assert write_roster(folder_store, roster(5))
    assert read_roster(folder_store) == roster(5)


def _write_rosters(url: str, first: int) -> None:
    store = open_store(url)
    for generation in range(first, 60, 4):
        write_roster(store, roster(generation))


def test_concurrent_writers_never_bring_back_an_old_roster(tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    children = [fork.Process(target=_write_rosters, args=(url, first)) for first in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * 4
    assert read_roster(open_store(url)) == roster(59)


def test_a_damaged_roster_is_named_and_can_be_replaced(folder_store: ObjectStore) -> None:
    folder_store.put(keys.ROSTER, b"{")
    with pytest.raises(CorruptData, match=r"roster\.json"):
        read_roster(folder_store)
    assert write_roster(folder_store, roster(1))
    assert read_roster(folder_store) == roster(1)


def test_a_roster_that_others_replace_all_the_time_is_given_up(
    folder_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_roster(folder_store, roster(1))
    real = folder_store.get_with_etag
    monkeypatch.setattr(folder_store, "get_with_etag", lambda key: (real(key)[0], "old"))
    with pytest.raises(Fenced, match="by others"):
        write_roster(folder_store, roster(2))


# --- spec -------------------------------------------------------------------------------------------------


def test_the_spec_is_read_as_it_was_written(folder_store: ObjectStore) -> None:
    with pytest.raises(ObjectNotFound):
        read_spec(folder_store)
    for rounds in (3, 4):
        spec = parse_spec({"name": "demo", "recipe_options": {"width": 3}, "target": {"rounds": rounds}})
        write_spec(folder_store, spec)
        assert read_spec(folder_store) == spec


@pytest.mark.parametrize("value", [b"", b"[]", b'{"name": "Not A Name"}', b"\xff\xfe"])
def test_a_damaged_spec_is_named(folder_store: ObjectStore, value: bytes) -> None:
    folder_store.put(keys.SPEC, value)
    with pytest.raises(CorruptData, match=r"spec\.json"):
        read_spec(folder_store)


def test_records_are_written_for_people_too(folder_store: ObjectStore) -> None:
    manifest = manifests(1)[1]
    commit_version(folder_store, manifest)
    text = folder_store.get(keys.version(1)).decode()
    assert '\n "version": 1,' in text
    assert VersionManifest.model_validate_json(text) == manifest
