"""The base of every settings model."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

NAME = r"^[a-z0-9][a-z0-9_.-]{0,62}$"

Name = Annotated[str, Field(pattern=NAME, description="lower-case letters, digits, _ . -")]


class Strict(BaseModel):
    """Immutable, and a field nobody knows is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)
