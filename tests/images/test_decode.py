"""decode() against pixels that are known without a decoder."""

from __future__ import annotations

import pickle
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from smalti.images import decode as module
from smalti.images.decode import DecodeError, Probe, decode, probe
from smalti.reasons import RejectReason
from tests.images import crafted
from tests.images.crafted import Pixels, png, quadrants, saved

PICTURE = quadrants()
TURNS: dict[int, Callable[[Pixels], Pixels]] = {
    1: lambda p: p,
    2: lambda p: p[:, ::-1],
    3: lambda p: p[::-1, ::-1],
    4: lambda p: p[::-1],
    5: lambda p: p.transpose(1, 0, 2),
    6: lambda p: np.rot90(p, 1),
    7: lambda p: p[::-1, ::-1].transpose(1, 0, 2),
    8: lambda p: np.rot90(p, -1),
}
"""EXIF orientation -> what a camera that writes it has stored of an upright picture."""


def pixels(data: bytes) -> Pixels:
    image = decode(data)
    assert (image.mode, image.info) == ("RGB", {})
    found = probe(data)
    assert (found.width, found.height) == image.size
    return np.asarray(image)


def assert_close(found: Pixels, expected: Pixels, levels: int) -> None:
    assert found.shape == expected.shape
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= levels


def reason_of(data: bytes, **limits: int) -> RejectReason:
    with pytest.raises(DecodeError) as caught:
        decode(data, **limits)
    assert str(caught.value).startswith(caught.value.reason.value)
    return caught.value.reason


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize(("kind", "levels"), [("JPEG", 3), ("PNG", 0), ("WEBP", 0), ("TIFF", 0), ("AVIF", 12)])
def test_every_exif_orientation_comes_out_upright(orientation: int, kind: str, levels: int) -> None:
    stored = Image.fromarray(np.ascontiguousarray(TURNS[orientation](PICTURE)))
    options: dict[str, dict[str, Any]] = {
        "JPEG": {"quality": 100, "subsampling": 0},
        "WEBP": {"lossless": True},
        "AVIF": {"quality": 100, "subsampling": "4:4:4"},
    }
    data = saved(stored, kind, exif=crafted.exif(orientation), **options.get(kind, {}))
    assert probe(data) == Probe(kind.lower(), 96, 64)
    assert_close(pixels(data), PICTURE, levels)


def test_an_exif_chunk_behind_the_pixels_of_a_png_is_found() -> None:
    data = saved(Image.fromarray(np.ascontiguousarray(TURNS[6](PICTURE))), "PNG")
    body = crafted.exif(6).removeprefix(b"Exif\0\0")
    chunk = struct.pack(">I", len(body)) + b"eXIf" + body + struct.pack(">I", zlib.crc32(b"eXIf" + body))
    assert_close(pixels(data[:-12] + chunk + data[-12:]), PICTURE, 0)


@pytest.mark.parametrize("value", [0, 9, 700])
def test_an_orientation_that_does_not_exist_leaves_the_picture_as_stored(value: int) -> None:
    assert_close(pixels(saved(Image.fromarray(PICTURE), "PNG", exif=crafted.exif(value))), PICTURE, 0)


