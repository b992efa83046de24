"""Engines of kind `vllm`: vLLM in this process."""

from __future__ import annotations

from smalti.config import Engine
from smalti.engines.base import AsyncEngine
from smalti.errors import InputError


async def open_vllm(profile: Engine) -> AsyncEngine:
    raise InputError("engines of kind vllm are not available yet", f"engines/{profile.name}.yaml", "Use kind: rules")
