"""What the commands of all groups take and how they print."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from smalti.lake import Lake

LakeUri = Annotated[str, typer.Option("--lake", envvar="SMALTI_LAKE", help="file:// or gs:// URI of the lake")]
Json = Annotated[bool, typer.Option("--json", help="print what a program reads")]


def lake_at(uri: str) -> Lake:
    """The lake at a URI, or the one that SMALTI_LAKE names."""
    return Lake.at(uri) if uri else Lake.from_environment()


def print_data(data: dict[str, Any], as_json: bool) -> None:
    """One object, for a program or for a person."""
    if as_json:
        print(json.dumps(data))
    else:
        print_fields(data, "")


def print_fields(data: dict[str, Any], indent: str) -> None:
    """Names and values, a line each."""
    for name, value in data.items():
        if value in (None, [], {}, 0.0) and name in ("seconds", "warnings", "dropped", "reserved", "extra_captions"):
            continue
        if name == "shown":
            print("".join(f"{indent}{line}\n" for line in value), end="")
        elif isinstance(value, dict):
            print(f"{indent}{name.replace('_', ' ')}:")
            print_fields(value, indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            print(f"{indent}{name.replace('_', ' ')}:")
            for each in value:
                print(indent + "  " + "  ".join(f"{k}={v}" for k, v in each.items() if v is not None))
        else:
            print(f"{indent}{name.replace('_', ' ')}: {value}")