def test_damaged_exif_leaves_the_picture_as_stored() -> None:
    data = saved(Image.fromarray(PICTURE), "JPEG", quality=100, subsampling=0, exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    assert_close(pixels(data), PICTURE, 3)


def inks() -> tuple[Pixels, Pixels]:
    """Eight patches of ink, and what Pillow's plain mixing makes of them: (255-ink) * (255-black) / 255."""
    patches = [
        (0, 0, 0, 0), (255, 0, 0, 0), (0, 255, 0, 0), (0, 0, 255, 0),
        (0, 0, 0, 255), (100, 50, 0, 0), (0, 100, 50, 60), (200, 20, 30, 100),
    ]  # fmt: skip
    cmyk = np.repeat(np.repeat(np.array([patches], np.uint8), 16, 0), 16, 1)
    rest = 255.0 - cmyk
    return cmyk, np.rint(rest[..., :3] * rest[..., 3:] / 255).astype(np.uint8)


def test_a_cmyk_jpeg_has_the_right_colours() -> None:
    cmyk, expected = inks()
    data = saved(Image.fromarray(cmyk, "CMYK"), "JPEG", quality=100, subsampling=0)
    assert_close(pixels(data), expected, 3)


def test_a_ycck_jpeg_has_the_right_colours() -> None:
    cmyk, expected = inks()
    assert_close(pixels(crafted.ycck_jpeg(cmyk)), expected, 4)


def test_a_cmyk_profile_decides_the_colours() -> None:
    lab = {
        (0, 0, 0, 0): (100.0, 0.0, 0.0),
        (1, 0, 0, 0): (60.0, -20.0, -30.0),
        (0, 1, 0, 0): (50.0, 50.0, 0.0),
        (0, 0, 1, 0): (85.0, 0.0, 60.0),
    }
    cmyk = np.repeat(np.repeat(np.array([[tuple(255 * i for i in c) for c in lab]], np.uint8), 16, 0), 16, 1)
    image = Image.fromarray(cmyk, "CMYK")
    profile = crafted.cmyk_profile(lab)
    data = saved(image, "JPEG", quality=100, subsampling=0, icc_profile=profile)
    wanted = [crafted.srgb_of_lab(*value) for value in lab.values()]
    expected = np.repeat(np.repeat(np.rint([wanted]).astype(np.uint8), 16, 0), 16, 1)
    assert_close(pixels(data), expected, 6)
    plain = np.asarray(decode(saved(image, "JPEG", quality=100, subsampling=0)))
    assert np.abs(plain.astype(int) - expected.astype(int)).max() > 40


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_wide_gamut_profile_is_converted_to_srgb(kind: str) -> None:
    patches = np.array([[(200, 100, 80), (90, 160, 90), (80, 90, 170), (128, 128, 128), (240, 230, 220)]], np.uint8)
    stored = np.repeat(np.repeat(patches, 16, 0), 16, 1)
    linear = (stored / 255.0) ** (563 / 256) @ crafted.P3_D50.T @ np.linalg.inv(crafted.SRGB_D50).T
    options: dict[str, dict[str, Any]] = {"JPEG": {"quality": 100, "subsampling": 0}, "WEBP": {"lossless": True}}
    profile = crafted.rgb_profile(crafted.P3_D50, 563 / 256)
    data = saved(Image.fromarray(stored), kind, icc_profile=profile, **options.get(kind, {}))
    expected = np.rint(crafted.srgb_encoded(linear)).astype(np.uint8)
    assert np.abs(expected.astype(int) - stored.astype(int)).max() > 15
    assert_close(pixels(data), expected, 4)


def test_a_profile_applies_to_the_colours_below_an_alpha_channel() -> None:
    stored = np.full((16, 16, 4), (200, 100, 80, 255), np.uint8)
    stored[:, 8:, 3] = 0
    profile = crafted.rgb_profile(crafted.P3_D50, 563 / 256)
    found = pixels(saved(Image.fromarray(stored), "PNG", icc_profile=profile))
    linear = (np.array([200, 100, 80]) / 255.0) ** (563 / 256) @ crafted.P3_D50.T @ np.linalg.inv(crafted.SRGB_D50).T
    assert_close(found[:, :8], np.broadcast_to(np.rint(crafted.srgb_encoded(linear)), (16, 8, 3)).astype(np.uint8), 3)
    assert (found[:, 8:] == 255).all()


def test_a_grey_profile_is_converted_to_srgb() -> None:
    ramp = np.repeat(np.arange(256, dtype=np.uint8)[None], 4, 0)
    found = pixels(saved(Image.fromarray(ramp), "PNG", icc_profile=crafted.grey_profile(1.0)))
    expected = np.rint(crafted.srgb_encoded(ramp / 255.0)).astype(np.uint8)
    assert_close(found, np.repeat(expected[..., None], 3, 2), 2)


def test_an_rgb_profile_on_a_grey_picture_is_applied_to_its_three_equal_channels() -> None:
    ramp = np.repeat(np.arange(256, dtype=np.uint8)[None], 4, 0)
    found = pixels(saved(Image.fromarray(ramp), "PNG", icc_profile=crafted.rgb_profile(crafted.SRGB_D50, 1.0)))
    expected = np.rint(crafted.srgb_encoded(ramp / 255.0)).astype(np.uint8)
    assert_close(found, np.repeat(expected[..., None], 3, 2), 3)


def test_an_srgb_profile_moves_no_sample() -> None:
    from PIL import ImageCms

    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    assert_close(pixels(saved(Image.fromarray(noise), "PNG", icc_profile=profile)), noise, 0)


@pytest.mark.parametrize("profile", [b"no profile at all", crafted.cmyk_profile({})])
def test_a_damaged_or_unfitting_profile_is_left_aside(profile: bytes) -> None:
    assert_close(pixels(saved(Image.fromarray(PICTURE), "PNG", icc_profile=profile)), PICTURE, 0)


def test_palette_transparency_is_laid_on_white() -> None:
    image = Image.fromarray(PICTURE).quantize(8)
    index = np.asarray(image)
    opacity = bytes(0 if i == index[0, 0] else 255 for i in range(8))
    expected = np.asarray(image.convert("RGB")).copy()
    expected[index == index[0, 0]] = 255
    assert_close(pixels(saved(image, "PNG", transparency=opacity)), expected, 0)
    assert (pixels(saved(image, "GIF", transparency=int(index[0, 0])))[0, 0] == 255).all()


def test_half_transparent_palette_entries_are_mixed_with_white() -> None:
    chunks = ((b"PLTE", bytes((200, 0, 0, 0, 0, 100))), (b"tRNS", bytes((51, 255))))
    found = pixels(png(2, 1, 8, 3, np.array([0, 1], np.uint8), *chunks))
    assert_close(found, np.array([[(244, 204, 204), (0, 0, 100)]], np.uint8), 1)


@pytest.mark.parametrize("alpha", [0, 64, 128, 255])
def test_alpha_is_laid_on_white(alpha: int) -> None:
    rgba = np.dstack([PICTURE, np.full(PICTURE.shape[:2], alpha, np.uint8)])
    expected = np.rint(255 - (255.0 - PICTURE) * alpha / 255).astype(np.uint8)
    for data in (
        saved(Image.fromarray(rgba), "PNG"),
        saved(Image.fromarray(rgba), "WEBP", lossless=True, exact=True),
        saved(Image.fromarray(rgba), "TIFF"),
    ):
        assert_close(pixels(data), expected, 1)
    grey_alpha = np.full((8, 8, 2), (60, alpha), np.uint8)
    found = pixels(saved(Image.fromarray(grey_alpha, "LA"), "PNG"))
    assert np.abs(found.astype(int) - (255 - 195 * alpha / 255)).max() <= 1


def test_16_bit_grey_is_scaled_and_not_clipped() -> None:
    ramp = np.linspace(0, 65535, 512).astype(np.uint16).reshape(16, 32)
    expected = np.repeat((ramp >> 8).astype(np.uint8)[..., None], 3, 2)
    assert_close(pixels(saved(Image.fromarray(ramp), "PNG")), expected, 0)
    assert_close(pixels(saved(Image.fromarray(ramp), "TIFF")), expected, 0)
    assert_close(pixels(png(32, 16, 16, 0, ramp.astype(">u2").view(np.uint8))), expected, 0)


def test_12_bit_grey_is_scaled_to_its_own_white() -> None:
    found = pixels(crafted.tiff_12_bit_grey([0, 0x123, 0x800, 0xFFF]))
    assert found[0, :, 0].tolist() == [0, 0x12, 0x80, 0xFF]


def test_16_bit_grey_where_white_is_zero_is_turned_over() -> None:
    ramp = np.linspace(0, 65535, 512).astype(np.uint16).reshape(16, 32)
    data = bytearray(saved(Image.fromarray(ramp), "TIFF"))
    entry = data.index(struct.pack("<HHI", 262, 3, 1))
    assert data[entry + 8] == 1
    data[entry + 8] = 0
    expected = np.repeat(((65535 - ramp) >> 8).astype(np.uint8)[..., None], 3, 2)
    assert_close(pixels(bytes(data)), expected, 0)


def test_the_transparent_level_of_16_bit_grey_is_white() -> None:
    samples = np.array([[0x1234, 0x1235, 0xFFFF]], ">u2")
    found = pixels(png(3, 1, 16, 0, samples.view(np.uint8), (b"tRNS", b"\x12\x34")))
    assert found[0, :, 0].tolist() == [255, 0x12, 255]


@pytest.mark.parametrize(("colour", "channels"), [(2, 3), (6, 4), (4, 2)])
def test_16_bit_colour_and_alpha_are_scaled(colour: int, channels: int) -> None:
    generator = np.random.default_rng(1)
    samples = generator.integers(0, 65536, (8, 8, channels)).astype(">u2")
    if channels != 3:
        samples[..., -1] = 65535
    shown = samples[..., :3] if channels != 2 else np.repeat(samples[..., :1], 3, 2)
    assert_close(pixels(png(8, 8, 16, colour, samples.view(np.uint8))), (shown >> 8).astype(np.uint8), 0)


def test_one_bit_pictures_are_black_and_white() -> None:
    board = np.indices((16, 24)).sum(0) % 2 == 0
    expected = np.repeat(np.where(board, 255, 0).astype(np.uint8)[..., None], 3, 2)
    for kind in ("PNG", "TIFF", "BMP"):
        assert_close(pixels(saved(Image.fromarray(board), kind)), expected, 0)


def test_grey_pictures_get_three_equal_channels() -> None:
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16)
    assert_close(pixels(saved(Image.fromarray(ramp), "PNG")), np.repeat(ramp[..., None], 3, 2), 0)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF", "AVIF"])
