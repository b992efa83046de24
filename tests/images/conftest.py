from __future__ import annotations

from pathlib import Path

import interior_photos
import pytest
from PIL import Image

from smalti.images.decode import decode


@pytest.fixture(scope="session")
def photos() -> dict[str, Image.Image]:
    """20 photographs of rooms and seven of scikit-image's, at most 960 px a side to save time."""
    import skimage.data

    rooms = sorted((Path(interior_photos.__file__).parent / "images").glob("*.jpg"))[::2]
    names = ("coffee.png", "astronaut.png", "chelsea.png", "rocket.jpg", "camera.png", "coins.png", "grass.png")
    files = [*rooms, *(Path(skimage.data.__file__).parent / name for name in names)]
    found = {path.name: decode(path.read_bytes()) for path in files}
    for image in found.values():
        image.thumbnail((960, 960), Image.Resampling.LANCZOS)
    assert len(found) == 27
    return found
