"""Bytes of any image file in, one upright sRGB picture out; whatever cannot be that is refused with its reason.

What is decoded: the first frame, turned as EXIF says, its ICC profile converted to sRGB, transparency laid on white,
16-bit samples reduced to their high byte. What a file means never depends on Pillow's global settings.
"""

from __future__ import annotations

import contextlib
import functools
import io
import struct
import threading
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from PIL import ExifTags, Image, ImageCms, ImageFile, TiffImagePlugin, UnidentifiedImageError

from smalti.reasons import RejectReason

MAX_PIXELS = 200_000_000
"""Above the largest single frame a camera takes (151 Mpx); Pillow holds 4 bytes a pixel, so 0.8 GB."""

FORMATS = ("avif", "bmp", "gif", "jpeg", "png", "tiff", "webp")

UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation -> what turns the stored picture upright (EXIF 2.3, 4.6.4)."""


class Probe(NamedTuple):
    """What the header says: ``format`` is one of FORMATS, width and height are upright, px."""

    format: str
    width: int
    height: int


class DecodeError(Exception):
    """One image's fault, not the run's: the row is rejected with ``reason``, and ``detail`` says more to a person."""

    def __init__(self, reason: RejectReason, detail: str) -> None:
        super().__init__(reason, detail)  # in args, so that it survives Ray's pickling
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.detail}"


def probe(data: bytes, max_pixels: int = MAX_PIXELS) -> Probe:
    """Format and upright size from the header alone; a file that is cut off further on passes.

    Raises:
        DecodeError: empty, not_an_image, unsupported_format, truncated (a damaged header), too_many_pixels.
    """
    with _strict_pillow():
        image, name = _open(data, max_pixels)
        width, height = image.size
        turned = _orientation(image, data) >= 5
    return Probe(name, height, width) if turned else Probe(name, width, height)


def decode(data: bytes, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The picture: mode RGB, sRGB, upright, without metadata.

    Raises:
        DecodeError: as `probe`; and truncated for pixel data that is cut off or damaged.
    """
    with _strict_pillow():
        image, name = _open(data, max_pixels)
        orientation = _orientation(image, data)
        with _reasons(name):
            image.load()
            colour, alpha = _colour_and_alpha(image)
            picture = _to_srgb(colour, image.info.get("icc_profile"))
            if alpha is not None:
                white = Image.new("RGB", picture.size, "white")
                white.paste(picture, mask=alpha)
                picture = white
    if orientation in UPRIGHT:
        picture = picture.transpose(UPRIGHT[orientation])
    picture.info = {}
    return picture


def _open(data: bytes, max_pixels: int) -> tuple[ImageFile.ImageFile, str]:
    """The image with its header read, and its format; refused before any pixel is."""
    name = _format_of(data)
    with _reasons(name):
        image = Image.open(io.BytesIO(data), formats=(name,))
    width, height = image.size
    if width < 1 or height < 1:
        raise DecodeError(RejectReason.TRUNCATED, f"damaged {name}: its size is {width}x{height}")
    if width * height > max_pixels:
        detail = f"{width}x{height} is {width * height:,} pixels, and the limit is {max_pixels:,}"
        raise DecodeError(RejectReason.TOO_MANY_PIXELS, detail)
    return image, name


