"""The inbox: each file becomes one request, whatever happens in between, and none is lost or keeps others waiting."""

from __future__ import annotations

import io
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from smalti import objects
from smalti.errors import LakeError
from smalti.lake import Lake
from smalti.objects import join_uri
from smalti.optouts import inbox as module
from smalti.optouts import parse as parsing
from smalti.optouts.inbox import Taken, take_in
from smalti.optouts.keys import KeyKind
from smalti.optouts.request import Action, read_request, request_ids
from smalti.release.skips import sha256
from tests.conftest import snapshot


def drop(lake: Lake, name: str, data: bytes) -> str:
    uri = join_uri(lake.optout_inbox(), *name.split("/"))
    assert objects.swap_bytes(uri, data, None)
    return uri


def inbox(lake: Lake) -> list[str]:
    return [each.uri.removeprefix(lake.optout_inbox() + "/") for each in objects.list_objects(lake.optout_inbox())]


def take(lake: Lake) -> list[Taken]:
    return take_in(lake, quiet=0)


def png() -> bytes:
    out = io.BytesIO()
    Image.linear_gradient("L").save(out, "png")
    return out.getvalue()


def test_each_file_becomes_a_request_and_is_removed(any_lake: Lake) -> None:
    assert take(any_lake) == []
    drop(any_lake, "exclude/T-1/keys.csv", b"kind,value\nowner,Jane\nnonsense,x\n")
    drop(any_lake, "erase/T-2/deep/er/me.PNG", png())
    drop(any_lake, "query/T-3/keys.txt", b"cats/1")
    drop(any_lake, "query/T-3/keys.jsonl", b'{"url": "https://a.org/1"}')
    found = take(any_lake)
    assert [(each.fault, each.stays) for each in found] == [("", False)] * 4
    requests = [read_request(any_lake, each.id) for each in found]
    assert [(each.action, each.reference, each.rejected) for each in requests] == [
        (Action.ERASE, "T-2", 0), (Action.EXCLUDE, "T-1", 1), (Action.QUERY, "T-3", 0), (Action.QUERY, "T-3", 0)
    ]  # fmt: skip
    assert requests[0].keys[0].kind == KeyKind.IMAGE
    assert {each.submitted_by for each in requests} == {"inbox"}
    assert inbox(any_lake) == []
    assert take(any_lake) == []


def test_a_file_of_which_nothing_can_be_made_is_put_aside_and_keeps_no_other_waiting(lake: Lake) -> None:
    bad = {
        "exclude/T-1/a.csv": (b"\xff\xfe", "it is not UTF-8"),
        "exclude/T-1/b.parquet": (b"PAR1", "no Parquet file"),
        "exclude/T-1/c.docx": (b"x", "what is in it cannot be told"),
        "exclude/T-1/d.txt": (b"sesame", "none of its 1 rows is a key; row 1"),
        "exclude/T-1/e.txt": (b"", "there is no key in it"),
        "exclude/T-1/f.jpg": (b"", "the file is empty"),
        "exclude/lost.txt": (b"owner Jane", "it did not lie where its folders say"),
        "forget/T-1/g.txt": (b"owner Jane", "it did not lie where its folders say"),
        "withdraw/T-1/h.txt": (b"owner Jane", "it did not lie where its folders say"),
        "exclude/" + "T" * 201 + "/i.txt": (b"owner Jane", "reference: String should have at most 200"),
        "loose.txt": (b"owner Jane", "it did not lie where its folders say"),
    }
    for name, (data, _) in bad.items():
        drop(lake, name, data)
    drop(lake, "exclude/T-1/z.txt", b"owner Jane")
    found = take(lake)
    assert inbox(lake) == []
    assert len(request_ids(lake)) == 1
    faults = {each.id: each.fault for each in found if each.request is None}
    assert len(faults) == len(bad)
    for identity, fault in faults.items():
        said, *rows = map(json.loads, objects.read_bytes(lake.optout_rejected(identity)).splitlines())
        data, expected = bad[said["value"]]
        assert expected in fault
        assert said["row"] == 0
        assert said["reason"].rstrip(".") in fault
        assert [row["row"] for row in rows] == ([1] if "row 1: " in fault else [])
        [kept] = [
            n
            for n in objects.list_names(lake.optout_rejected("x").rsplit("/", 1)[0] + "/files")
            if n.startswith(identity)
        ]
        assert objects.read_bytes(lake.optout_rejected_file(identity, kept[16:])) == data


