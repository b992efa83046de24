"""`smalti optout`: hand in what people ask for, see how far it is, take it back, and look what is held.

What is printed goes to the person who typed it: rejected rows by number and reason, and keys only back to whoever named them.
"""

from __future__ import annotations

import dataclasses
import getpass
import hashlib
import os
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smalti.cli_io import Json, LakeUri, lake_at, print_data
from smalti.errors import InputError
from smalti.lake import Lake

if TYPE_CHECKING:
    from smalti.optouts.request import Request
    from smalti.optouts.rows import Parsed
    from smalti.optouts.status import Standing

optout = typer.Typer(no_args_is_help=True, help="Opt-outs: requests of people who withdraw their pictures.")

_LISTED = 20
_PLACES_LISTED = 100

File = Annotated[
    str,
    typer.Argument(
        help="path or URI of a .csv, .jsonl, .parquet or .txt with keys, or of a picture; -: a key a line is read from standard input"
    ),
]
Reference = Annotated[str, typer.Option(help="by which whoever asks knows the request; required")]
Reason = Annotated[str, typer.Option(help="why, for the ledger")]


@optout.command("submit")
def submit_keys(
    file: File,
    action: Annotated[
        str,
        typer.Option(
            help="exclude: never serve it again; erase: and remove the bytes; query: say what is held; required"
        ),
    ] = "",
    reference: Reference = "",
    reason: Reason = "",
    confirm_above: Annotated[
        int | None, typer.Option(min=0, help="matched samples above which a person confirms; default: 1000")
    ] = None,
    lake: LakeUri = "",
    as_json: Json = False,
) -> None:
    """Hand in the keys in FILE as a request. The rows that are no keys are named, the others apply.

    The same file, action and reference are the same request, however often they are handed in.
    """
    from smalti.optouts.request import CONFIRM_ABOVE, Action
    from smalti.optouts.submit import hand_in

    asked = [Action.EXCLUDE, Action.ERASE, Action.QUERY]
    if action not in asked:
        raise InputError(
            f"{action!r} is no action" if action else "it is not given", "--action", f"Use one of: {', '.join(asked)}"
        )
    _check_reference(reference)
    place, now = lake_at(lake), datetime.now(UTC)
    data, parsed = _read(file)
    request = hand_in(
        place,
        action=Action(action),
        reference=reference,
        reason=reason,
        parsed=parsed,
        submission=f"cli {hashlib.sha256(data).hexdigest()}",
        submitted=now,
        submitted_by=_user(),
        confirm_above=CONFIRM_ABOVE if confirm_above is None else confirm_above,
    )
    said = _told(_standing(place, request.id)) | {"known": request.submitted != now}
    print_data(said | _rejected_of(place, request, parsed), as_json)


@optout.command("status")
def status(
    request: Annotated[str, typer.Argument(help="default: all, in the order in which they were handed in")] = "",
    lake: LakeUri = "",
    as_json: Json = False,
) -> None:
    """How far REQUEST is, or each of all of them."""
    from smalti.objects import exists, list_names
    from smalti.optouts.preview import turns
    from smalti.optouts.status import standings
    from smalti.optouts.views import views

    place = lake_at(lake)
    if request:
        said = _told(_standing(place, request))
        for name, uri in [
            ("preview", place.optout_preview_page(request, max(1, turns(place, request)))),
            ("rejected_rows", place.optout_rejected(request)),
        ]:
            if exists(uri):
                said[name] = uri
        said["receipts"] = list_names(place.optout_receipts(request))
        said["viewed"] = [
            {"when": f"{each.viewed:%Y-%m-%dT%H:%M:%SZ}", "by": each.by, "what": each.what, "form": each.form}
            for each in views(place, request)
        ]
        print_data(said, as_json)
        return
    found = [_told(each) for each in standings(place)]
    if as_json:
        print_data({"requests": found}, as_json)
    else:
        _print_table(["request", "state", "action", "reference", "keys", "rejected", "submitted"], found)


@optout.command("show")
def show_(
    request: Annotated[str, typer.Argument(help="id of a request")],
    what: Annotated[
        str, typer.Option(help="preview, or a receipt: query, exclude, erase, withdraw; default: the last there is")
    ] = "",
    page: Annotated[bool, typer.Option("--page", help="the page (HTML) instead of the data (JSON)")] = False,
    to: Annotated[
        str, typer.Option(help="file to write it to, which must not be there; default: standard output")
    ] = "",
    lake: LakeUri = "",
) -> None:
    """Print the preview or a receipt of REQUEST. That you looked is recorded beside the request, before it is shown.

    You are who SMALTI_USER says, or else the user of the system.
    """
    from smalti.optouts.views import pages_of, show

    place = lake_at(lake)
    standing = _standing(place, request)
    if not what:
        there = pages_of(place, standing.id)
        if not there:
            raise InputError("there is nothing to show of it", f"request {request}", "Look it up first, or apply it")
        what = there[-1]
    if to and Path(to).exists():
        raise InputError("the file is there already", to, "Name another one")
    data = show(place, standing.id, what, _user(), page=page)
    if to:
        with Path(to).open("xb") as file:
            file.write(data)
    else:
        sys.stdout.write(data.decode())
        sys.stdout.write("" if data.endswith(b"\n") else "\n")


