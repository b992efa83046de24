"""Opt-outs and new data: what is asked back or reserved is dropped before its picture is read, at the latest before it is captioned."""

from __future__ import annotations

import hashlib
import io
from typing import Any

import lance  # noqa: TID253
import pyarrow as pa
import pytest
from PIL import Image

from smalti.config import Columns
from smalti.errors import InputError
from smalti.images.decode import decode
from smalti.images.fingerprint import fingerprint as fingerprint_of
from smalti.lake import Lake
from smalti.optouts.keys import Key, KeyKind, Print, key_of
from smalti.optouts.ledger import resolve as apply_request
from smalti.optouts.request import Action
from smalti.release.optouts import newest_position, read_snapshot
from smalti.release.summary import _without_bucket
from smalti.settings import SourceRun
from smalti.sources.inventory import stage
from smalti.table import columns as columns_module
from smalti.table import fingerprint as module
from smalti.table import fragments as fragments_module
from smalti.table import ingest as ingest_module
from smalti.table.asked_back import leave_out
from smalti.table.caption import caption
from smalti.table.columns import Filled, Filling, backfill
from smalti.table.fingerprint import FingerprintReport, fingerprint
from smalti.table.index import describe
from smalti.table.ingest import IngestReport, ingest
from smalti.trace import trace
from tests.optouts.test_watch import ask, resolve, spy_on_objects
from tests.sources.making import Made, as_parquet, rows_of
from tests.support.pictures import picture, stored

COLUMNS = Columns(key="file", caption="caption", owner="owner", url="url")


def reserving(*reservations: tuple[str, str], **others: Any) -> Columns:
    named = [{"column": column, "kind": kind} for column, kind in reservations]
    return Columns.model_validate({"key": "file", "others": "ignore", "reservations": named, **others})


