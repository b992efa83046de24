"""The photographs and the cut-out objects that the labelled set is made of, and where they come from."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from smalti.images.decode import decode

CACHE = Path(".cache/dedup_quality")
LONGEST = 2048
"""Pixels; a longer photograph is reduced to it first. A quarter of it is 512, the smallest tier."""

DEBIAN = (
    "digikam-data", "forensics-samples-files", "hugin-data", "kodi-data", "libjxl-testdata", "lomiri-wallpapers-16.04",
    "lomiri-wallpapers-20.04", "lxqt-themes", "mate-backgrounds", "opencv-doc", "palapeli-data", "plasma-workspace-wallpapers",
    "puzzle-jigsaw", "python-kivy-examples", "tuxpaint-data", "tuxpaint-stamps-default",
)  # fmt: skip

NEIGHBOURS = (
    ("skimage", "data/motorcycle_left.png", "data/motorcycle_right.png"),
    *(
        ("opencv-doc", f"usr/share/doc/opencv-doc/{one}", f"usr/share/doc/opencv-doc/{other}")
        for one, other in (
            ("examples/data/aero1.jpg", "examples/data/aero3.jpg"),
            ("examples/data/aloeL.jpg", "examples/data/aloeR.jpg"),
            ("examples/data/basketball1.png", "examples/data/basketball2.png"),
            ("examples/data/graf1.png", "examples/data/graf3.png"),
            ("examples/data/left.jpg", "examples/data/right.jpg"),
            ("examples/data/leuvenA.jpg", "examples/data/leuvenB.jpg"),
            ("examples/data/rubberwhale1.png", "examples/data/rubberwhale2.png"),
            ("opencv4/html/handDst.jpg", "opencv4/html/handSrc.jpg"),
            *((f"examples/data/left{n:02}.jpg", f"examples/data/right{n:02}.jpg") for n in range(1, 15) if n != 10),
        )
    ),
)
"""Two photographs of one scene, by a stereo camera, or of one film a moment apart; some of the first ones are in the list above."""


class Unavailable(Exception):
    """A package that the set needs is neither installed nor to be had."""


@dataclass(frozen=True)
class Photo:
    """A photograph of the set; `path` is inside its package."""

    package: str
    path: str

    @property
    def name(self) -> str:
        return f"{self.package}/{self.path}"

    def load(self, longest: int = LONGEST) -> Image.Image:
        """Upright, RGB, at most `longest` px a side."""
        image = decode((folder_of(self.package) / self.path).read_bytes())
        image.thumbnail((longest, longest), Image.Resampling.LANCZOS)
        return image


def all_photos(installed_only: bool = False) -> list[Photo]:
    """The list; `installed_only` leaves those that come with Python packages."""
    lines = (Path(__file__).parent / "photographs.tsv").read_text().splitlines()
    photos = [Photo(*line.split("\t")) for line in lines if not line.startswith("#")]
    return [photo for photo in photos if not (installed_only and photo.package in DEBIAN)]


def stamps(cache: Path = CACHE) -> Iterator[Path]:
    """Photographed objects, cut out, with transparency around them; drawings and symbols are left out."""
    folder = folder_of("tuxpaint-stamps-default", cache) / "usr/share/tuxpaint/stamps"
    drawn = ("cartoon", "symbols", "shapes", "flags", "roadsigns", "faces")
    for path in sorted(folder.rglob("*.png")):
        if not any(part in drawn for part in path.parts) and path.stat().st_size > 20_000:
            yield path


def folder_of(package: str, cache: Path = CACHE) -> Path:
    """Where a package's files are.

    Raises:
        Unavailable: a Python package is not installed, or a Debian package was not fetched.
    """
    if package in DEBIAN:
        folder = cache / package
        if not folder.is_dir():
            raise Unavailable(f"{package} was not fetched to {cache}")
        return folder
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise Unavailable(f"the Python package {package} is not installed")
    return Path(spec.submodule_search_locations[0])


def fetch(cache: Path = CACHE) -> None:
    """Download and unpack the Debian packages that are not there yet, 0.6 GB in all; nothing is installed.

    Raises:
        Unavailable: no apt-get or dpkg-deb here, or a package cannot be downloaded.
    """
    for package in DEBIAN:
        if (cache / package).is_dir():
            continue
        unpacked = cache / f"{package}.partial"
        shutil.rmtree(unpacked, ignore_errors=True)
        unpacked.mkdir(parents=True)
        try:
            subprocess.run(
                ["apt-get", "download", "-qq", package], cwd=unpacked, check=True, timeout=300, stderr=subprocess.PIPE
            )
            deb = next(unpacked.glob("*.deb"))
            subprocess.run(["dpkg-deb", "-x", deb.name, "."], cwd=unpacked, check=True, timeout=300)
        except (OSError, subprocess.SubprocessError, StopIteration) as error:
            said = getattr(error, "stderr", None) or str(error).encode()
            text = " ".join(said.decode(errors="replace").split())
            raise Unavailable(f"{package} cannot be downloaded (apt-get update, Debian bookworm?): {text}") from error
        deb.unlink()
        unpacked.rename(cache / package)