def test_of_an_animation_the_first_frame_is_taken(kind: str) -> None:
    frames = [Image.new("RGB", (32, 32), colour) for colour in ("#c81e1e", "#1ec81e", "#1e1ec8")]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = saved(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert_close(pixels(data), np.full((32, 32, 3), (200, 30, 30), np.uint8), 6 if kind == "AVIF" else 0)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "GIF", "BMP", "AVIF"])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_cut_file_is_truncated_and_not_half_grey(kind: str, share: float) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (128, 128, 3), dtype=np.uint8)
    data = saved(Image.fromarray(noise), kind)
    assert reason_of(data[: int(len(data) * share)]) == RejectReason.TRUNCATED


def test_a_cut_progressive_jpeg_is_truncated() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (128, 128, 3), dtype=np.uint8)
    data = saved(Image.fromarray(noise), "JPEG", progressive=True)
    assert reason_of(data[: len(data) * 9 // 10]) == RejectReason.TRUNCATED


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "GIF", "BMP"])
def test_a_file_cut_within_its_header_is_truncated(kind: str) -> None:
    assert reason_of(saved(Image.fromarray(PICTURE), kind)[:16]) == RejectReason.TRUNCATED


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", RejectReason.EMPTY),
        (b"<!DOCTYPE html><html><body>404 Not Found</body></html>", RejectReason.NOT_AN_IMAGE),
        (b"this is a text file called .jpg\n", RejectReason.NOT_AN_IMAGE),
        (bytes(4096), RejectReason.NOT_AN_IMAGE),
        (b"\xff", RejectReason.NOT_AN_IMAGE),
        (b"<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg'/>", RejectReason.UNSUPPORTED_FORMAT),
        (b"8BPS" + bytes(40), RejectReason.UNSUPPORTED_FORMAT),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n(rm -rf /) run", RejectReason.UNSUPPORTED_FORMAT),
        (b"%PDF-1.7\n", RejectReason.UNSUPPORTED_FORMAT),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(40), RejectReason.UNSUPPORTED_FORMAT),
        (saved(Image.fromarray(PICTURE), "JPEG2000"), RejectReason.UNSUPPORTED_FORMAT),
        (saved(Image.new("F", (8, 8)), "TIFF"), RejectReason.UNSUPPORTED_FORMAT),
        (saved(Image.new("I", (8, 8)), "TIFF"), RejectReason.UNSUPPORTED_FORMAT),
    ],
    ids=lambda value: value.name if isinstance(value, RejectReason) else repr(value[:12]),
)
def test_what_is_no_picture_is_refused_with_its_reason(data: bytes, reason: RejectReason) -> None:
    assert reason_of(data) == reason


