"""The inbox: a file that somebody drops becomes a request, and is removed once the request is in the ledger.

    optouts/inbox/<action>/<reference>/<file>      action is exclude, erase or query; folders below the reference may follow

One file is one request, whatever is dropped beside it. A crash anywhere costs nothing: a request is named after the file's name, its
generation and its keys, so the next call makes the same one or finds it. A file of which no request can be made moves to
optouts/rejected/files, with what is wrong with it in optouts/rejected. One that is overwritten meanwhile stays and is taken
the next time: only the generation that was read is ever removed.

On a file system a file that still grows could be read by half, so one that changed lately is looked at twice; a program that writes with pauses
should write elsewhere and move it here. What starts with a dot is passed over: programs that copy write under such a name first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath
from urllib.parse import quote, unquote

from smalti import objects
from smalti.errors import InputError, SmaltiError
from smalti.lake import Lake, safe_name
from smalti.objects import ObjectInfo
from smalti.optouts.parse import parse
from smalti.optouts.request import Action, Request
from smalti.optouts.rows import Parsed, RejectedRow
from smalti.optouts.salt import Salt, salt_of
from smalti.optouts.submit import hand_in
from smalti.release.skips import sha256

QUIET = 2.0
"""Seconds for which a file on a file system must not have changed."""

MOST_BYTES = 256 << 20
"""Of a file. A million keys of 200 characters have 200 MB, and no picture that a source may bring is as large; what is larger would be read whole."""

ACTIONS = (Action.EXCLUDE, Action.ERASE, Action.QUERY)
"""What a folder of the inbox may be called."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Taken:
    """What became of one file of the inbox.

    id: of its request, or by which optouts/rejected names it. request: None if none could be made of it. fault: one line, without anything
    that stands in the file or in its name; "" if there is none. stays: whether it is still in the inbox.
    """

    id: str
    request: Request | None
    fault: str = ""
    stays: bool = False
    notes: tuple[str, ...] = ()


def take_in(lake: Lake, *, quiet: float = QUIET) -> list[Taken]:
    """Make requests of all files in the inbox, in order of name.

    A file that cannot be read or removed stays and has a fault; the others are taken all the same. Which requests wait is asked of the ledger,
    not of this list: what an earlier call took in before it was killed is not in it.

    Args:
        quiet: seconds for which a file must not have changed; of a file system alone, as elsewhere an object appears whole.
    Raises:
        LakeError: the inbox cannot be listed, or the lake's salt not be read.
        CorruptError: the salt is damaged.
    """
    found = []
    salt = None
    for info in _at_rest(lake, quiet):
        salt = salt or salt_of(lake)
        taken = _take(lake, info, salt)
        if taken is not None:
            log.info("%s", _line(taken))
            found.append(taken)
    return found


def _at_rest(lake: Lake, quiet: float) -> Iterator[ObjectInfo]:
    """What lies in the inbox and is not being written."""
    first = _listed(lake)
    young = [each for each in first if abs(time.time() - each.written) < quiet]
    if not young or objects.local_path(lake.root) is None:
        yield from first
        return
    time.sleep(quiet)
    before = {(each.uri, each.generation, each.size) for each in first}
    yield from (each for each in _listed(lake) if (each.uri, each.generation, each.size) in before)


def _listed(lake: Lake) -> list[ObjectInfo]:
    return [each for each in objects.list_objects(lake.optout_inbox()) if "/." not in _name(lake, each)]


def _name(lake: Lake, info: ObjectInfo) -> str:
    """Path below the inbox, with a slash at its beginning; of a file system as a URI spells it."""
    return info.uri.removeprefix(lake.optout_inbox())


def _written_name(lake: Lake, info: ObjectInfo) -> str:
    """The same as people wrote it."""
    return _name(lake, info) if info.uri.startswith("gs://") else unquote(_name(lake, info))


def _take(lake: Lake, info: ObjectInfo, salt: Salt) -> Taken | None:
    """One file. None: somebody else has taken it meanwhile."""
    name = _name(lake, info)
    try:
        if info.size > MOST_BYTES:
            return _put_aside(lake, info, salt)
        read = objects.read_versioned(info.uri)
        if read is None:
            return None
        data, generation = read
        taken = _request_of(lake, info, data, _submission(name, generation), salt)
        removed = objects.delete_object(info.uri, generation)
        return dataclasses.replace(taken, stays=not removed and objects.exists(info.uri))
    except SmaltiError as error:
        fault = nameless(str(error), info.uri, name, "a file of the inbox")
        return Taken(salt.name_of(name.encode()), None, fault, stays=True)
    except (
        Exception
    ) as error:  # whatever is wrong with one file keeps no other waiting; what such an error says may be of the file
        fault = f"a file of the inbox cannot be taken ({type(error).__name__}). Look at it, and hand it in another way"
        return Taken(salt.name_of(name.encode()), None, fault, stays=True)


