"""The demo's source: the same bytes every time, and a truth that holds."""

from __future__ import annotations

import contextlib
import csv
import hashlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from demo.source import CAPTIONS, COLUMNS, KEPT, Expected, Truth, load_truth, make_source
from smalti.images.buckets import bucket_of
from smalti.images.decode import DecodeError, decode
from smalti.images.fingerprint import Fingerprint, fingerprint
from smalti.reasons import DropReason
from tests.curation.pairwise import Copy, find_duplicates

Pictures = dict[str, tuple[Expected, Fingerprint, tuple[int, int]]]


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    return make_source(tmp_path_factory.mktemp("demo") / "source")


@pytest.fixture(scope="module")
def pictures(truth: Truth) -> Pictures:
    """Fingerprint and size of everything that can be decoded."""
    found = {}
    for expected in truth.inputs:
        with contextlib.suppress(DecodeError):
            picture = decode(data(truth, expected))
            found[expected.file] = (expected, fingerprint(picture), picture.size)
    return found


def data(truth: Truth, expected: Expected) -> bytes:
    return (truth.source / "images" / expected.file).read_bytes()


def hashes(directory: Path) -> dict[str, str]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_two_sources_have_the_same_bytes(tmp_path: Path) -> None:
    one, other = (make_source(tmp_path / name / "source", count=3) for name in ("one", "other"))
    assert hashes(one.source) == hashes(other.source)
    assert hashes(one.directory) == hashes(other.directory)
    assert one.inputs == other.inputs


def test_making_it_again_touches_no_file(tmp_path: Path) -> None:
    make_source(tmp_path / "source", count=2)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    make_source(tmp_path / "source", count=2)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == times


def test_a_file_that_was_damaged_is_made_anew(tmp_path: Path) -> None:
    truth = make_source(tmp_path / "source", count=1)
    whole = hashes(truth.source)
    (truth.source / "images" / "screenshot.png").write_bytes(b"damaged")
    make_source(tmp_path / "source", count=1)
    assert hashes(truth.source) == whole


def test_the_truth_and_the_table_name_every_file_once(truth: Truth) -> None:
    files = sorted(path.name for path in (truth.source / "images").iterdir())
    with (truth.source / "captions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [expected.file for expected in truth.inputs] == files
    assert [row["file"] for row in rows] == files
    assert tuple(rows[0]) == COLUMNS
    assert all(row[name].strip() for row in rows for name in COLUMNS)
    assert load_truth(truth.source) == truth


def test_the_truth_is_no_part_of_the_source(truth: Truth) -> None:
    assert not truth.directory.is_relative_to(truth.source)


def test_every_photograph_has_a_caption_of_its_own() -> None:
    with CAPTIONS.open(newline="") as file:
        captions = {row["file"]: row["caption"] for row in csv.DictReader(file)}
    assert len(captions) >= 50
    assert len(set(captions.values())) == len(captions)


def test_every_kind_of_company_is_there(truth: Truth) -> None:
    outcomes = {expected.outcome for expected in truth.inputs}
    assert outcomes == {
        KEPT,
        "rejected:truncated",
        "rejected:not_an_image",
        "rejected:empty",
        "dropped:too_small",
        "dropped:aspect_ratio",
        "skipped:duplicate",
        "skipped:text",
    }


def test_what_is_to_be_rejected_cannot_be_decoded_for_that_reason(truth: Truth) -> None:
    for expected in truth.with_outcome("rejected"):
        with pytest.raises(DecodeError) as caught:
            decode(data(truth, expected))
        assert expected.outcome == f"rejected:{caught.value.reason}"


def test_everything_else_decodes_to_the_stated_size(truth: Truth, pictures: Pictures) -> None:
    rejected = {expected.file for expected in truth.with_outcome("rejected")}
    assert set(pictures) == {expected.file for expected in truth.inputs} - rejected
    for expected, _, size in pictures.values():
        assert size == (expected.width, expected.height), expected.file


def test_what_is_dropped_has_no_bucket_for_that_reason(truth: Truth) -> None:
    rejected, dropped = truth.with_outcome("rejected"), truth.with_outcome("dropped")
    for expected in truth.inputs:
        if expected in rejected:
            continue
        bucket = bucket_of(expected.width, expected.height)
        if expected in dropped:
            assert isinstance(bucket, DropReason)
            assert expected.outcome == f"dropped:{bucket}"
        else:
            assert not isinstance(bucket, DropReason), expected.file


def test_awkward_colours_and_orientations_are_decoded_to_the_right_pixels(truth: Truth) -> None:
    hard = [expected for expected in truth.inputs if expected.reference]
    assert len(hard) >= 5
    for expected in hard:
        right = np.asarray(Image.open(truth.directory / expected.reference).convert("RGB"), np.int16)
        found = np.asarray(decode(data(truth, expected)), np.int16)
        assert np.abs(found - right).mean() <= expected.tolerance, expected.file
        # The references can tell right from wrong: turned, inverted and with red and blue exchanged they are far off.
        others = [255 - right, right[::-1, ::-1]]
        if np.ptp(right, axis=2).max() > 0:
            others.append(right[..., ::-1])
        assert min(np.abs(other - right).mean() for other in others) > 5 * expected.tolerance, expected.file


def test_the_copy_that_is_kept_has_the_most_pixels(truth: Truth) -> None:
    files = {expected.file: expected for expected in truth.inputs}
    copies = truth.with_outcome("skipped:duplicate")
    smaller = [copy for copy in copies if copy.width < files[copy.twin].width]
    for copy in copies:
        kept = files[copy.twin]
        assert kept.outcome == KEPT
        assert copy.width * copy.height <= kept.width * kept.height
        assert copy in smaller or copy.file > kept.file, "equal copies: the smallest id is kept"
    # Neither the order of names nor tiers decide: smaller copies sort before what they copy, and lie in other tiers.
    assert all(copy.file < copy.twin for copy in smaller if copy.file.startswith("half"))
    assert len({copy.width * copy.height for copy in smaller}) >= 3
    same = [copy for copy in copies if data(truth, copy) == data(truth, files[copy.twin])]
    assert len(same) == 1


def test_dedup_finds_the_planted_copies_and_no_other(truth: Truth, pictures: Pictures) -> None:
    samples = [
        Copy(expected.file, hashlib.sha256(data(truth, expected)).hexdigest(), found, expected.width, expected.height)
        for expected, found, _ in pictures.values()
        if not expected.outcome.startswith("dropped")
    ]
    planted = {expected.file: expected.twin for expected in truth.with_outcome("skipped:duplicate")}
    assert find_duplicates(samples) == planted


def test_flat_fields_could_be_taken_for_each_other_by_their_hash_alone(pictures: Pictures) -> None:
    flat = [pictures[name][1] for name in ("flat-crimson.png", "flat-teal.png", "blank-white.jpg")]
    assert all(each.flat for each in flat)
    assert len({each.phash for each in flat}) == 1
