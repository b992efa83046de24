"""Create-only objects on a file system and on GCS."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from smalti import objects
from smalti.errors import ConflictError, InputError, LakeError, MissingObject
from smalti.lake import Lake
from smalti.objects import join_uri


def test_an_object_is_created_once_and_never_overwritten(any_lake: Lake) -> None:
    uri = join_uri(any_lake.root, "a", "b.bin")
    assert objects.create_bytes(uri, b"first")
    assert not objects.create_bytes(uri, b"second")
    assert objects.read_bytes(uri) == b"first"


def test_create_same_accepts_the_same_bytes_and_refuses_others(any_lake: Lake) -> None:
    uri = join_uri(any_lake.root, "x")
    assert objects.create_same(uri, b"1")
    assert not objects.create_same(uri, b"1")
    with pytest.raises(ConflictError, match="exists with other content"):
        objects.create_same(uri, b"2")


def test_of_many_creators_exactly_one_wins(any_lake: Lake) -> None:
    uri = join_uri(any_lake.root, "contested")
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda n: objects.create_bytes(uri, b"%d" % n), range(8)))
    assert won.count(True) == 1
    assert objects.read_bytes(uri) == b"%d" % won.index(True)


def test_swaps_lose_no_update(any_lake: Lake) -> None:
    """Ten threads each add one to a counter, with as many tries as they need."""
    uri = join_uri(any_lake.root, "counter")
    barrier = threading.Barrier(10)

    def add(_: int) -> None:
        barrier.wait()
        while True:
            now = objects.read_versioned(uri)
            value, generation = (int(now[0]), now[1]) if now else (0, None)
            if objects.swap_bytes(uri, b"%d" % (value + 1), generation):
                return

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(add, range(10)))
    assert objects.read_bytes(uri) == b"10"


def test_a_swap_with_an_old_generation_changes_nothing(any_lake: Lake) -> None:
    uri = join_uri(any_lake.root, "LATEST")
    assert objects.swap_bytes(uri, b"1", None)
    _, old = objects.read_versioned(uri) or (b"", "")
    assert objects.swap_bytes(uri, b"2", old)
    assert not objects.swap_bytes(uri, b"3", old)
    assert not objects.swap_bytes(uri, b"3", None)
    assert objects.read_bytes(uri) == b"2"


def test_an_object_that_is_replaced_while_it_is_read_is_read_again(
    gcs_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = join_uri(gcs_lake.root, "LATEST")
    objects.swap_bytes(uri, b"old", None)
    store = objects._GCS
    real = store.stat
    swapped: list[bool] = []

    def stat_then_swapped(uri: str) -> objects.ObjectInfo | None:
        info = real(uri)
        if not swapped and info is not None:
            swapped.append(objects.swap_bytes(uri, b"new", info.generation))
        return info

    monkeypatch.setattr(store, "stat", stat_then_swapped)
    found = objects.read_versioned(uri)
    assert swapped == [True]
    assert found is not None
    assert found[0] == b"new"


def test_listing_is_sorted_and_deep_and_names_are_one_level(any_lake: Lake) -> None:
    for name in ("b/2", "b/1", "a", "b/c/3"):
        objects.create_bytes(join_uri(any_lake.root, name), name.encode())
    found = [o.uri.removeprefix(any_lake.root + "/") for o in objects.list_objects(any_lake.root)]
    assert found == ["a", "b/1", "b/2", "b/c/3"]
    assert objects.list_names(any_lake.root) == ["a", "b"]
    assert objects.list_names(join_uri(any_lake.root, "b")) == ["1", "2", "c"]
    assert list(objects.list_objects(join_uri(any_lake.root, "nothing"))) == []
    assert objects.list_names(join_uri(any_lake.root, "nothing")) == []


def test_a_prefix_is_a_directory_not_the_beginning_of_a_name(any_lake: Lake) -> None:
    for name in ("part/1", "part2/1"):
        objects.create_bytes(join_uri(any_lake.root, name), b"")
    assert len(list(objects.list_objects(join_uri(any_lake.root, "part")))) == 1


def test_stat_copy_and_download(any_lake: Lake, tmp_path: Path) -> None:
    source, target = join_uri(any_lake.root, "s"), join_uri(any_lake.root, "t")
    assert objects.stat(source) is None
    objects.create_bytes(source, b"12345")
    info = objects.stat(source)
    assert info is not None
    assert info.size == 5
    assert objects.copy_object(source, target)
    assert not objects.copy_object(source, target)
    objects.download(target, tmp_path / "deep" / "file")
    assert (tmp_path / "deep" / "file").read_bytes() == b"12345"


def test_a_missing_object_is_named(any_lake: Lake) -> None:
    uri = join_uri(any_lake.root, "nowhere")
    with pytest.raises(MissingObject, match="nowhere"):
        objects.read_bytes(uri)
    assert objects.read_versioned(uri) is None


def test_a_killed_writer_leaves_nothing_that_is_listed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = join_uri(lake.root, "x")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.link", killed)
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)  # a SIGKILL removes nothing
    with pytest.raises(KeyboardInterrupt):
        objects.create_bytes(uri, b"half")
    monkeypatch.undo()
    assert list(objects.list_objects(lake.root)) == []
    assert objects.create_bytes(uri, b"whole")


def test_a_lake_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(LakeError, match=r"file://.*/file/x: .*\. Check that the place exists"):
        objects.create_bytes(f"file://{tmp_path}/file/x", b"")


def test_a_bucket_that_is_not_there_is_named(gcs: object) -> None:
    with pytest.raises((MissingObject, LakeError), match="gs://no-such-bucket/x"):
        objects.create_bytes("gs://no-such-bucket/x", b"")


@pytest.mark.parametrize("uri", ["s3://bucket/x", "http://host/x", "gs://", "file://host/x"])
def test_other_schemes_are_refused(uri: str) -> None:
    with pytest.raises(InputError, match="file:///directory or gs://bucket/prefix"):
        objects.normalise_uri(uri)


def test_paths_with_spaces_and_percent_signs_survive(tmp_path: Path) -> None:
    uri = objects.file_uri(tmp_path / "a b%20c")
    objects.create_bytes(uri, b"x")
    assert objects.local_path(uri) == tmp_path / "a b%20c"
    assert [o.uri for o in objects.list_objects(objects.file_uri(tmp_path))] == [uri]


def test_a_deleted_object_is_gone_and_may_be_created_again(any_lake: Lake) -> None:
    uri = join_uri(any_lake.root, "a", "b")
    objects.create_bytes(uri, b"1")
    assert objects.delete_object(uri)
    assert objects.stat(uri) is None
    assert list(objects.list_objects(any_lake.root)) == []
    assert not objects.delete_object(uri), "a second time there is nothing"
    assert not objects.delete_object(join_uri(uri, "below"))
    assert objects.create_bytes(uri, b"2")
    assert not objects.delete_object(join_uri(any_lake.root, "a")), "a directory is no object"
    assert objects.read_bytes(uri) == b"2"


def test_when_an_object_was_written_is_told_by_listing_and_stat(any_lake: Lake) -> None:
    before = time.time()
    uri = join_uri(any_lake.root, "x")
    objects.create_bytes(uri, b"1")
    info = objects.stat(uri)
    assert info is not None
    assert before - 5 < info.written < time.time() + 5, "the store's clock may differ"
    assert [each.written for each in objects.list_objects(any_lake.root)] == [info.written]


def test_what_a_killed_writer_left_is_listed_for_the_collection_of_garbage(any_lake: Lake, tmp_path: Path) -> None:
    objects.create_bytes(join_uri(any_lake.root, "deep", "x"), b"1")
    assert list(objects.list_attempts(any_lake.root)) == []
    if objects.local_path(any_lake.root) is not None:
        left = tmp_path / "lake" / "deep" / f"{objects.ATTEMPT_PREFIX}x-1"
        left.write_bytes(b"half")
        [found] = objects.list_attempts(any_lake.root)
        assert (found.uri, found.size) == (objects.file_uri(left), 4)
        assert objects.delete_object(found.uri)
        assert not left.exists()


def test_missing_google_credentials_are_one_line_that_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    from google.auth.exceptions import DefaultCredentialsError

    def client() -> None:
        raise DefaultCredentialsError("Your default credentials were not found.")

    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setattr("google.cloud.storage.Client", client)
    objects.forget_clients()
    with pytest.raises(
        LakeError, match=r"^gs://bucket/x: there are no Google .* Set GOOGLE_APPLICATION_CREDENTIALS to"
    ):
        objects.read_bytes("gs://bucket/x")
    objects.forget_clients()


def test_an_object_is_deleted_only_as_the_generation_that_was_read(any_lake: Lake) -> None:
    uri = join_uri(any_lake.root, "a", "b")
    assert not objects.delete_object(uri, "1"), "there is nothing"
    objects.swap_bytes(uri, b"1", None)
    _, old = objects.read_versioned(uri) or (b"", "")
    objects.swap_bytes(uri, b"2", old)
    assert not objects.delete_object(uri, old)
    assert objects.read_bytes(uri) == b"2"
    _, new = objects.read_versioned(uri) or (b"", "")
    assert not objects.delete_object(join_uri(any_lake.root, "a"), new), "a directory is no object"
    assert not objects.delete_object(join_uri(uri, "below"), new)
    assert objects.delete_object(uri, new)
    assert objects.stat(uri) is None
    assert not objects.delete_object(uri, new), "a second time there is nothing"
    assert [each.uri for each in objects.list_objects(any_lake.root)] == []


def test_a_delete_waits_for_a_swap_and_then_sees_what_it_did(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system, where a look and a removal are two steps."""
    uri = join_uri(lake.root, "contested")
    objects.swap_bytes(uri, b"old", None)
    _, old = objects.read_versioned(uri) or (b"", "")
    real, deleted = os.replace, []
    with ThreadPoolExecutor(1) as pool:

        def replace_late(source: str, target: str) -> None:
            deleted.append(pool.submit(objects.delete_object, uri, old))
            time.sleep(0.3)
            real(source, target)

        monkeypatch.setattr(os, "replace", replace_late)
        assert objects.swap_bytes(uri, b"new", old)
        assert not deleted[0].result()
    assert objects.read_bytes(uri) == b"new"


def test_a_file_whose_name_is_not_utf8_is_listed_read_and_deleted(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/\xff%\xfe", "wb") as file:
        file.write(b"x")
    [found] = objects.list_objects(objects.file_uri(tmp_path))
    assert found.uri.endswith("/%FF%25%FE")
    assert objects.normalise_uri(found.uri) == found.uri
    assert objects.read_bytes(found.uri) == b"x"
    assert objects.delete_object(found.uri)