@pytest.fixture
def run(lake: Lake, made: Made) -> SourceRun:
    """Three pictures of three owners at three places, in the table."""
    for n in range(3):
        made.put(f"images/p{n}.jpg", stored(picture(n)))
    made.table([
        {"file": f"p{n}.jpg", "caption": "x", "owner": f"owner {n}", "url": f"https://www.host{n}.org/me/{n}.jpg"}
        for n in range(3)
    ])
    made.config["columns"] = COLUMNS
    stage(lake, made.run())
    ingest(lake, made.run())
    return made.run()


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each picture had that was decoded."""
    sizes: list[int] = []

    def spy(data: bytes, max_pixels: int) -> Image.Image:
        sizes.append(len(data))
        return decode(data, max_pixels)

    monkeypatch.setattr(module, "decode", spy)
    return sizes


def drops(lake: Lake, name: str = "made") -> dict[str, str | None]:
    return {row["id"].partition("/")[2]: row["drop"] for row in rows_of(lake, name, "drop")}


@pytest.mark.parametrize(
    "key",
    [
        key_of("id", "made/p1.jpg"),
        key_of("url", "HTTPS://www.host1.org/me/1.jpg"),
        key_of("prefix", "https://www.host1.org/me"),
        key_of("domain", "host1.org"),
        key_of("owner", "owner 1"),
        key_of("sha256", hashlib.sha256(stored(picture(1))).hexdigest()),
        key_of("image", hashlib.sha256(stored(picture(1))).hexdigest()),
    ],
    ids=lambda key: str(key.kind),
)
def test_a_row_that_a_key_names_is_dropped_unread_and_its_neighbours_are_not(
    lake: Lake, run: SourceRun, decoded: list[int], key: Key
) -> None:
    ask(lake, Action.EXCLUDE, key)
    report = fingerprint(lake, run)
    assert (report.rows_in, report.rows_out, report.dropped) == (3, 2, {"optout": 1})
    assert report.reserved == {}
    assert drops(lake) == {"p0.jpg": None, "p1.jpg": "optout", "p2.jpg": None}
    assert sorted(decoded) == sorted(len(stored(picture(n))) for n in (0, 2))
    row = rows_of(lake, "made", "tier", "ar", "phash")[1]
    assert (row["tier"], row["ar"], row["phash"]) == (0, None, None)
    assert fingerprint(lake, run).model_dump(exclude={"seconds", "computed"}) == report.model_dump(
        exclude={"seconds", "computed"}
    )
    assert trace(lake, "made/p1.jpg").deliveries[0].fell_out == "fingerprint: optout"


def printed(image: Image.Image) -> Print:
    found = fingerprint_of(image)
    return Print(phash=found.phash, colour=found.colour.hex(), flat=found.flat, width=image.width, height=image.height)


def again(number: int) -> Image.Image:
    """The picture at another size, as another encoder has it."""
    return Image.open(io.BytesIO(stored(picture(number, 1040, 1040), "WEBP", quality=70))).convert("RGB")


def test_a_copy_of_an_image_that_was_asked_back_is_dropped_after_it_was_decoded(
    lake: Lake, run: SourceRun, decoded: list[int]
) -> None:
    ask(lake, Action.EXCLUDE, Key(kind=KeyKind.IMAGE, value="c" * 64, fingerprint=printed(again(1))))
    report = fingerprint(lake, run)
    assert (report.rows_out, report.dropped, len(decoded)) == (2, {"optout": 1}, 3)
    assert drops(lake) == {"p0.jpg": None, "p1.jpg": "optout", "p2.jpg": None}
    row = rows_of(lake, "made", "tier", "ar", "phash", "colour")[1]
    found = fingerprint_of(picture(1))
    assert (row["tier"], row["ar"], row["phash"]) == (0, None, found.phash)


def test_a_copy_of_a_sample_that_a_request_has_matched_is_dropped(lake: Lake, run: SourceRun) -> None:
    name = ask(lake, Action.ERASE, key_of("owner", "nobody here"))
    shown = printed(again(2)).model_dump() | {"colour": fingerprint_of(again(2)).colour}
    resolve(lake, name, {"id": "other/2.webp", "sha256": "d" * 64, **shown})
    assert fingerprint(lake, run).dropped == {"optout": 1}
    assert drops(lake)["p2.jpg"] == "optout"


@pytest.mark.parametrize(("action", "enters"), [(Action.ERASE, False), (Action.EXCLUDE, True)])
def test_a_picture_that_is_asked_to_be_erased_does_not_enter_the_table_at_any_size(
    lake: Lake, run: SourceRun, made: Made, monkeypatch: pytest.MonkeyPatch, action: Action, enters: bool
) -> None:
    """Nothing but what it shows tells it: it has another key, another size and another format."""
    ask(lake, action, Key(kind=KeyKind.IMAGE, value="c" * 64, fingerprint=printed(again(1))))
    made.put("images/p3.jpg", stored(picture(3)))
    made.put("images/p4.png", stored(picture(1, 700, 700), "PNG"))
    made.table([{"file": name, "caption": "x", "owner": "me", "url": "https://x.org"} for name in ("p3.jpg", "p4.png")])
    later, sizes = made.run("b2"), list[int]()

    def spy(data: bytes, max_pixels: int) -> Image.Image:
        sizes.append(len(data))
        return decode(data, max_pixels)

    monkeypatch.setattr(fragments_module, "decode", spy)
    stage(lake, later)
    report = ingest(lake, later)
    assert ("p4.png" in {row["id"].partition("/")[2] for row in rows_of(lake, "made")}) is enters
    assert report.dropped == ({} if enters else {"optout": 1})
    assert len(sizes) == 2, "each is decoded once"
    assert ingest(lake, later) == report
    assert fingerprint(lake, later).dropped == ({"optout": 1} if enters else {})


def test_without_requests_nothing_but_a_listing_is_read(
    lake: Lake, run: SourceRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs: list[tuple[str, ...]] = []

    def spy(lake: Lake, source: str, batch: str, filling: Filling) -> Filled:
        inputs.append(filling.inputs)
        return backfill(lake, source, batch, filling)

    monkeypatch.setattr(module, "backfill", spy)
    calls = spy_on_objects(monkeypatch)
    assert fingerprint(lake, run).dropped == {}
    assert inputs == [("width", "height", "reserved")]  # the last one is null: the table has no such column
    assert [call for call in calls if "/optouts/" in call[1]] == [("list_names", lake.optout_requests())]
    assert "reserved" not in lance.dataset(lake.table("made")).schema.names


def test_what_was_fingerprinted_before_the_request_stays(lake: Lake, run: SourceRun) -> None:
    before = fingerprint(lake, run)
    ask(lake, Action.EXCLUDE, key_of("owner", "owner 1"))
    assert fingerprint(lake, run).model_dump(exclude={"seconds", "computed"}) == before.model_dump(
        exclude={"seconds", "computed"}
    )


def test_a_checkpoint_from_before_the_request_stays_valid(
    lake: Lake, run: SourceRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(columns_module, "fold", killed)
        with pytest.raises(KeyboardInterrupt):
            fingerprint(lake, run)
    ask(lake, Action.EXCLUDE, key_of("owner", "owner 1"))
    report = fingerprint(lake, run)
    assert (report.rows_in, report.rows_out, report.computed) == (3, 3, 0)


def test_what_was_fingerprinted_before_the_request_is_not_captioned(lake: Lake, run: SourceRun) -> None:
    fingerprint(lake, run)
    ask(lake, Action.EXCLUDE, key_of("owner", "owner 1"))
    shown = Key(kind=KeyKind.IMAGE, value="c" * 64, fingerprint=printed(again(2)))
    ask(lake, Action.EXCLUDE, shown)
    report = caption(lake, run)
    assert (report.rows_in, report.rows_out, report.dropped, report.computed) == (3, 1, {"optout": 2}, 1)
    assert drops(lake) == {"p0.jpg": None, "p1.jpg": "optout", "p2.jpg": "optout"}
    row = rows_of(lake, "made", "tier", "ar", "phash", "image")[2]
    assert (row["tier"], row["ar"], row["phash"]) == (0, None, fingerprint_of(picture(2)).phash)
    assert fingerprint(lake, run).rows_out == 1
    assert caption(lake, run).model_dump(exclude={"seconds", "computed"}) == report.model_dump(
        exclude={"seconds", "computed"}
    )


def test_a_row_that_is_a_copy_of_a_new_row_that_a_key_names_is_not_captioned(lake: Lake, made: Made) -> None:
    """Neither is a copy of that one: the first is dropped unread, so that no watch can know what it shows before the ledger has looked."""
    images = [stored(picture(1)), stored(picture(1, 900, 900)), stored(picture(2))]
    for n, data in enumerate(images):
        made.put(f"images/p{n}.jpg", data)
    made.table([{"file": f"p{n}.jpg", "caption": "x", "owner": f"owner {n}"} for n in range(len(images))])
    made.config["columns"] = Columns(key="file", caption="caption", owner="owner")
    run = made.run()
    settled = ask(lake, Action.EXCLUDE, key_of("owner", "owner 0"))
    apply_request(lake, [settled])
    stage(lake, run)
    ingest(lake, run)
    assert fingerprint(lake, run).dropped == {"optout": 1}
    assert caption(lake, run).dropped == {"optout": 2}
    assert drops(lake) == {"p0.jpg": "optout", "p1.jpg": "optout", "p2.jpg": None}
    position = newest_position(lake)
    assert set(read_snapshot(lake, position).ids) == {"made/p0.jpg", "made/p1.jpg"}


def test_what_was_captioned_before_the_request_stays_captioned(lake: Lake, run: SourceRun) -> None:
    fingerprint(lake, run)
    before = caption(lake, run)
    ask(lake, Action.EXCLUDE, key_of("owner", "owner 1"))
    assert caption(lake, run).model_dump(exclude={"seconds", "computed"}) == before.model_dump(
        exclude={"seconds", "computed"}
    )


def test_rows_that_an_older_smalti_fingerprinted_are_refused_and_never_compared(lake: Lake, run: SourceRun) -> None:
    fingerprint(lake, run)
    table = lance.dataset(lake.table("made"))
    table.drop_columns(["colour"])

    @lance.batch_udf(output_schema=pa.schema([("colour", pa.binary(192))]))
    def older(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array([bytes(192)] * batch.num_rows, pa.binary(192))], ["colour"])

    table.add_columns(older, read_columns=["id"])
    ask(lake, Action.EXCLUDE, Key(kind=KeyKind.IMAGE, value="c" * 64, fingerprint=printed(again(2))))
    with pytest.raises(InputError, match=r"made\.lance: fingerprinted by an older smalti: thumbnails of 192 bytes"):
        leave_out(lake, "made", "b1", "caption")


ROBOTS: dict[str, Any] = {"p0.jpg": "noindex, NoImageAI", "p1.jpg": "noindex", "p2.jpg": "", "p3.jpg": "?"}


def batch_of(lake: Lake, run: SourceRun) -> tuple[IngestReport, FingerprintReport]:
    stage(lake, run)
    return ingest(lake, run), fingerprint(lake, run)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_reserved_row_is_in_the_table_and_dropped_with_its_origin(
    lake: Lake, made: Made, decoded: list[int], kind: str
) -> None:
    tdm: list[Any] = ["1", "0", "", "1"] if kind == "csv" else [True, False, None, True]
    rows = [{"file": name, "robots": said, "tdm": tdm[n]} for n, (name, said) in enumerate(ROBOTS.items())]
    made.table(rows, kind)
    ingested, report = batch_of(lake, made.run(columns=reserving(("robots", "noai"), ("tdm", "tdm"))))
    assert (ingested.rows_out, ingested.dropped) == (4, {})
    (warning,) = ingested.warnings
    assert warning.startswith("1 rows count as reserved (noai) because column 'robots' says neither yes nor no")
    assert (report.rows_in, report.rows_out, report.dropped) == (4, 2, {"optout": 2})
    assert report.reserved == {"noai+tdm": 1, "noai?+tdm": 1}
    assert len(decoded) == 2
    assert {row["id"]: row["reserved"] for row in rows_of(lake, "made", "reserved")} == {
        "made/p0.jpg": "noai+tdm",
        "made/p1.jpg": None,
        "made/p2.jpg": None,
        "made/p3.jpg": "noai?+tdm",
    }
    told = trace(lake, "made/p0.jpg").deliveries[0]
    assert told.fell_out == "fingerprint: optout (reserved: noai+tdm)"
    assert [(each.id, each.reason, each.detail) for each in _without_bucket(lake, "made", "b1", 9)] == [
        ("made/p0.jpg", "optout", "reserved: noai+tdm"),
        ("made/p3.jpg", "optout", "reserved: noai?+tdm"),
    ]
    held = describe(lake, made.source())
    assert (held["drops"], held["reserved"]) == ({"optout": 2}, {"noai+tdm": 1, "noai?+tdm": 1})


def test_rows_that_hold_their_images_are_reserved_alike(lake: Lake, made: Made) -> None:
    rows = [
        {"file": n, "image": stored(picture(n)), "ai": said, "tdm": tdm}
        for n, (said, tdm) in enumerate([("allow", 0.0), ("Disallow", None), ("allow", 1.0), (None, float("nan"))])
    ]
    made.put("rows/a.parquet", as_parquet(rows, row_group_size=2))
    columns = reserving(("ai", "ai.txt"), ("tdm", "tdm"), image="image")
    run = made.run(format="parquet", table=None, images="", uri=f"{made.root}/rows", columns=columns)
    ingested, report = batch_of(lake, run)
    assert ingested.warnings == ()
    assert (report.rows_out, report.reserved) == (2, {"ai.txt": 1, "tdm": 1})
    assert drops(lake) == {"0": None, "1": "optout", "2": "optout", "3": None}


def test_a_table_that_exists_gets_the_column_and_keeps_it_when_the_source_names_none(lake: Lake, made: Made) -> None:
    plain = Columns(key="file", others="ignore")

    def deliver(batch: str, number: int, columns: Columns) -> FingerprintReport:
        made.put(f"images/p{number}.jpg", stored(picture(number)))
        made.table([{"file": f"p{n}.jpg", "tdm": "1"} for n in range(number + 1)])
        return batch_of(lake, made.run(batch, columns=columns))[1]

    assert deliver("b1", 3, plain).dropped == {}
    report = deliver("b2", 4, reserving(("tdm", "tdm")))
    assert (report.dropped, report.reserved) == ({"optout": 1}, {"tdm": 1})
    assert deliver("b3", 5, plain).dropped == {}
    assert [row["reserved"] for row in rows_of(lake, "made", "reserved")] == [*[None] * 4, "tdm", None]


def test_a_try_that_was_killed_after_its_commit_warns_all_the_same(
    lake: Lake, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.table([{"file": f"p{n}.jpg", "tdm": "maybe"} for n in range(4)])
    run = made.run(columns=reserving(("tdm", "tdm")))
    stage(lake, run)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ingest_module, "_batch_rows", lambda uri, batch: killed() if lance_rows(uri) else 0)
        with pytest.raises(KeyboardInterrupt):
            ingest(lake, run)
    assert ingest(lake, run).warnings[0].startswith("4 rows count as reserved (tdm)")


def lance_rows(uri: str) -> int:
    try:
        return int(lance.dataset(uri).count_rows())
    except ValueError:
        return 0


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"file": "p0.jpg", "robots": ""}], "the table has no column 'tdm'"),
        ([{"file": "p0.jpg", "tdm": ["1"]}], "column 'tdm' cannot be the reservation: it holds list<"),
    ],
)
def test_a_column_that_is_not_there_or_cannot_say_it_is_one_line(
    lake: Lake, made: Made, rows: list[dict[str, Any]], says: str
) -> None:
    made.table(rows, "jsonl")
    with pytest.raises(InputError, match=says):
        batch_of(lake, made.run(columns=reserving(("tdm", "tdm"))))
