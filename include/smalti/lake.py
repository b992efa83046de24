"""Every path of the lake is spelled here and nowhere else (docs/reference/lake.md shows the layout).

A `Lake` only names things: it sends no request. `smalti.objects` reads and writes what it names.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal

from smalti.errors import InputError
from smalti.objects import join_uri, normalise_uri

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+:@=-]*")


@dataclass(frozen=True)
class Lake:
    """The places below one root, a file:// or gs:// URI."""

    root: str

    @staticmethod
    def at(uri: str) -> Lake:
        """The lake at a path or URI."""
        return Lake(normalise_uri(uri))

    @staticmethod
    def from_environment() -> Lake:
        """The lake that SMALTI_LAKE names. Raises InputError if it is not set."""
        uri = os.environ.get("SMALTI_LAKE", "")
        if not uri:
            raise InputError("no lake is named", "SMALTI_LAKE", "Set it to a file:// or gs:// URI, or pass --lake")
        return Lake.at(uri)

    def marker(self) -> str:
        """Says that a smalti lake is here; `smalti lake init` makes it."""
        return self._uri("smalti-lake")

    # Staging: what one run of a source DAG took notice of

    def staging(self) -> str:
        return self._uri("staging")

    def batches(self, source: str) -> str:
        return self._uri("staging", source)

    def inventory(self, source: str, batch: str) -> str:
        return self._uri("staging", source, batch, "inventory.parquet")

    def rejects(self, source: str, batch: str) -> str:
        return self._uri("staging", source, batch, "rejects.parquet")

    def ingested(self, source: str, batch: str) -> str:
        """The report of the ingest that committed this batch."""
        return self._uri("staging", source, batch, "ingest.json")

    # Tables and the checkpoints that fill their columns

    def tables(self) -> str:
        return self._uri("tables")

    def table(self, source: str) -> str:
        return self._uri("tables", f"{source}.lance")

    def progress(self) -> str:
        return self._uri("progress")

    def checkpoint(self, source: str, stage: str, profile: str, chunk: str) -> str:
        return self._uri("progress", source, stage, profile, f"{chunk}.parquet")

    def answers(self, source: str, stage: str, profile: str, digest: str, batch: str) -> str:
        """What an engine has said of a batch's rows, one checkpoint a chunk."""
        return self._uri("progress", source, stage, profile, digest[:16], batch, "answers")

    def answer(self, source: str, stage: str, profile: str, digest: str, batch: str, name: str) -> str:
        return self._uri("progress", source, stage, profile, digest[:16], batch, "answers", f"{name}.parquet")

    def spent(self, source: str, stage: str, profile: str, digest: str, batch: str) -> str:
        """What engines have cost so far: GPU seconds, by driver."""
        return self._uri("progress", source, stage, profile, digest[:16], batch, "spent")

    def spent_note(self, source: str, stage: str, profile: str, digest: str, batch: str, name: str) -> str:
        return self._uri("progress", source, stage, profile, digest[:16], batch, "spent", f"{name}.json")

    def pilot_page(self, source: str, stage: str, profile: str, digest: str, batch: str, sha256: str) -> str:
        """What a person looks at before a batch is captioned; named after its bytes."""
        return self._uri("progress", source, stage, profile, digest[:16], batch, "pilot", f"{sha256[:32]}.html")

    def shard_progress(self, source: str, part: str, tier: int, ar: str, number: int) -> str:
        """What the writer of one shard recorded after the shard was there."""
        return self._uri("progress", source, "shard", part, f"{tier}-{ar}-{number:05d}.json")

    # Parts

    def parts_root(self) -> str:
        return self._uri("parts")

    def parts(self, source: str) -> str:
        return self._uri("parts", source)

    def part(self, source: str, part: str) -> str:
        return self._uri("parts", source, part)

    def part_commit(self, source: str, part: str) -> str:
        """part.json: the part exists when this does."""
        return self._uri("parts", source, part, "part.json")

    def samples(self, source: str, part: str) -> str:
        return self._uri("parts", source, part, "samples.parquet")

    def bucket_index(self, source: str, part: str, tier: int, ar: str) -> str:
        return self._uri("parts", source, part, str(tier), ar, "index.json")

    def shard(self, source: str, part: str, tier: int, ar: str, number: int) -> str:
        return self._uri("parts", source, part, str(tier), ar, f"shard.{number:05d}.mds")

    def replacements(self, source: str) -> str:
        """The numbered log of what maintenance has put in the place of which parts."""
        return self._uri("parts", source, "replacements")

    def replacement(self, source: str, number: int) -> str:
        return self._uri("parts", source, "replacements", f"{number:06d}.json")

    def part_progress(self, source: str, part: str) -> str:
        return self._uri("progress", source, "shard", part)

    # Releases

    def releases(self) -> str:
        return self._uri("releases")

    def versions(self, dataset: str) -> str:
        return self._uri("releases", dataset)

    def curation(self, dataset: str, digest: str) -> str:
        """What one curate run decided, but for the samples."""
        return self._uri("releases", dataset, "curations", f"{digest}.json.gz")

    def build(self, dataset: str, name: str) -> str:
        """The parts that one build of a dataset works on, however often it is begun."""
        return self.run_object(f"release_{dataset}", name, "curate", "inputs.json")

    def curation_rows(self, dataset: str, digest: str) -> str:
        """One row a sample that is left out, and why."""
        return self._uri("releases", dataset, "curations", f"{digest}.parquet")

    def quarantine_page(self, dataset: str, digest: str) -> str:
        """The clusters that a person may decide about."""
        return self._uri("releases", dataset, "curations", f"quarantine-{digest}.html")

    def skips(self, dataset: str) -> str:
        return self._uri("releases", dataset, "skips")

    def curations(self, dataset: str) -> str:
        return self._uri("releases", dataset, "curations")

    def skip_file(self, dataset: str, sha256: str) -> str:
        return self._uri("releases", dataset, "skips", f"{sha256}.json.gz")

    def latest(self, dataset: str) -> str:
        return self._uri("releases", dataset, "LATEST")

    def release(self, dataset: str, version: str) -> str:
        return self._uri("releases", dataset, version)

    def claim(self, dataset: str, version: str) -> str:
        """Names the content that alone may be committed under this version."""
        return self._uri("releases", dataset, version, "claim.json")

    def manifest(self, dataset: str, version: str) -> str:
        """manifest.json: the version exists when this does."""
        return self._uri("releases", dataset, version, "manifest.json")

    def verified(self, dataset: str, version: str) -> str:
        """verified.json: what verify found of exactly these bytes of the manifest."""
        return self._uri("releases", dataset, version, "verified.json")

    def release_tombstone(self, dataset: str, version: str) -> str:
        """The version is gone, or will be: it is served no more, and never again."""
        return self._uri("releases", dataset, version, "tombstone.json")

    def streams_yaml(self, dataset: str, version: str) -> str:
        return self._uri("releases", dataset, version, "streams.yaml")

    def release_report(self, dataset: str, version: str) -> str:
        return self._uri("releases", dataset, version, "report.html")

    def tree(self, dataset: str, version: str) -> str:
        return self._uri("releases", dataset, version, "tree")

    # Opt-outs

    def optout_inbox(self) -> str:
        """Where people drop files with keys, below <action>/<reference>; what is in the ledger is removed from here."""
        return self._uri("optouts", "inbox")

    def optout_salt(self) -> str:
        """A random number by which requests are named: made once, and never removed."""
        return self._uri("optouts", "salt.json")

    def optout_requests(self) -> str:
        return self._uri("optouts", "requests")

    def optout_request(self, request: str) -> str:
        """What was asked, as it was asked: written once."""
        return self._uri("optouts", "requests", request, "request.json.gz")

    def optout_folder(self, request: str) -> str:
        """Everything about a request but its receipts."""
        return self._uri("optouts", "requests", request)

    def optout_forgotten(self, request: str) -> str:
        """What stays of a request whose time is over, in the place of request.json.gz."""
        return self._uri("optouts", "requests", request, "forgotten.json")

    def optout_views(self, request: str) -> str:
        """Who looked at the request's pages, one object each time."""
        return self._uri("optouts", "requests", request, "views")

    def optout_view(self, request: str, name: str) -> str:
        return self._uri("optouts", "requests", request, "views", f"{name}.json")

    def optout_heads(self) -> str:
        """What requests say but for their keys, many in one object: so that not each must be read."""
        return self._uri("optouts", "heads")

    def optout_head_block(self, number: int) -> str:
        return self._uri("optouts", "heads", f"{number:06d}.json.gz")

    def optout_preview(self, request: str, turn: int = 1) -> str:
        """What a request would do. There is a second one if it matched much more when it was to be applied, and so on."""
        return self._uri("optouts", "requests", request, f"preview{_turn(turn)}.json.gz")

    def optout_preview_page(self, request: str, turn: int = 1) -> str:
        """The page that a person confirms it by."""
        return self._uri("optouts", "requests", request, f"preview{_turn(turn)}.html")

    def optout_answer(self, request: str, turn: int = 1) -> str:
        """What was answered to the preview of that turn."""
        return self._uri("optouts", "requests", request, f"answer{_turn(turn)}.json")

    def optout_removing(self, request: str) -> str:
        """What the removal of its bytes looks for, taken down before the first goes: as digests."""
        return self._uri("optouts", "requests", request, "removing.json")

    def optout_erasing(self, request: str, number: int) -> str:
        """What was erased of parts for a request, and when: the start of its grace. A later one adds to those before it."""
        return self._uri("optouts", "requests", request, "erasing.json" if number == 1 else f"erasing-{number}.json")

    def optout_digests(self, source: str, part: str) -> str:
        """What was to be erased of a part when it was written anew, as digests of the pictures; one object an erasure."""
        return self._uri("optouts", "erased", source, part)

    def optout_digest(self, source: str, part: str, sha256: str) -> str:
        return self._uri("optouts", "erased", source, part, f"{sha256[:16]}.json")

    def optout_resolutions(self) -> str:
        return self._uri("optouts", "resolved")

    def optout_resolution(self, position: int) -> str:
        """What one step of the ledger added: which requests, over which parts, and what they matched."""
        return self._uri("optouts", "resolved", f"{position:08d}.json.gz")

    def optout_block(self, position: int) -> str:
        """The steps of the ledger from the last such object up to this position, as one: so that not each must be read."""
        return self._uri("optouts", "resolved", f"block-{position:08d}.json.gz")

    def optout_matched(self, sha256: str) -> str:
        """The matched samples of a resolution, or of a block of them, one row each; named after their digest."""
        return self._uri("optouts", "resolved", f"matched-{sha256[:32]}.parquet")

    def optout_snapshots(self) -> str:
        return self._uri("optouts", "snapshots")

    def optout_snapshot(self, position: int) -> str:
        """Everything that is opted out of any part, up to this position of the ledger."""
        return self._uri("optouts", "snapshots", f"{position:08d}.json.gz")

    def optout_receipts_root(self) -> str:
        return self._uri("optouts", "receipts")

    def optout_receipts(self, request: str) -> str:
        return self._uri("optouts", "receipts", request)

    def optout_receipt(self, request: str, kind: str) -> str:
        """What became of a request: `exclude` or `erase`, or `query`; a page of the same name stands beside it."""
        return self._uri("optouts", "receipts", request, f"{kind}.json")

    def optout_receipt_page(self, request: str, kind: str) -> str:
        return self._uri("optouts", "receipts", request, f"{kind}.html")

    def optout_rejected_root(self) -> str:
        return self._uri("optouts", "rejected")

    def optout_rejected(self, request: str) -> str:
        """Rows of a request's file that are no keys, with their numbers and what is wrong with them."""
        return self._uri("optouts", "rejected", f"{request}.jsonl")

    def optout_rejected_file(self, request: str, suffix: str) -> str:
        """A file of the inbox of which nothing became a request; what is wrong with it stands in `optout_rejected`."""
        return self._uri("optouts", "rejected", "files", f"{request}{suffix}")

    # Collections of garbage

    def collections(self) -> str:
        return self._uri("gc")

    def collection(self, name: str, what: str) -> str:
        """mark.json, sweep.json, deleting.json, done.json: in this order, each create-only."""
        return self._uri("gc", name, what)

    # Runs

    def run(self, dag: str, run: str, task: str) -> str:
        return self._uri("runs", safe_name(dag), safe_name(run), safe_name(task))

    def run_object(self, dag: str, run: str, task: str, name: str) -> str:
        """spec.json, report.json, driver.log and their later attempts."""
        return self._uri("runs", safe_name(dag), safe_name(run), safe_name(task), name)

    def _uri(self, *names: str) -> str:
        for name in names:
            if not _NAME.fullmatch(name):
                raise InputError(
                    f"{name!r} cannot be a name in the lake", self.root, "Use letters, digits and . _ - + : @ ="
                )
        return join_uri(self.root, *names)