def bombs() -> Iterator[tuple[str, bytes]]:
    yield "png", png(60_000, 60_000, 8, 2, np.zeros((60_000, 0), np.uint8))
    gif = bytearray(saved(Image.new("P", (8, 8)), "GIF"))
    gif[6:10] = struct.pack("<HH", 60_000, 60_000)
    yield "gif", bytes(gif)
    jpeg = bytearray(saved(Image.new("L", (8, 8)), "JPEG"))
    at = jpeg.index(b"\xff\xc0")
    jpeg[at + 5 : at + 9] = struct.pack(">HH", 60_000, 60_000)
    yield "jpeg", bytes(jpeg)
    bmp = bytearray(saved(Image.new("L", (8, 8)), "BMP"))
    bmp[18:26] = struct.pack("<ii", 60_000, 60_000)
    yield "bmp", bytes(bmp)


@pytest.mark.parametrize(("name", "data"), bombs(), ids=lambda value: value if isinstance(value, str) else "")
def test_a_bomb_is_refused_by_its_header(name: str, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("a pixel was decoded"))
    with pytest.raises(DecodeError, match="3,600,000,000 pixels, and the limit is 200,000,000") as caught:
        decode(data)
    assert caught.value.reason == RejectReason.TOO_MANY_PIXELS
    with pytest.raises(DecodeError):
        probe(data)


