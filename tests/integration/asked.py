"""Three sources of real photographs in which somebody has planted copies, a dataset of them, and a request by each kind of key."""

from __future__ import annotations

import hashlib
import io
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from smalti.errors import ConflictError
from smalti.lake import Lake
from smalti.release.latest import move_latest, read_latest
from smalti.release.manifest import Manifest, read_manifest
from smalti.release.publish import write_tree
from smalti.release.pull import pull
from smalti.shards.stage import shard
from tests.integration.served import read
from tests.maintenance.conftest import release
from tests.release.conftest import build
from tests.support.pictures import Row, release_run, source_run, write_table

SOURCES = ("east", "north", "west")
KINDS = ("id", "url", "owner", "sha256", "image", "encoded", "domain")
"""What a request names its picture by. `image`: the file itself; `encoded`: the picture saved anew."""

OTHERS = 4
"""Photographs of each source that nobody asks about."""

URL = "https://pictures.example/rooms/{}?size=full"
DATASET = "photos"
RUN = release_run(*SOURCES, name=DATASET, reason_sets=(("duplicate",),))
TREES = release_run(*SOURCES, name="prints", publish="tree")
"""The same pictures, for trainers who read a tree as it is: every request makes a version with a tree of its own."""


@dataclass(frozen=True)
class Asked:
    """A picture that somebody asks about: what names it, and the ids of it and of its copies."""

    kind: str
    id: str
    file: bytes
    ids: frozenset[str]

    @property
    def key(self) -> str:
        """A line of the form; empty for pictures."""
        values = {
            "id": self.id,
            "url": URL.replace("https://pictures", "HTTPS://Pictures").format(self.kind),
            "owner": owner_of(self.kind),
            "sha256": hashlib.sha256(self.file).hexdigest(),
            "domain": "domain.example",
        }
        return f"{self.kind} {values[self.kind]}" if self.kind in values else ""

    @property
    def encoded(self) -> bytes:
        """The picture in another format and size."""
        return saved(opened(self.file).resize((600, 600), Image.Resampling.LANCZOS), "WEBP", 80)


def owner_of(kind: str) -> str:
    """Owners differ by letters that a careless comparison would pass over."""
    return "Ann O'Nym" if kind == "owner" else f"ann o'nym of {kind}"


def url_of(source: str, kind: str) -> str:
    """URLs are alike, too; one is below a domain that is asked about, others are at domains that only end like it."""
    if kind == "domain":
        return "https://img.domain.example/a.jpg"
    return URL.format(kind) if source == "east" else f"https://not{source}domain.example/{kind}"


@cache
def photographs() -> tuple[bytes, ...]:
    """Square pieces of photographs, all of one size, none like another."""
    import interior_photos

    found = []
    for path in sorted((Path(interior_photos.__file__).parent / "images").glob("*.jpg")):
        with Image.open(path) as image:
            image.draft("RGB", (700, 700))
            side = min(image.size)
            left, top = (image.width - side) // 2, (image.height - side) // 2
            square = image.convert("RGB").crop((left, top, left + side, top + side))
            found.append(saved(square.resize((640, 640), Image.Resampling.BICUBIC), "JPEG", 92))
    return tuple(found)


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def saved(image: Image.Image, kind: str, quality: int) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, quality=quality)
    return out.getvalue()


def copies(data: bytes) -> tuple[bytes, bytes, bytes]:
    """The same bytes; saved anew; smaller."""
    image = opened(data)
    return data, saved(image, "WEBP", 82), saved(image.resize((560, 560), Image.Resampling.BICUBIC), "JPEG", 85)


def plant(lake: Lake) -> tuple[tuple[Asked, ...], tuple[Manifest, ...]]:
    """Fill the sources and publish two versions, of which the second has a part more of each source.

    Returns: the pictures to ask about, by kind; and the versions.
    """
    files = iter(photographs())
    first: dict[str, list[Row]] = {name: [] for name in SOURCES}
    later: dict[str, list[Row]] = {name: [] for name in SOURCES}
    asked = []
    for number, kind in enumerate(KINDS):
        home, one, two = (SOURCES[(number + at) % 3] for at in range(3))
        file = next(files)
        same, again, smaller = copies(file)
        first[home].append(Row(f"{kind}.jpg", file, owner=owner_of(kind), url=url_of("east", kind)))
        first[one] += [_other(one, f"{kind}-same.jpg", same), _other(one, f"{kind}-again.webp", again)]
        later[two].append(_other(two, f"{kind}-smaller.jpg", smaller))
        names = (
            f"{home}/{kind}.jpg",
            f"{one}/{kind}-same.jpg",
            f"{one}/{kind}-again.webp",
            f"{two}/{kind}-smaller.jpg",
        )
        asked.append(Asked(kind, names[0], file, frozenset(names)))
    for name in SOURCES:
        for number in range(OTHERS):
            rows = (later if number == OTHERS - 1 else first)[name]
            rows.append(_other(name, f"other{number}.jpg", next(files)))
    versions = []
    for batch, delivered in (("p1", first), ("p2", later)):
        for name, rows in delivered.items():
            run = source_run(
                name, batch, shard_bytes=4 << 20
            )  # one shard, or a pulled copy would lack those of nothing but duplicates
            write_table(lake, run, rows)
            shard(lake, run)
        versions.append(release(lake, RUN))
    _publish_tree(lake)
    return tuple(asked), tuple(versions)


