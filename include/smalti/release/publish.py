"""The publish stage: let LATEST point to a verified version. Nothing else of a release ever changes."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter

from smalti import objects
from smalti.accounting import Report
from smalti.errors import CorruptError, InputError, MissingObject
from smalti.lake import Lake
from smalti.release.check_tree import tree_faults
from smalti.release.latest import Ablation, Latest, keep_ablation, move_latest, read_latest, stored_latest
from smalti.release.manifest import Manifest, parse_manifest
from smalti.release.materialize import materialize
from smalti.release.optouts import newest_position
from smalti.release.summary import samples_of
from smalti.release.tombstones import refuse_gone, successor_of
from smalti.release.tree_claims import touched
from smalti.release.verify import read_verified
from smalti.settings import ReleaseRun

log = logging.getLogger("smalti")


class PublishReport(Report):
    """Attributes:
    latest: URI of LATEST.
    version, digest: what it points to now; of an ablation, which it never points to, what was asked for.
    previous: what it pointed to before; None for a dataset's first version. The same as version: nothing was to do.
    tree: URI of the tree beside the manifest, if the dataset asks for one.
    """

    latest: str
    version: str
    digest: str
    previous: str | None = None
    tree: str | None = None


def publish(lake: Lake, run: ReleaseRun) -> PublishReport:
    """Write the tree if the dataset asks for one, then move LATEST.

    Raises:
        InputError: no manifest is named, there is none, it is another dataset's, it has not been verified, or its tree would hold
            what was opted out since.
        CorruptError: the accounting does not balance, or the manifest is not the one that was verified.
    """
    started = time.monotonic()
    if not run.manifest:
        raise InputError("no manifest is named", f"dataset {run.dataset.name}", "Pass the URI that assemble reports")
    manifest = _verified(lake, run.manifest, run.dataset.name)
    before = read_latest(lake, manifest.dataset)
    if manifest.without:
        return _publish_ablation(lake, manifest, before, started)
    tree = lake.tree(manifest.dataset, manifest.version) if manifest.publish == "tree" else None
    served = before is not None and (before.version, before.digest) == (manifest.version, manifest.digest)
    if tree:
        if not served:
            _refuse_opted_out(lake, manifest)
        write_tree(lake, manifest, tree, served)
        if not served:
            _refuse_opted_out(lake, manifest)  # writing may have taken hours
    report = _move(lake, manifest, started)
    warnings: tuple[str, ...] = ()
    if not served and before is not None and manifest.version in {past.version for past in before.history}:
        warnings = (f"{manifest.version} was published before: LATEST went back to it from {before.version}",)
    return _look_again(lake, manifest, report.model_copy(update={"tree": tree, "warnings": warnings}))


def _publish_ablation(lake: Lake, manifest: Manifest, before: Latest | None, started: float) -> PublishReport:
    """An ablation is opened by its own name: nobody who follows LATEST must get one unasked."""
    kept = Ablation(version=manifest.version, digest=manifest.digest, base=manifest.parent or "")
    tree = lake.tree(manifest.dataset, manifest.version) if manifest.publish == "tree" else None
    known = before is not None and any(each.version == kept.version for each in before.ablations)
    if tree and not known:
        _refuse_opted_out(lake, manifest)
    served = keep_ablation(lake, manifest.dataset, kept).version
    if tree:
        write_tree(lake, manifest, tree, known)
    left_out = ", ".join(manifest.without)
    report = PublishReport(
        stage="publish",
        seconds=time.monotonic() - started,
        latest=lake.latest(manifest.dataset),
        version=manifest.version,
        digest=manifest.digest,
        previous=served,
        tree=tree,
        warnings=(f"{manifest.version} is an ablation (without {left_out}): LATEST stays at {served}",),
    )
    return _look_again(lake, manifest, report)


def rollback(lake: Lake, dataset: str, version: str) -> PublishReport:
    """Let LATEST point to a version that it pointed to before. No-op if it still does.

    Raises:
        InputError: the version was never published, or its tree holds what was opted out since.
        CorruptError: it is damaged.
    """
    started = time.monotonic()
    refuse_gone(lake, dataset, version, lake.latest(dataset))
    latest = stored_latest(lake, dataset)
    if not latest.published():
        raise InputError("nothing was published yet", lake.latest(dataset), "Publish a version first")
    known = {past.version: past.digest for past in latest.history} | {latest.version: latest.digest}
    if version not in known or not version:
        raise InputError(
            f"version {version} of {dataset} was never published",
            lake.latest(dataset),
            f"Use one of: {', '.join(filter(None, known))}",
        )
    manifest = _verified(lake, lake.manifest(dataset, version), dataset)
    if manifest.digest != known[version]:
        raise CorruptError(
            "the manifest is not the one that was published", lake.manifest(dataset, version), "Restore it"
        )
    if manifest.publish == "tree" and version != latest.version:
        _refuse_opted_out(lake, manifest)
    return _look_again(lake, manifest, _move(lake, manifest, started))


def _refuse_opted_out(lake: Lake, manifest: Manifest) -> None:
    """Raises InputError if a tree of the version holds what was opted out since: whoever reads a tree reads no snapshot."""
    if _holds_opted_out(lake, manifest):
        raise InputError(
            f"some of what its tree holds was opted out since (the version knows opt-outs up to position {manifest.optouts})",
            lake.manifest(manifest.dataset, manifest.version),
            "Build a new version: it leaves that out",
        )


def _holds_opted_out(lake: Lake, manifest: Manifest) -> bool:
    uri, newest = lake.manifest(manifest.dataset, manifest.version), newest_position(lake)
    return newest > manifest.optouts and touched(manifest, uri, manifest.optouts, newest)


def _look_again(lake: Lake, manifest: Manifest, report: PublishReport) -> PublishReport:
    """Have a version whose tree is live now succeeded if it holds what was opted out before it was.

    A request that came in force since it was looked at has found this version not live, and may have been proved by now. Whatever
    comes in force from here on finds it.
    """
    if manifest.publish != "tree" or not _holds_opted_out(lake, manifest):
        return report
    from smalti.release.successors import SUCCEEDED, succeed  # which publishes trees, too

    succeed(lake, [manifest.dataset], why=SUCCEEDED)
    now = stored_latest(lake, manifest.dataset)
    if now.successor(manifest.version) is None:  # it is not live
        return report
    by = successor_of(lake, manifest.dataset, manifest.version, now)
    what = f"some of {manifest.version} was opted out before it was live: it was succeeded by {by or 'nothing, as nothing is left'}"
    log.warning("publish: %s", what)
    moved = {} if manifest.without else {"version": now.version, "digest": now.digest}
    tree = lake.tree(manifest.dataset, by) if by else None
    return report.model_copy(update={**moved, "tree": tree, "warnings": (*report.warnings, what)})


def _move(lake: Lake, manifest: Manifest, started: float) -> PublishReport:
    now, before = move_latest(lake, manifest.dataset, manifest.version, manifest.digest)
    log.info("publish: %s LATEST is %s", manifest.dataset, now.version)
    return PublishReport(
        stage="publish",
        seconds=time.monotonic() - started,
        latest=lake.latest(manifest.dataset),
        version=now.version,
        digest=now.digest,
        previous=before.version if before else None,
    )


def _verified(lake: Lake, uri: str, dataset: str) -> Manifest:
    """The manifest, if it is this dataset's, balances, and is byte for byte what was verified."""
    uri = objects.normalise_uri(uri)
    try:
        data = objects.read_bytes(uri)
    except MissingObject as error:
        raise InputError("there is no manifest", uri, "Pass the URI that assemble reports") from error
    manifest = parse_manifest(data, uri)
    if uri != lake.manifest(dataset, manifest.version) or manifest.dataset != dataset:
        raise InputError(
            f"this is not a version of {dataset} in this lake", uri, f"Pass a manifest below {lake.versions(dataset)}"
        )
    manifest.check_balance()
    refuse_gone(lake, dataset, manifest.version, uri)
    verified = read_verified(uri)
    if verified is None:
        raise InputError("the release has not been verified", uri, f"Run `smalti verify {uri}` first")
    if verified.manifest_sha256 != hashlib.sha256(data).hexdigest():
        raise CorruptError(
            "the manifest has changed since it was verified", uri, "Restore it, or assemble another version"
        )
    return manifest


def write_tree(lake: Lake, manifest: Manifest, tree: str, served: bool) -> None:
    """The tree, and a look at what is in it now; of one that was whole, and is served, at the sizes: verify reads it all."""
    uri = lake.manifest(manifest.dataset, manifest.version)
    whole = objects.exists(f"{tree}/tree.json")
    if materialize(uri, tree).new == 0 and whole and served:
        return
    kept = Counter(name for name, _, _, reasons in samples_of(uri, manifest) if not reasons)
    faults = tree_faults(uri, manifest, kept)
    if faults:
        raise CorruptError(
            f"{faults[0]} (and {len(faults) - 1} more faults)" if len(faults) > 1 else faults[0],
            tree,
            "LATEST has not moved; take the tree away, and publish again",
        )
