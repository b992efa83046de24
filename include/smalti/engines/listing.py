"""What profiles there are, for a person who chooses one or writes one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from smalti.config import home, load_engine, load_file
from smalti.errors import InputError
from smalti.profiles import Engine, PromptText

REVISION = 12
"""Characters of a commit that are shown."""


def list_engines(root: Path | None = None) -> list[dict[str, Any]]:
    """A line of each file in engines/, by name: its fields, and the sha256 of its prompt's file as it is now.

    Where that is not the one that the profile pins, or the profile cannot be loaded for another reason, `digest` is None and
    `problem` says why: so the sha256 of a prompt that has just been written can be copied from here.

    Raises:
        InputError: a file of a profile is wrong in itself.
    """
    root = root or home()
    return [_line(root, path) for path in sorted((root / "engines").glob("*.yaml"))]


def _line(root: Path, path: Path) -> dict[str, Any]:
    profile = load_file(path, Engine)
    digest, problem = None, None
    try:
        digest = load_engine(profile.name, profile.role, root).digest
    except InputError as error:
        problem = str(error)
    return {
        "name": profile.name,
        "role": profile.role,
        "kind": profile.kind,
        "model": profile.model,
        "revision": profile.revision[:REVISION] if profile.revision else None,
        "prompt": profile.prompt.name if profile.prompt else None,
        "prompt_sha256": _sha256(root, profile.prompt.name) if profile.prompt else None,
        "digest": digest,
        "rate": profile.rate,
        "price": profile.price,
        "problem": problem,
    }


def _sha256(root: Path, prompt: str) -> str | None:
    try:
        return load_file(root / "engines" / "prompts" / f"{prompt}.yaml", PromptText).sha256
    except InputError:
        return None