@optout.command("forget")
def forget_(lake: LakeUri = "", as_json: Json = False) -> None:
    """Remove what has had its time: rejected rows, previews, and keys that nothing is compared with. optouts.yaml says how long.

    The DAG `optout_watch` does the same every hour.
    """
    from smalti.config import load_retention
    from smalti.optouts.retention import forget

    report = forget(lake_at(lake), datetime.now(UTC), load_retention())
    print_data(report.model_dump(mode="json"), as_json)


@optout.command("apply")
def apply_(
    request: Annotated[str, typer.Argument(help="id of a request that was handed in")],
    yes: Annotated[bool, typer.Option("--yes", help="you have seen what it matches, and confirm it")] = False,
    lake: LakeUri = "",
    as_json: Json = False,
) -> None:
    """Look up what REQUEST matches, apply it, and prove it. What is wide or matches much is applied with --yes only.

    Where it was not looked up before, --yes confirms nothing that needs a person: it says what would be done. Look, and run it again.
    """
    from smalti.optouts.apply import apply, prove
    from smalti.optouts.preview import preview, turns
    from smalti.optouts.request import Action
    from smalti.settings import OptoutRun

    place = lake_at(lake)
    run = OptoutRun(request=_standing(place, request).id)
    was_looked_up = turns(place, run.request) > 0
    seen = preview(place, run)
    names = ("request", "action", "matched", "samples", "by_key", "near", "unmatched")
    said = {name: getattr(seen, name) for name in names}
    if yes and seen.ask and not was_looked_up:
        print_data(
            _filled(said | {"sources": seen.sources, "page": seen.page, "warnings": list(seen.warnings)}), as_json
        )
        raise InputError(
            f"request {run.request} waits for a person: {seen.ask}. Nobody has seen yet what it matches, nothing was applied",
            seen.page,
            "Look at its page, and run the same again",
        )
    if yes:
        run = run.model_copy(update={"confirmed_by": _user(), "seen": seen.digest})
    if seen.action != Action.QUERY:
        apply(place, run)
    proved = prove(place, run)
    said |= {
        "effective": proved.effective,
        "receipt": proved.receipt,
        "page": proved.page,
        "warnings": list(proved.warnings),
    }
    print_data(_filled(said), as_json)


@optout.command("erase")
def erase_(
    request: Annotated[str, typer.Argument(help="id of a request to erase that was applied")],
    lake: LakeUri = "",
    as_json: Json = False,
) -> None:
    """Erase what REQUEST names of every part and every live version. The old ones stay for the grace: see `smalti optout remove`."""
    from smalti.optouts.erase import erase
    from smalti.settings import OptoutRun

    place = lake_at(lake)
    done = erase(place, OptoutRun(request=_standing(place, request).id))
    print_data(_filled(done.model_dump(mode="json", exclude={"stage", "seconds"})), as_json)


@optout.command("remove")
def remove_(
    request: Annotated[str, typer.Argument(help="id of a request that was erased")],
    grace_days: Annotated[
        float,
        typer.Option(
            min=0, help="days that must have gone by since the erasure; training runs on old versions end by then"
        ),
    ] = 7.0,
    lake: LakeUri = "",
    as_json: Json = False,
) -> None:
    """Remove the bytes of what REQUEST erased, wherever they are in the lake, and prove it. What was removed is gone for ever."""
    from smalti.optouts.remove import remove
    from smalti.settings import OptoutRun

    place = lake_at(lake)
    done = remove(place, OptoutRun(request=_standing(place, request).id, grace_days=grace_days))
    print_data(_filled(done.model_dump(mode="json", exclude={"stage", "seconds"})), as_json)


@optout.command("withdraw")
def withdraw(
    request: Annotated[str, typer.Argument(help="id of a request that excludes or erases")],
    reference: Reference = "",
    reason: Reason = "",
    lake: LakeUri = "",
    as_json: Json = False,
) -> None:
    """Take REQUEST back: a request of its own. What `erase` removed stays removed."""
    from smalti.optouts.request import Action
    from smalti.optouts.submit import hand_in

    _check_reference(reference)
    place, now = lake_at(lake), datetime.now(UTC)
    taken = hand_in(
        place,
        action=Action.WITHDRAW,
        reference=reference,
        reason=reason,
        submission=f"cli withdraw {request}",
        submitted=now,
        submitted_by=_user(),
        withdraws=request,
    )
    print_data(_told(_standing(place, taken.id)) | {"known": taken.submitted != now}, as_json)