_MAGIC = (
    (b"\xff\xd8\xff", "jpeg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"BM", "bmp"),
    (b"II*\x00", "tiff"),
    (b"MM\x00*", "tiff"),
    (b"II+\x00", "tiff"),
    (b"MM\x00+", "tiff"),
)
_MAGIC_REFUSED = (
    (b"8BPS", "Photoshop"),
    (b"%!PS", "PostScript"),
    (b"%PDF", "PDF"),
    (b"\x00\x00\x01\x00", "ICO"),
    (b"\x00\x00\x00\x0cjP  ", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"\x00\x00\x00\x0cJXL ", "JPEG XL"),
    (b"\xff\x0a", "JPEG XL"),
    (b"qoif", "QOI"),
    (b"\x76\x2f\x31\x01", "OpenEXR"),
    (b"#?RADIANCE", "Radiance HDR"),
    (b"FUJIFILMCCD-RAW", "camera raw"),
)
_AVIF_BRANDS = (b"avif", b"avis")
_HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1")


def _format_of(data: bytes) -> str:
    """One of FORMATS, by the first bytes; the name of a file says nothing."""
    if not data:
        raise DecodeError(RejectReason.EMPTY, "the object has no bytes")
    for magic, name in _MAGIC:
        if data.startswith(magic):
            return name
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data[4:8] == b"ftyp":
        size = min(int.from_bytes(data[:4], "big"), 256)
        brands = {data[8:12], *(data[i : i + 4] for i in range(16, size, 4))}
        if brands.intersection(_AVIF_BRANDS):
            return "avif"
        if brands.intersection(_HEIF_BRANDS):
            raise DecodeError(RejectReason.UNSUPPORTED_FORMAT, f"HEIF is not read, only {', '.join(FORMATS)}")
    for magic, title in _MAGIC_REFUSED:
        if data.startswith(magic):
            raise DecodeError(RejectReason.UNSUPPORTED_FORMAT, f"{title} is not read, only {', '.join(FORMATS)}")
    start = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if b"<svg" in start:
        raise DecodeError(RejectReason.UNSUPPORTED_FORMAT, f"SVG is not read, only {', '.join(FORMATS)}")
    what = "a web page" if start.startswith((b"<!doctype html", b"<html")) else f"bytes {data[:8].hex(' ')}"
    raise DecodeError(RejectReason.NOT_AN_IMAGE, f"no image format starts like this: {what}")


_UNSUPPORTED_WORDS = ("unsupported", "not supported", "not available", "unknown", "unrecognized", "cannot handle")


@contextlib.contextmanager
def _reasons(name: str) -> Iterator[None]:
    """Whatever Pillow raises over foreign bytes, which is nearly anything, is the row's fault and gets a reason."""
    try:
        yield
    except (DecodeError, MemoryError):
        raise
    except UnidentifiedImageError:
        raise DecodeError(RejectReason.TRUNCATED, f"damaged {name}: the header cannot be read") from None
    except Exception as error:
        text = str(error) or type(error).__name__
        if any(word in text.lower() for word in _UNSUPPORTED_WORDS):
            raise DecodeError(RejectReason.UNSUPPORTED_FORMAT, f"{name}: {text}") from error
        raise DecodeError(RejectReason.TRUNCATED, f"damaged {name}: {text}") from error


_lock = threading.Lock()
_inside = 0
_found: tuple[int | None, bool] = (None, False)


@contextlib.contextmanager
def _strict_pillow() -> Iterator[None]:
    """Pillow's two globals as this module needs them, and as they were afterwards; threads may be inside together.

    LOAD_TRUNCATED_IMAGES would turn a cut file into a grey one in silence. MAX_IMAGE_PIXELS is off because `_open`
    applies the caller's limit, exactly and with a reason.
    """
    global _inside, _found
    with _lock:
        if _inside == 0:
            _found = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)
            Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = None, False
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = _found


def _orientation(image: ImageFile.ImageFile, data: bytes) -> int:
    """EXIF orientation 1-8; 1 where none or an unreadable one is stated. Reads no pixel."""
    try:
        if image.format == "TIFF":
            return 1  # Pillow turns these itself: the size is upright already
        if image.format == "PNG":
            exif = Image.Exif()  # image.getexif() would decode the pixels, as eXIf may stand behind them
            exif.load(_png_chunk(data, b"eXIf"))
        else:
            exif = image.getexif()
        value = exif.get(ExifTags.Base.Orientation, 1)
    except Exception:
        return 1  # Pillow's EXIF parser raises anything; viewers show such a picture as it is stored
    return value if value in UPRIGHT else 1


def _png_chunk(data: bytes, wanted: bytes) -> bytes:
    at = 8
    while at + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind == wanted:
            return data[at + 8 : at + 8 + length]
        at += 12 + length
    return b""


