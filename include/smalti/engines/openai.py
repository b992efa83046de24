"""Engines of kind `openai`: any server that speaks OpenAI's chat completions."""

from __future__ import annotations

from smalti.config import Engine
from smalti.engines.base import AsyncEngine
from smalti.errors import InputError


async def open_openai(profile: Engine) -> AsyncEngine:
    raise InputError("engines of kind openai are not available yet", f"engines/{profile.name}.yaml", "Use kind: rules")
