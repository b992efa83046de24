"""What verify looks at in the tree beside a manifest: every byte, and whether anything is there that does not belong to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from smalti.compute import map_tasks
from smalti.errors import CorruptError, InputError, MissingObject
from smalti.objects import list_names, read_bytes
from smalti.release.latest import is_gone, read_latest
from smalti.release.manifest import Manifest, beside
from smalti.release.materialize import ShardTask, expected_entry, listing_of, shard_tasks
from smalti.release.optouts import lake_of
from smalti.release.skips import canonical_json
from smalti.release.tree_claims import CLAIM, COMMIT, commit_name, commit_tiers, identity
from smalti.shards import mds

_AGAIN = "publishing the version again writes it"


class _Seen(NamedTuple):
    """A shard. entry: what the index must say of it; None: its source is damaged, which is a fault of the release."""

    entry: mds.Entry | None
    ids: tuple[str, ...]
    fault: str


def tree_faults(manifest_uri: str, manifest: Manifest, kept: Counter[str]) -> list[str]:
    """What is wrong with the tree beside a manifest; nothing with one that publish has yet to finish.

    Args:
        kept: ids that must be in it, if it is of all tiers.
    Raises:
        CorruptError, MissingObject: an index or a skip file of the release cannot be read, or LATEST.
    """
    root = beside(manifest_uri, "tree")
    names = list_names(root)
    commits = {name: commit_tiers(name) for name in names if COMMIT.fullmatch(name)}
    if "tree.json" not in commits and _is_published(manifest_uri, manifest):
        if not names:
            return [f"tree: it is gone ({root}); {_AGAIN}"]
        commits["tree.json"] = None
    if not commits:
        return []
    claim = canonical_json(identity(manifest, manifest.optouts))
    faults = list(_object_faults(root, CLAIM, claim))
    belongs = {CLAIM, *commits}
    seen: dict[str, list[_Seen]] = {}
    for name, tiers in sorted(commits.items()):
        try:
            if name != commit_name(None if tiers is None else sorted(set(tiers))):
                raise InputError("it is no list of tiers", name, "Remove it")
            buckets = shard_tasks(manifest, manifest_uri, root, tiers, {})
        except InputError as error:
            faults.append(f"tree/{name}: {error.what}: remove it ({root}/{name})")
            continue
        indices: dict[str, bytes] = {}
        for bucket, tasks in buckets.items():
            if bucket not in seen:
                seen[bucket] = list(map_tasks(_look, tasks))
                faults += [shard.fault for shard in seen[bucket] if shard.fault]
                index = _index(seen[bucket])
                if index is not None:
                    faults += _object_faults(root, f"{bucket}/index.json", index)
                belongs |= {f"{bucket}/index.json", *(task.name for task in tasks)}
            index = _index(seen[bucket])
            if index is not None:
                indices[bucket] = index
        if len(indices) == len(buckets):
            said = {**identity(manifest, manifest.optouts), "buckets": listing_of(indices)}
            faults += _object_faults(root, name, canonical_json(said))
    faults += _stray(root, belongs)
    if None in commits.values() and not faults:
        faults += _id_faults(kept, seen)
    return faults


def _is_published(manifest_uri: str, manifest: Manifest) -> bool:
    """Whether publish has written a tree, and nobody may have taken it away."""
    if manifest.publish != "tree":
        return False
    lake = lake_of(manifest_uri)
    latest = read_latest(lake, manifest.dataset)
    named = latest is not None and manifest.version in latest.kept()
    return named and not is_gone(lake, manifest.dataset, manifest.version)


def _object_faults(root: str, name: str, expected: bytes) -> list[str]:
    try:
        if read_bytes(f"{root}/{name}") == expected:
            return []
    except MissingObject:
        return [f"tree/{name}: there is no such object ({root}/{name}); {_AGAIN}"]
    return [f"tree/{name}: it is not what the release has there: remove it ({root}/{name}); {_AGAIN}"]


def _look(task: ShardTask) -> _Seen:
    """One shard of a tree against what it is made of."""
    try:
        entry = expected_entry(task)
    except (CorruptError, MissingObject):
        return _Seen(None, (), "")
    try:
        data = read_bytes(task.target)
    except MissingObject:
        return _Seen(entry, (), f"tree/{task.name}: there is no such object ({task.target}); {_AGAIN}")
    try:
        same = mds.shard_entry(task.basename, data) == entry
    except (CorruptError, ValueError, KeyError, TypeError):
        same = False
    if not same:
        what = f"tree/{task.name}: it is not what the release has there: remove it ({task.target}); {_AGAIN}"
        return _Seen(entry, (), what)
    columns, raw = mds.read_shard(data, task.basename)
    return _Seen(entry, tuple(str(mds.decode_sample(columns, each, task.basename)["id"]) for each in raw), "")


def _index(shards: Sequence[_Seen]) -> bytes | None:
    entries = [shard.entry for shard in shards if shard.entry is not None]
    return mds.encode_index(entries) if len(entries) == len(shards) else None


def _stray(root: str, belongs: set[str]) -> list[str]:
    """Whatever lies in the tree and is none of it: a reader may take it for a part of it."""
    folders = {""}
    for name in belongs:
        steps = name.split("/")[:-1]
        folders |= {"/".join(steps[: n + 1]) for n in range(len(steps))}
    found = []
    for folder in sorted(folders):
        prefix = f"{folder}/" if folder else ""
        names = (prefix + name for name in list_names(f"{root}/{folder}".rstrip("/")))
        found += [f"{root}/{name}" for name in names if name not in belongs | folders]
    return [f"tree/{uri[len(root) + 1 :]}: nothing of the release belongs there: remove it ({uri})" for uri in found]


def _id_faults(kept: Counter[str], seen: Mapping[str, Sequence[_Seen]]) -> list[str]:
    found = Counter(name for shards in seen.values() for shard in shards for name in shard.ids)
    faults = [f"tree: {name} is kept, and not in it" for name in sorted(kept - found)]
    return faults + [f"tree: {name} is in it, and not kept or not once" for name in sorted(found - kept)]