def test_the_pixel_limit_is_the_callers_and_exact() -> None:
    data = saved(Image.fromarray(PICTURE), "PNG")
    assert decode(data, max_pixels=96 * 64).size == (96, 64)
    assert reason_of(data, max_pixels=96 * 64 - 1) == RejectReason.TOO_MANY_PIXELS


def test_pillows_global_settings_neither_matter_nor_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    data = saved(Image.fromarray(PICTURE), "PNG")
    assert_close(pixels(data), PICTURE, 0)
    assert reason_of(data[: len(data) // 2]) == RejectReason.TRUNCATED
    assert (ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS) == (True, 10)


def test_threads_decode_together_and_leave_pillows_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    data = saved(Image.fromarray(PICTURE), "PNG")
    found: list[Pixels] = []
    threads = [threading.Thread(target=lambda: found.extend(pixels(data) for _ in range(20))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    assert Image.MAX_IMAGE_PIXELS == 10
    assert module._inside == 0


def test_a_decode_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(DecodeError(RejectReason.TRUNCATED, "damaged png: x")))
    assert (error.reason, error.detail, str(error)) == (
        RejectReason.TRUNCATED,
        "damaged png: x",
        "truncated: damaged png: x",
    )


VALID = [
    saved(
        Image.fromarray(PICTURE),
        "JPEG",
        exif=crafted.exif(6),
        icc_profile=crafted.rgb_profile(crafted.P3_D50, 2.2),
    ),
    saved(Image.fromarray(PICTURE), "PNG", exif=crafted.exif(3)),
    saved(Image.fromarray(PICTURE), "WEBP"),
    saved(Image.fromarray(PICTURE), "GIF"),
    saved(Image.fromarray(PICTURE), "TIFF", compression="tiff_lzw"),
    saved(Image.fromarray(PICTURE), "BMP"),
]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(VALID), st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=6)), min_size=1, max_size=4))
@pytest.mark.filterwarnings("ignore")
def test_damaged_bytes_end_in_a_picture_or_a_decode_error(data: bytes, patches: list[tuple[float, bytes]]) -> None:
    damaged = bytearray(data)
    for where, patch in patches:
        at = int(where * len(damaged))
        damaged[at : at + len(patch)] = patch
    try:
        image = decode(bytes(damaged), max_pixels=1 << 20)
    except DecodeError:
        return
    found = probe(bytes(damaged))
    assert (image.mode, image.size) == ("RGB", (found.width, found.height))