def deliver_again(lake: Lake, asked: Asked) -> str:
    """A copy that comes by a run which knew nothing of the request, as one that had begun before it. Returns its id."""
    run = source_run(SOURCES[0], "p3", shard_bytes=4 << 20)
    write_table(lake, run, [_other(SOURCES[0], "late copy.webp", copies(asked.file)[1])])
    shard(lake, run)
    return f"{SOURCES[0]}/late copy.webp"


def _publish_tree(lake: Lake) -> None:
    """As the stages do, but for what verify asks the loader: importing that has no place in the process of the tests."""
    manifest = read_manifest(build(lake, TREES).manifest)
    write_tree(lake, manifest, lake.tree(manifest.dataset, manifest.version), served=False)
    move_latest(lake, manifest.dataset, manifest.version, manifest.digest)


def _other(source: str, key: str, file: bytes) -> Row:
    """A row that no key names."""
    return Row(key, file, owner=f"{source} {key}", url=url_of(source, key))


def others() -> frozenset[str]:
    """What must stay."""
    return frozenset(f"{name}/other{number}.jpg" for name in SOURCES for number in range(OTHERS))


def published_tree(lake: Lake) -> str:
    """URI of the tree that is published now."""
    latest = read_latest(lake, TREES.dataset.name)
    assert latest is not None
    return lake.tree(TREES.dataset.name, latest.version)


Reading = dict[str, Any]

COPIES: Reading = {"without": ["duplicate"]}
"""Arguments with which a run is served copies, too: what a request leaves out of a release that way, no choice brings back."""


@dataclass(frozen=True)
class Readers:
    """Everybody who reads the pictures: runs on the lake and on a pulled copy, which may resume, and whoever reads a tree.

    Attributes:
        folder: where the copy and the pulled tree are.
        names: of the readers.
        readings, before: what each reads, and what it was served before anything was asked. The published tree is that of the
            version that is the latest then.
    """

    lake: Lake
    folder: Path
    versions: tuple[Manifest, ...]
    names: tuple[str, ...]
    readings: tuple[Reading, ...]
    before: tuple[Mapping[str, Any], ...]

    @classmethod
    def start(cls, lake: Lake, folder: Path, versions: tuple[Manifest, ...]) -> Readers:
        """Pull, write a tree, and have everybody read; runs leave a checkpoint in the middle of their epoch."""
        newest = lake.manifest(DATASET, versions[-1].version)
        copy = pull(newest, folder / "copy").manifest
        pull(newest, folder / "tree", materialize=True)
        places = {each.version: lake.manifest(DATASET, each.version) for each in versions} | {"copy": copy}
        readings: dict[str, Reading] = {}
        for name, uri in places.items():
            readings[name] = {"release": uri}
            readings[f"{name} with duplicates"] = {"release": uri, "arguments": COPIES}
        readings["tree"] = {"tree": (folder / "tree").as_uri()}
        readings["published tree"] = {"tree": published_tree(lake)}
        return cls(lake, folder, versions, tuple(readings), tuple(readings.values()), tuple(read([*readings.values()])))

    def refresh(self) -> None:
        """Bring the copy and the tree up to date, as their owners do. A tree is never changed: it is written anew."""
        newest = self.lake.manifest(DATASET, self.versions[-1].version)
        pull(newest, self.folder / "copy", refresh_optouts=True)
        with pytest.raises(ConflictError, match="Remove it, and write it anew"):
            pull(newest, self.folder / "tree", materialize=True)
        shutil.rmtree(self.folder / "tree")
        pull(newest, self.folder / "tree", materialize=True)

    def after(self, positions: Iterable[int]) -> tuple[list[list[str]], list[list[str]], list[set[str]]]:
        """What each is served now; what the runs among them are when they go on; what a run of the last version is at each position."""
        resumed = [
            reading | {"state": served["state"]}
            for reading, served in zip(self.readings, self.before, strict=True)
            if "state" in served
        ]
        last = self.lake.manifest(DATASET, self.versions[-1].version)
        steps = [{"release": last, "arguments": {**COPIES, "optouts": position}} for position in positions]
        now = dict(zip(self.names, self.readings, strict=True)) | {
            "published tree": {"tree": published_tree(self.lake)}
        }
        found = [each["ids"] for each in read([*now.values(), *resumed, *steps])]
        fresh, on, single = (found.pop(0) for _ in self.readings), (found.pop(0) for _ in resumed), map(set, found)
        return [*fresh], [*on], [*single]
