"""streams.yaml: a release as the piece of a trainer's config that opens it."""

from __future__ import annotations

import yaml

from smalti.release.manifest import Manifest


def streams_yaml(manifest: Manifest, uri: str) -> str:
    """The file's text.

    Args:
        uri: of manifest.json, as a trainer will open it.
    """
    served = [stream for stream in manifest.streams if stream.kept]
    dataset = {
        "_target_": "smalti.loader.ReleaseDataset",
        "manifest": uri,
        "local": f"/tmp/smalti/{manifest.dataset}",
        "tiers": sorted({stream.tier for stream in served}),
        "batch_size": 32,
        "shuffle": True,
        "batching_method": "device_per_stream",
    }
    release = {
        "dataset": manifest.dataset,
        "version": manifest.version,
        "digest": manifest.digest,
        "kept": manifest.accounting.kept,
        "captions": manifest.captions,
        "mixing": manifest.mixing,
    }
    streams = [
        {
            "name": stream.name,
            "width": stream.width,
            "height": stream.height,
            "kept": stream.kept,
        }
        for stream in served
    ]
    return "\n".join((
        f"# {manifest.dataset} {manifest.version}, for a trainer's config.",
        "# ReleaseDataset serves what the release keeps; a plain StreamingDataset over the parts would serve everything.",
        _dump({"dataset": dataset}),
        "# `local` keeps fetched shards, and versions share it. Other arguments are StreamingDataset's.",
        "",
        "# For people: what it will serve.",
        _dump({"release": release}),
        yaml.safe_dump({"streams": streams}, sort_keys=False, default_flow_style=None, width=120).rstrip(),
        "",
    ))


def _dump(value: object) -> str:
    return yaml.safe_dump(value, sort_keys=False, width=120).rstrip()