def _put_aside(lake: Lake, info: ObjectInfo, salt: Salt) -> Taken:
    """What is too large to be keys goes to optouts/rejected unread, and leaves the inbox."""
    identity = salt.name_of(_submission(_name(lake, info), info.generation).encode())
    name = _written_name(lake, info)
    rejected = _rejected_file(lake, identity, name)
    fault = InputError(
        f"it has {info.size:,} bytes, and a file of keys or a picture at most {MOST_BYTES:,}",
        rejected,
        "Split it into files of 100,000 keys each, and drop those",
    )
    why = RejectedRow(0, name[1:], f"{fault.what.rstrip('.')}. {fault.fix}")
    objects.create_bytes(lake.optout_rejected(identity), Parsed(rejected=(why,)).encode_rejected())
    objects.copy_object(info.uri, rejected)
    removed = objects.delete_object(info.uri, info.generation)
    return Taken(identity, None, str(fault), stays=not removed and objects.exists(info.uri))


def _rejected_file(lake: Lake, identity: str, name: str) -> str:
    suffix = PurePosixPath(name).suffix.encode("ascii", "replace").decode()[:16]
    return lake.optout_rejected_file(identity, f".{safe_name(suffix[1:])}" if suffix else "")


def _submission(name: str, generation: str) -> str:
    """The same for the same file and for no other one. People call files by what is in them: the name itself is not kept."""
    return f"inbox {sha256(name.encode())} {generation}"


def _request_of(lake: Lake, info: ObjectInfo, data: bytes, submission: str, salt: Salt) -> Taken:
    """The request in the ledger; or the file, and what is wrong with it, in optouts/rejected."""
    name = _written_name(lake, info)
    identity = salt.name_of(submission.encode())
    rejected = _rejected_file(lake, identity, name)
    parsed = Parsed()
    try:
        action, reference = _asked(name, rejected)
        parsed = parse(data, name, where=rejected)
        request = hand_in(
            lake,
            action=action,
            reference=reference,
            parsed=parsed,
            submission=submission,
            submitted=_dropped(info),
            submitted_by="inbox",
        )
    except InputError as error:
        why = RejectedRow(0, name[1:], f"{error.what.rstrip('.')}. {error.fix}")
        said = Parsed(rejected=(why, *parsed.rejected))
        objects.create_bytes(lake.optout_rejected(identity), said.encode_rejected())
        objects.create_bytes(rejected, data)
        return Taken(identity, None, str(error))
    return Taken(request.id, request, notes=parsed.notes)


def _dropped(info: ObjectInfo) -> datetime:
    """When it came into the inbox. A file that was moved or copied with its time is older itself; what has changed its entry last is the drop."""
    seconds, path = info.written, objects.local_path(info.uri)
    with contextlib.suppress(OSError):  # taken by somebody else meanwhile
        seconds = max(seconds, path.stat().st_ctime) if path else seconds
    return datetime.fromtimestamp(seconds, UTC)


def _asked(name: str, where: str) -> tuple[Action, str]:
    """The action and the reference that a path says."""
    action, _, rest = name[1:].partition("/")
    reference, slash, _ = rest.partition("/")
    if action not in ACTIONS or not (slash and reference.strip()):
        raise InputError(
            "it did not lie where its folders say what is asked",
            where,
            f"Drop it below a folder {', '.join(ACTIONS)}, and there in one that is called by the requester's reference",
        )
    return Action(action), reference


def nameless(line: str, uri: str, name: str, instead: str) -> str:
    """The line of an error, without the name of a file: people call pictures by what is in them.

    Args:
        name: path of the file, in its bucket or below the inbox; it begins with a slash.
    """
    for spelled in (uri, name, name[1:], quote(name[1:], safe="")):
        line = line.replace(spelled, instead) if spelled else line
    return line


def _line(taken: Taken) -> str:
    if taken.request is None:
        return taken.fault
    asked = taken.request
    return f"request {asked.id} ({asked.action}, reference {asked.reference}): {len(asked.keys):,} keys, {asked.rejected:,} rejected rows"
