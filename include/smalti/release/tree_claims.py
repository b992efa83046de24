"""What a tree is of: the release and the position of the opt-outs that it was claimed for, and its commit objects."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from typing import Any

from smalti.errors import ConflictError, CorruptError
from smalti.loader.skips import Optouts, served_shards
from smalti.objects import create_same, join_uri, list_names, read_bytes, read_versioned
from smalti.release.manifest import Manifest
from smalti.release.optouts import lake_of, read_snapshot
from smalti.release.skips import canonical_json

CLAIM = "release.json"
"""Below a tree: the release that it is of. The first object of a tree."""

COMMIT = re.compile(r"tree(-\d+)*\.json")
"""Below a tree: the last object of a run, see `commit_name`."""


def identity(manifest: Manifest, position: int) -> dict[str, Any]:
    """What a tree is of, as its claim and its commit objects say it. The release's own position goes without saying."""
    named = {"dataset": manifest.dataset, "version": manifest.version, "digest": manifest.digest}
    return named if position == manifest.optouts else {**named, "optouts": position}


def opted_out(manifest: Manifest, manifest_uri: str, position: int) -> Optouts:
    """What is left out besides what the release skips."""
    return {} if position == manifest.optouts else read_snapshot(lake_of(manifest_uri), position).shards


def commit_name(tiers: Sequence[int] | None) -> str:
    """The last object of a tree: it is whole, or its directories of these tiers are."""
    return "tree.json" if tiers is None else f"tree-{'-'.join(map(str, tiers))}.json"


def claim_tree(manifest: Manifest, manifest_uri: str, tree_uri: str, position: int) -> tuple[int, bool]:
    """Nothing of another release may get into the tree.

    Returns: the position of opt-outs that the tree is of, and whether an earlier run has claimed the place.
    """
    where = join_uri(tree_uri, CLAIM)
    claim = _claimed(tree_uri)
    if claim is None:
        with contextlib.suppress(ConflictError):
            return position, not create_same(where, canonical_json(identity(manifest, position)))
        claim = read_bytes(where)  # somebody was faster
    tree = _name(manifest)
    there = _position(manifest, claim, where)
    if claim != canonical_json(identity(manifest, there)):
        raise ConflictError(
            f"the place does not hold {tree}",
            where,
            "Write into another directory: trees are not changed, and not mixed",
        )
    if there != position and touched(manifest, manifest_uri, there, position):
        raise ConflictError(
            f"the tree is of the opt-outs up to position {there}, and those up to {position} touch its samples",
            where,
            "Remove it, and write it anew: trees are not changed",
        )
    create_same(where, claim)
    return there, True


def position_of(manifest: Manifest, tree_uri: str) -> int | None:
    """The position of opt-outs that a release's tree is of; None: nothing says, and it is to be the release's own.

    Raises CorruptError if it does not say.
    """
    claim = _claimed(tree_uri)
    return None if claim is None else _position(manifest, claim, join_uri(tree_uri, CLAIM))


def _name(manifest: Manifest) -> str:
    return f"a tree of {manifest.dataset} {manifest.version} ({manifest.digest[:12]})"


def _position(manifest: Manifest, claim: bytes, where: str) -> int:
    try:
        return int(json.loads(claim).get("optouts", manifest.optouts))
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CorruptError(
            "this does not say what the place holds",
            where,
            f"Remove it if the place holds {_name(manifest)}, and run again; or write into another directory",
        ) from error


def _claimed(tree_uri: str) -> bytes | None:
    """The claim of a tree; where it is gone, what a commit object says in its place."""
    found = read_versioned(join_uri(tree_uri, CLAIM))
    if found is not None:
        return found[0]
    for name in list_names(tree_uri):
        if COMMIT.fullmatch(name):
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
                said = json.loads(read_bytes(join_uri(tree_uri, name)))
                del said["buckets"]
                return canonical_json(said)
    return None


def touched(manifest: Manifest, manifest_uri: str, first: int, second: int) -> bool:
    """Whether the release serves other samples at one position than at the other."""
    one, other = (opted_out(manifest, manifest_uri, position) for position in (first, second))
    changed = {name for name in {*one, *other} if one.get(name, ()) != other.get(name, ())}
    if not changed:
        return False
    for stream in manifest.select():
        for shard in served_shards(manifest_uri, stream):
            name = shard.basename
            if name in changed and len(shard.numbers_of(one.get(name, ()))) != len(
                shard.numbers_of(other.get(name, ()))
            ):
                return True
    return False


def commit_tiers(name: str) -> tuple[int, ...] | None:
    """The tiers of a commit object; None: all."""
    numbers = name.removeprefix("tree").removesuffix(".json").split("-")[1:]
    return tuple(map(int, numbers)) or None
