"""The caption columns of a release: what it may weigh, and how many of its samples have words in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smalti.errors import InputError
from smalti.profiles import SOURCE, caption_column
from smalti.release.collect import Tally
from smalti.shards.part import Part


def refuse_missing_columns(dataset: str, captions: Mapping[str, float], parts: Sequence[Part], counted: Tally) -> None:
    """Every part of which a run may be served anything has each column that the dataset weighs.

    A part whose samples a later one has superseded may lack it: that is what an old part is after its batch was sharded again.

    Raises:
        InputError: one does not; the line says how the column gets there.
    """
    for part in parts:
        missing = sorted(set(captions) - set(part.columns))
        if not missing or not counted.servable[part.source, part.name]:
            continue
        column = missing[0]
        profile = "`source`" if column == caption_column(SOURCE) else "its captioner's profile"
        runs = " and ".join(
            f"`smalti source run {part.source} --batch {batch} --from caption`"
            for batch in sorted({origin.batch for origin in part.sharded})
        )
        raise InputError(
            f"part {part.source}/{part.name} has no column {column}, which `captions` weighs",
            f"dataset {dataset}, source {part.source}",
            f"Name {profile} in `extra_captions` of source {part.source} and run {runs}; or take {column} out of `captions`",
        )


def empty_columns(captions: Mapping[str, float], counted: Tally) -> list[str]:
    """A line for each column in which no sample that is served has words: its weight would go to `caption`."""
    return [
        f"captions: no sample that is served has words in {column}"
        for column in sorted(captions)
        if not counted.words[column]
    ]
