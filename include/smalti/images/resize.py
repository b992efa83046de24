"""Cut a picture to its bucket's shape."""

from __future__ import annotations

from PIL import Image

from smalti.images.buckets import Bucket, Fit


def crop_box(width: int, height: int, bucket: Bucket, fit: Fit = "cover") -> tuple[float, float, float, float]:
    """The part of a picture that fills the bucket: left, top, right, bottom in px, not rounded.

    `cover` is the largest centred box of the bucket's ratio, `stretch` the whole picture.
    """
    if width < 1 or height < 1:
        raise ValueError(f"not a picture: {width}x{height}")
    if fit == "stretch":
        return (0.0, 0.0, float(width), float(height))
    if fit != "cover":
        raise ValueError(f"no fit {fit!r}: cover or stretch")
    if width * bucket.height > height * bucket.width:  # wider than the bucket: cut left and right
        margin = (width - height * bucket.width / bucket.height) / 2
        return (margin, 0.0, width - margin, float(height))
    margin = (height - width * bucket.height / bucket.width) / 2
    return (0.0, margin, float(width), height - margin)


def fit_to(image: Image.Image, bucket: Bucket, fit: Fit = "cover") -> Image.Image:
    """Exactly the bucket's shape, in one antialiased Lanczos pass (a=3) over the crop, so nothing is sampled twice.

    Raises:
        ValueError: the image is not RGB (`decode` gives RGB).
    """
    if image.mode != "RGB":
        raise ValueError(f"mode {image.mode}: only RGB is resized, in sRGB as decode gives it")
    box = crop_box(image.width, image.height, bucket, fit)
    return image.resize((bucket.width, bucket.height), Image.Resampling.LANCZOS, box=box)
