"""Pictures made on the spot: pages to read, flat fields, and files that decoders get wrong. The same bytes every time."""

from __future__ import annotations

import importlib.util
import io
import textwrap
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

PAGE = (
    "Glass tesserae",
    "A mosaic is made of thousands of small pieces. The pieces are called tesserae, and those of glass are called smalti. "
    "They are cut by hand from a thick round pancake of coloured glass, which is why no two of them are quite alike.",
    "The glass is melted with metal oxides that give it its colour: copper for greens and turquoise, manganese for violet, "
    "selenium and cadmium for reds and yellows. A good workshop keeps several thousand shades on its shelves.",
    "Setting them takes patience. The mortar stays soft for a few hours only, so the day's work is planned in the morning, "
    "and each piece is tilted a little, so that it throws back the light of the windows at its own angle.",
    "Before a panel leaves the workshop it is counted. Every piece that was cut has either been set, or lies in a box with a "
    "note that says what is wrong with it: too small, too long, chipped, or the same as another one.",
)
MENU = ("File", "Edit", "View", "Insert", "Format", "Tools", "Window", "Help")
FOLDERS = ("Inbox", "Drafts", "Sent", "Archive", "Invoices", "Travel", "Newsletters", "Trash")
MAILS = (
    ("Anna Lindqvist", "Minutes of the meeting on Tuesday", "09:41"),
    ("Building office", "The lift is out of order until Friday", "09:12"),
    ("Marco Rossi", "Re: quotation for forty square metres", "08:57"),
    ("Library", "Two books are due for return next week", "08:30"),
    ("Priya Natarajan", "Photographs from the opening night", "07:55"),
    ("Train service", "Your ticket from Ravenna to Venice", "yesterday"),
    ("Tax authority", "A new document is waiting for you", "yesterday"),
    ("Tom Becker", "Can we move our call to half past three?", "Monday"),
    ("Museum shop", "Your order has been dispatched", "Monday"),
    ("Svenja Holm", "Draft of chapter four, with comments", "Sunday"),
)


def flat(colour: tuple[int, int, int], width: int, height: int) -> Image.Image:
    """One colour and nothing else."""
    return Image.new("RGB", (width, height), colour)


def page_of_text() -> Image.Image:
    """A printed page, 1240 x 1754 px (A4 at 150 dpi)."""
    page = Image.new("RGB", (1240, 1754), (252, 251, 247))
    draw = ImageDraw.Draw(page)
    draw.text((120, 110), PAGE[0], font=_font(64, bold=True), fill=(20, 20, 24))
    top = 250
    for paragraph in PAGE[1:] + PAGE[1:3]:
        for line in textwrap.wrap(paragraph, 62):
            draw.text((120, top), line, font=_font(31), fill=(30, 30, 34))
            top += 46
        top += 34
    draw.text((600, 1670), "17", font=_font(28), fill=(30, 30, 34))
    return page


def screenshot() -> Image.Image:
    """The window of a mail program, 1440 x 900 px."""
    screen = Image.new("RGB", (1440, 900), (244, 245, 247))
    draw = ImageDraw.Draw(screen)
    draw.rectangle((0, 0, 1440, 44), fill=(52, 58, 70))
    draw.text((620, 9), "Mail - Inbox (10 unread)", font=_font(22), fill="white")
    for x, colour in ((20, (237, 95, 86)), (48, (247, 190, 79)), (76, (97, 197, 84))):
        draw.ellipse((x, 13, x + 18, 31), fill=colour)
    for number, name in enumerate(MENU):
        draw.text((24 + number * 110, 56), name, font=_font(21), fill=(40, 44, 52))
    draw.rectangle((0, 96, 260, 900), fill=(228, 231, 236))
    for number, name in enumerate(FOLDERS):
        if number == 0:
            draw.rectangle((0, 118, 260, 166), fill=(66, 120, 220))
        draw.text((32, 128 + number * 54), name, font=_font(24), fill="white" if number == 0 else (40, 44, 52))
    for number, (sender, subject, when) in enumerate(MAILS):
        top = 112 + number * 76
        draw.rectangle((276, top, 1424, top + 64), fill="white", outline=(214, 218, 224))
        draw.text((296, top + 18), sender, font=_font(23, bold=True), fill=(24, 26, 30))
        draw.text((560, top + 18), subject, font=_font(23), fill=(70, 74, 82))
        draw.text((1280, top + 18), when, font=_font(21), fill=(120, 124, 132))
    return screen