def _colour_and_alpha(image: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    """Mode L, RGB or CMYK with 8 bits a sample, and the opacity (mode L) where the file has one."""
    if image.mode.startswith("I;16"):
        return _from_16_bit(image)
    if image.mode in ("I", "F", "LAB", "HSV"):
        raise DecodeError(RejectReason.UNSUPPORTED_FORMAT, f"samples of mode {image.mode} have no agreed white")
    if image.has_transparency_data:
        full = image.convert("RGBA")
        return full.convert("RGB"), full.getchannel("A")
    if image.mode in ("1", "L"):
        return image.convert("L"), None
    if image.mode == "CMYK":
        # JPEG with four channels holds inverted inks; Pillow, like the browsers, assumes that and has set it right.
        return image, None
    return image.convert("RGB"), None


def _from_16_bit(image: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    """The high byte of 16-bit grey, as Pillow does for 16-bit RGB; its own convert() clips at 255 instead."""
    samples = np.asarray(image)
    bits = 16
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        bits = int(image.tag_v2.get(TiffImagePlugin.BITSPERSAMPLE, (16,))[0])
        if image.tag_v2.get(TiffImagePlugin.PHOTOMETRIC_INTERPRETATION) == 0:  # WhiteIsZero
            samples = (1 << bits) - 1 - samples
    grey = Image.fromarray((samples >> (bits - 8)).astype(np.uint8))
    key = image.info.get("transparency")
    if not isinstance(key, int):
        return grey, None
    return grey, Image.fromarray(np.where(np.asarray(image) == key, 0, 255).astype(np.uint8))


def _to_srgb(image: Image.Image, icc: bytes | None) -> Image.Image:
    """Mode RGB in sRGB. A missing, damaged or unfitting profile counts as sRGB, as in every browser."""
    if icc:
        with contextlib.suppress(ImageCms.PyCMSError, ValueError, OSError):
            if image.mode == "L" and _space(icc) == "GRAY":
                return image.point(_grey_curve(icc)).convert("RGB")
            if image.mode == "L":  # a grey picture with an RGB profile is common
                image = image.convert("RGB")
            transform = _icc_transform(icc, image.mode)
            return image if transform is None else _applied(transform, image)
    return image if image.mode == "RGB" else image.convert("RGB")


_SPACE = {"L": "GRAY", "RGB": "RGB", "CMYK": "CMYK"}


@functools.lru_cache(maxsize=32)
def _icc_transform(icc: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    """From the profile to sRGB; None where that moves no sample by more than a rounding error.

    Raises:
        ValueError: the profile is not one for this mode.
        PyCMSError, OSError: it cannot be read.
    """
    transform = _transform(icc, mode)
    if mode == "CMYK":
        return transform
    # sRGB has many profiles: leave those pictures exactly as they are.
    levels = np.arange(0, 256, 15, dtype=np.uint8)
    grid = np.stack(np.meshgrid(levels, levels, levels), -1).reshape(1, -1, 3)
    moved = np.asarray(_applied(transform, Image.fromarray(grid)), np.int16) - grid
    return None if np.abs(moved).max() <= 2 else transform


@functools.lru_cache(maxsize=32)
def _grey_curve(icc: bytes) -> list[int]:
    """A grey profile as 256 levels; lcms' optimised transform is up to 10 levels off in the shadows (measured)."""
    ramp = Image.fromarray(np.arange(256, dtype=np.uint8)[None])
    curve = _applied(_transform(icc, "L", ImageCms.Flags.NOOPTIMIZE), ramp)
    return [int(level) for level in np.asarray(curve)[0, :, 1]]


def _transform(icc: bytes, mode: str, flags: ImageCms.Flags = ImageCms.Flags.NONE) -> ImageCms.ImageCmsTransform:
    """Relative colorimetric with black point compensation, what photo software does unless told otherwise."""
    if (space := _space(icc)) != _SPACE[mode]:
        raise ValueError(f"a profile for {space}, a picture of mode {mode}")
    return ImageCms.buildTransform(
        ImageCms.ImageCmsProfile(io.BytesIO(icc)),
        ImageCms.createProfile("sRGB"),
        mode,
        "RGB",
        renderingIntent=ImageCms.Intent.RELATIVE_COLORIMETRIC,
        flags=flags | ImageCms.Flags.BLACKPOINTCOMPENSATION,
    )


def _space(icc: bytes) -> str:
    return ImageCms.ImageCmsProfile(io.BytesIO(icc)).profile.xcolor_space.strip()


def _applied(transform: ImageCms.ImageCmsTransform, image: Image.Image) -> Image.Image:
    converted = ImageCms.applyTransform(image, transform)
    assert converted is not None  # only None when done in place
    return converted
