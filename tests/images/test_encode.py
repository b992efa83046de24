from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from smalti.images.encode import Encoding, encode, quality_tables, read_tables

# ITU-T T.81 K.1 and K.2 scaled by libjpeg's 200 - 2 * 92 = 16 percent, first row.
FIRST_ROWS_OF_92 = (3, 2, 2, 3, 4, 6, 8, 10), (3, 3, 4, 8, 16, 16, 16, 16)


def photo() -> Image.Image:
    from skimage import data

    return Image.fromarray(data.astronaut())


def test_the_default_is_quality_92_with_halved_chroma() -> None:
    data = encode(photo())
    assert read_tables(data) == quality_tables(92)
    assert tuple(table[:8] for table in read_tables(data)) == FIRST_ROWS_OF_92
    frame = data.index(b"\xff\xc0")  # baseline
    factors = [data[frame + 11 + 3 * channel] for channel in range(3)]
    assert factors == [0x22, 0x11, 0x11]


def test_chroma_444_keeps_every_colour_sample() -> None:
    data = encode(photo(), chroma="444")
    frame = data.index(b"\xff\xc0")
    assert [data[frame + 11 + 3 * channel] for channel in range(3)] == [0x11, 0x11, 0x11]


@pytest.mark.parametrize("quality", [1, 10, 49, 50, 51, 75, 92, 99, 100])
def test_the_tables_of_a_quality_are_libjpegs(quality: int) -> None:
    assert read_tables(encode(photo().resize((64, 64)), quality=quality)) == quality_tables(quality)


def test_the_stored_picture_is_close_to_the_original() -> None:
    original = np.asarray(photo(), np.float64)
    stored = np.asarray(Image.open(io.BytesIO(encode(photo()))), np.float64)
    assert 10 * np.log10(255**2 / np.mean((original - stored) ** 2)) > 36


def test_png_keeps_every_sample() -> None:
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(encode(photo(), "png")))), np.asarray(photo()))


@pytest.mark.parametrize("encoding", ["jpeg", "png"])
def test_metadata_is_not_stored_and_the_bytes_are_the_same_each_time(encoding: Encoding) -> None:
    image = photo()
    plain = encode(image, encoding)
    image.info = {"icc_profile": b"x" * 200, "comment": b"someone", "exif": b"Exif\0\0MM", "dpi": (300, 300)}
    assert encode(image, encoding) == plain
    assert "icc_profile" in image.info  # the caller's picture is left alone


def test_what_is_no_setting_is_refused() -> None:
    image = photo()
    for settings in ({"encoding": "webp"}, {"quality": 0}, {"quality": 101}, {"chroma": "422"}):
        with pytest.raises(ValueError, match=str(next(iter(settings.values())))):
            encode(image, **settings)
    with pytest.raises(ValueError, match="mode RGBA"):
        encode(image.convert("RGBA"))
    with pytest.raises(ValueError, match="not a JPEG"):
        read_tables(encode(image, "png"))
