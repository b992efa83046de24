"""How a row is asked about again: with other sampling, or the model would say the same again."""

from __future__ import annotations

from smalti.profiles import Sampling

WARMER = 0.3
"""Temperature that each further attempt adds."""

WARMEST = 1.0

PENALTY = 1.05
"""Repetition penalty of the second attempt, where the profile has a smaller one. Each further attempt adds as much again."""


def sampling_of(first: Sampling, attempt: int) -> Sampling:
    """The sampling of attempt number `attempt`, from 1: the profile's own, then warmer, with less repetition and another seed."""
    if attempt == 1:
        return first
    more = attempt - 1
    return first.model_copy(
        update={
            "temperature": max(first.temperature, round(min(first.temperature + WARMER * more, WARMEST), 2)),
            "repetition_penalty": max(first.repetition_penalty, round(1 + (PENALTY - 1) * more, 2)),
            "seed": first.seed + more,
        }
    )