NAMES = [
    "no ending",
    "two  blanks.txt",
    "q'uo\"te.txt",
    "$(id).txt",
    "%2e%2e.txt",
    "ümläut.txt",
    "🐈.txt",
    "-rf.txt",
    "x" * 200 + ".txt",
    "a.tx\u202et",
    "new\nline.txt",
]


@pytest.mark.parametrize("kind", ["file", "gs"])
def test_any_name_is_a_name(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    lake: Lake = request.getfixturevalue("lake" if kind == "file" else "gcs_lake")
    for name in NAMES:
        if kind == "file":
            path = tmp_path / "lake/optouts/inbox/exclude" / f"T {name[:3]}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"owner Jane")
        else:
            objects.create_bytes(f"{lake.optout_inbox()}/exclude/T {name[:3]}/{name}", b"owner Jane")
    found = take(lake)
    assert [each.stays for each in found] == [False] * len(NAMES)
    assert sum(each.request is not None for each in found) == len(NAMES) - 2, "no ending, and another one"
    assert {each.request.reference for each in found if each.request} == {
        " ".join(f"T {n[:3]}".split()) for n in NAMES[1:] if n != NAMES[9]
    }
    assert inbox(lake) == []


def test_a_name_that_is_not_utf8_is_taken_as_well(lake: Lake, tmp_path: Path) -> None:
    folder = tmp_path / "lake/optouts/inbox/exclude/T-1"
    folder.mkdir(parents=True)
    with open(os.fsencode(folder) + b"/\xff\xfe.txt", "wb") as file:
        file.write(b"owner Jane")
    [found] = take(lake)
    assert found.request is not None
    assert inbox(lake) == []


def test_what_starts_with_a_dot_is_passed_over(any_lake: Lake) -> None:
    for name in (".keys.txt.Xa3", ".hidden/keys.txt"):
        objects.swap_bytes(f"{any_lake.optout_inbox()}/exclude/T-1/{name}", b"owner Jane", None)
    assert take(any_lake) == []
    assert len(inbox(any_lake)) == 2


class Killed(BaseException):
    """As SIGKILL: nobody catches it."""


def kill_at(monkeypatch: pytest.MonkeyPatch, store: object, turn: int, *, done: bool) -> list[str]:
    """Die at the so-manieth write or removal: before it, or after it is done. Returns the list of them, as they come."""
    calls: list[str] = []

    def dying(name: str) -> Callable[..., Any]:
        real = getattr(store, name)

        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            if len(calls) != turn:
                return real(*arguments, **options)
            if done:
                real(*arguments, **options)
            raise Killed

        return call

    for name in ("create", "delete"):
        monkeypatch.setattr(store, name, dying(name))
    return calls


FILES = {
    "erase/T-1/some.txt": b"owner Jane\nnonsense",
    "exclude/T-1/keys.csv": b"owner\nJane\n",
    "exclude/T-2/broken.csv": b"nothing that is known",
    "query/T-2/rows.txt": b"nonsense",
}


@pytest.mark.parametrize("done", [False, True])
def test_killed_at_any_write_the_next_call_ends_in_the_same(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    def fill(place: Lake) -> None:
        for name, data in FILES.items():
            path = objects.local_path(drop(place, name, data))
            assert path is not None
            os.utime(path, ns=(10**18, 10**18))  # the generation is part of a request's name

    noon = datetime(2026, 11, 30, 12, tzinfo=UTC)
    monkeypatch.setattr("smalti.optouts.inbox._dropped", lambda info: noon)
    monkeypatch.setattr("smalti.optouts.salt.secrets.token_hex", lambda size: "5e" * size)
    fill(lake)
    take(lake)
    expected = snapshot(lake.root)
    for turn in range(1, 100):
        other = Lake.at(str(tmp_path / f"lake{turn}"))
        fill(other)
        with monkeypatch.context() as patch:
            calls = kill_at(patch, objects._FILES, turn, done=done)
            try:
                take(other)
            except Killed:
                killed = True
            else:
                killed = False
        kept = len(request_ids(other)) + sum("/rejected/files/" in name for name in snapshot(other.root))
        assert len(FILES) - len(inbox(other)) <= kept, "nothing is removed that is not kept elsewhere"
        take(other)
        assert snapshot(other.root) == expected
        if not killed:
            assert turn > len(calls) == 13
            return
    pytest.fail("it never came to its end")


def test_two_that_take_at_once_make_one_request_each(any_lake: Lake) -> None:
    for number in range(6):
        drop(any_lake, f"exclude/T-{number}/keys.txt", b"owner Jane")
    barrier = threading.Barrier(3)

    def one(_: int) -> list[Taken]:
        barrier.wait()
        return take(any_lake)

    with ThreadPoolExecutor(3) as pool:
        found = [each for some in pool.map(one, range(3)) for each in some]
    assert {each.id for each in found} == set(request_ids(any_lake))
    assert len(request_ids(any_lake)) == 6
    assert not any(each.stays or each.fault for each in found)
    assert inbox(any_lake) == []


def test_a_file_that_is_overwritten_before_it_is_removed_is_taken_as_well(
    any_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = drop(any_lake, "exclude/T-1/keys.txt", b"owner Jane")
    real = objects.delete_object

    def overwritten(uri: str, generation: str | None = None) -> bool:
        assert objects.swap_bytes(uri, b"owner Joe", generation)
        return real(uri, generation)

    monkeypatch.setattr(objects, "delete_object", overwritten)
    [first] = take(any_lake)
    assert first.stays
    monkeypatch.undo()
    assert objects.read_bytes(uri) == b"owner Joe"
    [second] = take(any_lake)
    assert not second.stays
    assert sorted(read_request(any_lake, each.id).keys[0].value for each in (first, second)) == ["Jane", "Joe"]


def test_the_same_keys_dropped_again_are_asked_for_again(any_lake: Lake) -> None:
    """They may have been withdrawn in between."""
    found = []
    for _ in range(2):
        drop(any_lake, "exclude/T-1/keys.txt", b"owner Jane")
        found += take(any_lake)
        time.sleep(0.02)
    assert len({each.id for each in found}) == len(request_ids(any_lake)) == 2


def test_a_request_is_as_old_as_the_drop_and_not_as_the_file(any_lake: Lake) -> None:
    before = datetime.now(UTC)
    path = objects.local_path(drop(any_lake, "exclude/T-1/keys.txt", b"owner Jane"))
    if path is not None:
        os.utime(path, (10**9, 10**9))  # as `cp -p` does
    [found] = take(any_lake)
    assert found.request is not None
    assert abs(found.request.submitted - before) < timedelta(seconds=30), "the store's clock may differ"


def test_a_file_that_still_grows_is_left_for_the_next_time(lake: Lake) -> None:
    path = objects.local_path(drop(lake, "exclude/T-1/keys.txt", b"owner Jane\nowner Jo"))
    assert path is not None
    drop(lake, "exclude/T-2/keys.txt", b"owner Jim")

    def grow() -> None:
        time.sleep(0.2)
        with path.open("ab") as file:
            file.write(b"e")

    thread = threading.Thread(target=grow)
    thread.start()
    found = take_in(lake, quiet=0.6)
    thread.join()
    assert [each.request.reference for each in found if each.request] == ["T-2"]
    assert inbox(lake) == ["exclude/T-1/keys.txt"]
    time.sleep(0.2)
    started = time.monotonic()
    [last] = take_in(lake, quiet=0.1)
    assert time.monotonic() - started < 0.5, "what has not changed lately is not waited for"
    assert last.request is not None
    assert [key.value for key in last.request.keys] == ["Jane", "Joe"]


def test_a_store_that_fails_for_one_file_says_so_without_its_name(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    drop(lake, "exclude/T-1/jane doe.txt", b"owner Jane")
    drop(lake, "exclude/T-2/keys.txt", b"owner Joe")
    real = Path.open

    def open_file(self: Path, *arguments: Any, **options: Any) -> Any:
        if self.name == "jane doe.txt":
            raise PermissionError(13, "Permission denied")
        return real(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", open_file)
    one, other = take(lake)
    assert (
        one.fault == "a file of the inbox: Permission denied. Check that the place exists, has room and may be written."
    )
    assert (one.stays, one.request) == (True, None)
    assert other.request is not None
    assert inbox(lake) == ["exclude/T-1/jane%20doe.txt"]


def test_what_is_too_large_for_keys_is_put_aside_unread(any_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smalti.optouts.inbox.MOST_BYTES", 20)
    drop(any_lake, "exclude/T-1/all of them.csv", b"kind,value\n" + b"id,cats/1\n" * 9)
    drop(any_lake, "exclude/T-2/a.txt", b"id cats/1")
    monkeypatch.setattr(objects, "read_versioned", only(objects.read_versioned, "all%20of", "all of"))
    large, small = take(any_lake)
    assert (large.request, large.stays, small.fault) == (None, False, "")
    assert "it has 101 bytes, and a file of keys or a picture at most 20" in large.fault
    assert inbox(any_lake) == []
    put = [each.uri for each in objects.list_objects(any_lake.optout_rejected_root()) if each.uri.endswith(".csv")]
    assert [len(objects.read_bytes(each)) for each in put] == [101]
    said = json.loads(objects.read_bytes(any_lake.optout_rejected(large.id)))
    assert said["value"] == "exclude/T-1/all of them.csv"


def only(real: Callable[[str], Any], *never: str) -> Callable[[str], Any]:
    def read(uri: str) -> Any:
        assert not any(each in uri for each in never)
        return real(uri)

    return read


def test_whatever_is_wrong_with_one_file_keeps_no_other_waiting(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    drop(lake, "exclude/T-1/secret.txt", b"id cats/1")
    drop(lake, "exclude/T-2/b.txt", b"id cats/2")

    def parse(data: bytes, *given: Any, **named: Any) -> Any:
        if b"cats/1" in data:
            raise RecursionError("in secret.txt")
        return parsing.parse(data, *given, **named)

    monkeypatch.setattr(module, "parse", parse)
    bad, good = take(lake)
    assert (bad.request, bad.stays, good.fault) == (None, True, "")
    assert bad.fault == "a file of the inbox cannot be taken (RecursionError). Look at it, and hand it in another way"
    assert inbox(lake) == ["exclude/T-1/secret.txt"]


def test_names_of_files_cannot_be_guessed_from_what_says_that_one_failed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop(lake, "exclude/T-1/jane.csv", b"sesame")
    generation = next(objects.list_objects(lake.optout_inbox())).generation
    monkeypatch.setattr(objects, "read_versioned", failing(lake))
    [failed] = take(lake)
    monkeypatch.undo()
    [rejected] = take(lake)
    name = b"/exclude/T-1/jane.csv"
    guesses = [name, f"inbox {sha256(name)} {generation}".encode()]
    assert {failed.id, rejected.id}.isdisjoint(sha256(guess)[:16] for guess in guesses)
    assert objects.exists(lake.optout_rejected(rejected.id))


def failing(lake: Lake) -> Callable[[str], Any]:
    """As `read_versioned`, which cannot read the inbox."""
    real = objects.read_versioned

    def read(uri: str) -> Any:
        if uri.startswith(lake.optout_inbox()):
            raise LakeError("it failed", uri, "Try again")
        return real(uri)

    return read


def test_logs_and_faults_carry_reference_and_id_and_nothing_of_keys_or_names(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    drop(lake, "exclude/T-1/sesame.csv", b"owner\nsesame\n")
    drop(lake, "exclude/T-1/sesame2.csv", b"sesame\nsesame\n")
    drop(lake, "exclude/T-1/sesame.txt", b"sesame")
    drop(lake, "exclude/T-1/sesame.sesame", b"sesame")
    found = take(lake)
    assert "reference T-1): 1 keys, 0 rejected rows" in caplog.text
    assert len(caplog.records) == 4
    assert "sesame" not in caplog.text.replace(".sesame:", "")
    assert [each.fault for each in found if "sesame" in each.fault.replace(".sesame:", "")] == []