def palette_with_transparency() -> tuple[bytes, Image.Image]:
    """A PNG of 200 colours, some half transparent, and what it shows on white. 800 x 640 px."""
    height, width = 640, 800
    rows, columns = np.mgrid[0:height, 0:width]
    index = (columns * 14 // width) * 14 + rows * 14 // height  # 196 fields
    index = np.where((columns - 560) ** 2 + (rows - 250) ** 2 < 150**2, 196, index)
    index = np.where((columns > 60) & (columns < 320) & (rows > 360) & (rows < 580), 197, index)
    index = np.where(rows > 600, 198, index)
    number = np.arange(196)
    fields = np.stack([40 + number // 14 * 15, 235 - number % 14 * 14, 60 + (number * 7) % 160], axis=1)
    palette = np.concatenate([fields, [(220, 30, 40), (20, 40, 200), (0, 0, 0)]]).astype(np.uint8)
    opacity = np.full(199, 255)
    opacity[196], opacity[198] = 128, 0

    picture = Image.fromarray(index.astype(np.uint8))
    picture.putpalette(palette.tobytes())
    data = _encoded(picture, "PNG", transparency=bytes(opacity.astype(np.uint8)))
    share = (opacity / 255)[index][..., None]
    shown = palette[index] * share + 255 * (1 - share)
    return data, Image.fromarray(np.round(shown).astype(np.uint8))


def rotated(upright: Image.Image) -> bytes:
    """A JPEG as a camera held sideways writes it: stored on its side, EXIF orientation 6 (turn by 90 degrees clockwise)."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return _encoded(upright.transpose(Image.Transpose.ROTATE_90), "JPEG", quality=95, subsampling=0, exif=exif)


def cmyk(picture: Image.Image) -> bytes:
    """A JPEG in four inks, inverted as Adobe's programs (and Pillow) store it."""
    return _encoded(picture.convert("CMYK"), "JPEG", quality=95, subsampling=0)


def grey_16_bit(grey: Image.Image) -> bytes:
    """A 16-bit grey PNG whose high bytes are `grey` (mode L) and whose low bytes are noise."""
    high = np.asarray(grey).astype(np.uint16)
    low = np.random.default_rng(16).integers(0, 256, high.shape, dtype=np.uint16)
    return _encoded(Image.fromarray(high << 8 | low), "PNG")


def colour_16_bit(picture: Image.Image) -> bytes:
    """A PNG of 16 bits a channel whose high bytes are `picture` (mode RGB). Pillow cannot write one, OpenCV can."""
    import cv2

    high = np.asarray(picture).astype(np.uint16)
    low = np.random.default_rng(48).integers(0, 256, high.shape, dtype=np.uint16)
    done, data = cv2.imencode(".png", (high << 8 | low)[..., ::-1])
    assert done
    return data.tobytes()


def jpeg(picture: Image.Image, quality: int) -> bytes:
    """A plain JPEG with 4:2:0 chroma."""
    return _encoded(picture, "JPEG", quality=quality, subsampling=2)


def png(picture: Image.Image) -> bytes:
    """A plain PNG, fast rather than small."""
    return _encoded(picture, "PNG", compress_level=1)


def _encoded(picture: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


def _font(size: int, *, bold: bool = False) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    """DejaVu Sans, which matplotlib brings along; without it Pillow's own font, another size of the same thing."""
    found = importlib.util.find_spec("matplotlib")
    if found is not None and found.origin is not None:
        name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
        file = Path(found.origin).parent / "mpl-data" / "fonts" / "ttf" / name
        if file.exists():
            return ImageFont.truetype(str(file), size)
    return ImageFont.load_default(size)