@optout.command("query")
def query(file: File, lake: LakeUri = "", as_json: Json = False) -> None:
    """What parts and tables hold of the keys in FILE. Nothing is handed in, and nothing is written."""
    from smalti.optouts.everywhere import match_everywhere
    from smalti.optouts.ledger import all_parts
    from smalti.optouts.request import Action, Request, ordered

    place = lake_at(lake)
    _, parsed = _read(file)
    if not parsed.keys:
        first = "".join(f"; row {each.row}: {each.reason}" for each in parsed.rejected[:1])
        raise InputError(f"there is no key in it{first}", file, "Write one key a line, or a row")
    request = Request(
        id="0" * 16,
        action=Action.QUERY,
        reference="none",
        submission="none",
        submitted=datetime.now(UTC),
        keys=tuple(ordered(parsed.keys)),
    )
    matched = match_everywhere(place, all_parts(place), request)
    rows, near = matched.rows.to_pylist(), matched.near.to_pylist()
    in_parts = {row["id"] for row in rows}
    only = [row for row in matched.tables.to_pylist() if row["id"] not in in_parts]
    unmatched = [request.keys[number] for number in matched.unmatched]
    said = {
        "keys": len(request.keys),
        "samples": len(in_parts),
        "places": len(rows),
        "sources": {
            source: len({row["id"] for row in rows if row["source"] == source})
            for source in sorted({row["source"] for row in rows})
        },
        "held": [_place(row) for row in rows[:_PLACES_LISTED]],
        "in_tables_only": len(only),
        "held_in_tables_only": [{"id": row["id"], "how": row["how"]} for row in only[:_PLACES_LISTED]],
        "near": [_place(row) for row in near[:_PLACES_LISTED]],
        "near_unseen": matched.near_unseen,
        "unmatched": len(unmatched),
        "unmatched_keys": [{"kind": key.kind.value, "value": key.value} for key in unmatched[:_LISTED]],
        "rejected": len(parsed.rejected),
        "notes": list(parsed.notes),
        "rejected_rows": _rows(parsed),
    }
    print_data(_filled(said), as_json)


def _read(file: str) -> tuple[bytes, Parsed]:
    """The bytes of what is handed in, and its keys."""
    from smalti.objects import normalise_uri, read_bytes
    from smalti.optouts.parse import parse

    if file == "-":
        data = sys.stdin.buffer.read()
        return data, parse(data, "standard input.txt", "standard input")
    uri = normalise_uri(file)
    data = read_bytes(uri)
    return data, parse(data, PurePosixPath(file).name, file)


def _check_reference(reference: str) -> None:
    if not reference.strip():
        raise InputError(
            "it is not given", "--reference", "Give the number or name by which whoever asks knows the request"
        )


def _user() -> str:
    """Who types: SMALTI_USER, or the system's user; the name of no host."""
    named = os.environ.get("SMALTI_USER", "").strip()
    if named:
        return f"cli:{named[:190]}"
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a container may run as a number without a name
        return "cli:unknown"


def _standing(lake: Lake, request: str) -> Standing:
    from smalti.optouts.status import standings

    return standings(lake, [request])[0]


def _told(standing: Standing) -> dict[str, Any]:
    said = dataclasses.asdict(standing)
    said["request"] = said.pop("id")
    said["submitted"] = standing.submitted.isoformat(timespec="seconds")
    said["again"] = standing.again.isoformat(timespec="seconds") if standing.again else None
    said["state"] = standing.shown
    return {name: said[name] for name in ("request", *said) if said[name] is not None}


def _rejected_of(lake: Lake, request: Request, parsed: Parsed) -> dict[str, Any]:
    """What whoever handed it in should know of it."""
    file = lake.optout_rejected(request.id) if len(parsed.rejected) > _LISTED else None
    return _filled({"notes": list(parsed.notes), "rejected_rows": _rows(parsed), "all_rejected_rows": file})


def _rows(parsed: Parsed) -> list[dict[str, Any]]:
    return [{"row": each.row, "reason": each.reason} for each in parsed.rejected[:_LISTED]]


def _place(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("id", "how", "part", "shard", "index")}


def _filled(said: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in said.items() if value not in (None, [])}


def _print_table(columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    lines = [list(columns), *([str(row.get(name, "")) for name in columns] for row in rows)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(columns))]
    for line in lines:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