Kind = Literal["rows", "json", "lines", "preview", "object"]

SMALL_OBJECTS: tuple[tuple[str, Kind], ...] = (
    (r"(staging|progress)/.*\.parquet", "rows"),
    (r"(staging|progress|runs|gc)/.*\.json", "json"),
    (r"progress/.*", "object"),
    (r"runs/.*\.(log|txt|jsonl)", "lines"),
    (r"runs/.*", "object"),
    (r"optouts/rejected/files/.*", "object"),
    (r"optouts/rejected/.*\.jsonl", "lines"),
    (r"optouts/requests/[0-9a-f]{16}/preview(-\d+)?\.json\.gz", "preview"),
    (r"optouts/requests/[0-9a-f]{16}/preview(-\d+)?\.html", "object"),
)
"""Objects besides tables, parts and releases that may name samples: pattern of a path, and what of it can go by itself. The first that fits counts."""

NO_SMALL_OBJECTS = re.compile(r"releases/[^/]+/(curations|[^/]+/(streams|tree))/.*")
"""Of a release, what goes as a whole or not at all."""

LEDGER_AND_RECEIPTS = re.compile(
    r"optouts/(requests/[0-9a-f]{16}/(request\.json\.gz|forgotten\.json|erasing(-\d+)?\.json|removing\.json)"
    r"|erased/.*|heads/.*|resolved/.*|snapshots/.*|receipts/.*)"
)
"""Objects that name what was opted out for as long as it is: without them it would come back. Some say no more than the reference that a
request was handed in under, which may be a sample's id."""

STREAM_INDEX = "streams/{group}/{tier}/{ar}/index.json.gz"
"""A stream's merged index, relative to its manifest."""

BESIDE_VERSIONS = ("LATEST", "curations", "skips")
"""Names in a dataset's folder that are no versions."""

PARTS_FROM_RELEASE = "../../../parts"
"""parts/, relative to a release's directory."""


def stream_index(group: str, tier: int, ar: str) -> str:
    """Where the merged index of a stream is, relative to its manifest."""
    return STREAM_INDEX.format(group=group, tier=tier, ar=ar)


def safe_name(text: str) -> str:
    """A run id or task id as a name in the lake: every character that a name may not have becomes ``_``."""
    cleaned = re.sub(r"[^A-Za-z0-9_.+:@=-]", "_", text)
    return cleaned if re.match(r"[A-Za-z0-9_]", cleaned) else "_" + cleaned


def _turn(number: int) -> str:
    return "" if number == 1 else f"-{number}"
