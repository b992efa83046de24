"""What vLLM and transformers say, as JSON: `python -m tests.support.ask_vllm TASK.json`, in .venv-vllm.

The task names photographs and captions; answers go to its `out`, the tiny models to its `models`. Engines are opened in a thread
with an event loop of its own, as a job's actors do it. Each model is loaded once. The process ends by killing itself while the
second engine is open: what is left of it is for the test to look at.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from PIL import Image

from smalti.engines.asking import answer
from smalti.engines.base import AsyncEngine, Question, RowError, open_engine
from smalti.errors import EngineError
from smalti.profiles import Engine, PromptText
from tests.support.tiny_models import make_models

SHOWN = 400_000
"""Pixels of a photograph here: at most 391 tokens, which fit."""

GREEDY = 24
"""Tokens that are compared."""


def profile_of(name: str, role: str, model: Path, user: str, **more: Any) -> Engine:
    text = PromptText(system="You look.", user=user)
    prompt = {"name": "tiny", "sha256": text.sha256, "text": text.model_dump()}
    fields = {"name": name, "role": role, "kind": "vllm", "model": str(model), "prompt": prompt, "dtype": "float32"}
    return Engine.model_validate({
        **fields,
        "max_model_len": 768,
        "concurrency": 16,
        "sampling": {"max_tokens": GREEDY},
        **more,
    })


def photograph(path: str) -> Image.Image:
    image = Image.open(path).convert("RGB")
    scale = (SHOWN / (image.width * image.height)) ** 0.5
    return image.resize((int(image.width * scale), int(image.height * scale)))


async def ask(engine: AsyncEngine, profile: Engine, question: Question) -> list[Any]:
    try:
        return ["answer", *await engine.ask(question, profile.sampling)]
    except RowError as error:
        return ["row error", str(error)]


def record(engine: Any) -> dict[str, list[int]]:
    """Tokens of each answer by the question's id, as they come: texts would hide which bytes a broken character had."""
    found: dict[str, list[int]] = {}
    generate = engine._engine.generate

    async def recorded(*given: Any, request_id: str, **more: Any) -> AsyncIterator[Any]:
        async for each in generate(*given, request_id=request_id, **more):
            found[request_id.split("-", 1)[1]] = list(each.outputs[0].token_ids)
            yield each

    engine._engine.generate = recorded
    return found


async def describe(models: Path, photos: list[str]) -> dict[str, Any]:
    """Photographs, and among them a picture and a prompt that are too long; then the same through `answer`."""
    user = "Describe the picture."
    profile = profile_of("tiny-eyes", "captioner", models / "qwen3-vl", user)
    questions = [Question(path, user, photograph(path)) for path in photos]
    wide = Question("wide", user, Image.new("RGB", (1024, 1024), (200, 40, 40)))
    long = Question("long", "word " * 900, photograph(photos[0]))
    started = time.monotonic()
    engine: Any = await open_engine(profile)
    found: dict[str, Any] = {"load_seconds": time.monotonic() - started}
    tokens = record(engine)
    got = await asyncio.gather(*(ask(engine, profile, each) for each in [wide, *questions, long]))
    found |= {"wide": got[0], "photos": got[1:-1], "long": got[-1], "tokens": [tokens[path] for path in photos]}
    kept = await asyncio.gather(*(answer(engine, profile, each) for each in [*questions[:2], wide]))
    found["kept"] = [[each.status, each.reason, each.detail] for each in kept]
    written = [engine.prompt(each) for each in questions]
    found["open"] = len(children())
    await engine.close()
    found["closed"] = len(children())
    found["transformers"] = transformers_tokens(profile, written, [each.image for each in questions])
    return found


async def fail(models: Path) -> dict[str, str]:
    """What is said of a folder that is no model, and by an engine whose process was killed."""
    user = "{caption}"
    found: dict[str, str] = {}
    (models / "none").mkdir()
    try:
        await open_engine(profile_of("none", "classifier", models / "none", user))
    except EngineError as error:
        found["no model"] = str(error)
    profile = profile_of("killed", "classifier", models / "qwen3", user)
    engine = await open_engine(profile)
    for pid in children():
        os.kill(pid, signal.SIGKILL)
    try:
        await ask(engine, profile, Question("1", "A red car."))
    except EngineError as error:
        found["killed"] = str(error)
    await engine.close()
    return found


async def label(models: Path, captions: list[str], out: Path, found: dict[str, Any]) -> None:
    """Captions through `answer`, which takes a label or nothing; then what the model says when it may say anything."""
    user = "Which label? {caption}"
    profile = profile_of("tiny-label", "classifier", models / "qwen3", user)
    questions = [Question(str(n), user.replace("{caption}", caption)) for n, caption in enumerate(captions)]
    started = time.monotonic()
    engine: Any = await open_engine(profile)
    said: dict[str, Any] = {"load_seconds": time.monotonic() - started}
    kept = await asyncio.gather(*(answer(engine, profile, each) for each in questions))
    said["labels"] = [[each.text, each.status, each.attempts] for each in kept]
    engine._profile = profile.model_copy(update={"role": "captioner"})  # the same model without the choice of labels
    tokens = record(engine)
    free = questions[:8]
    await asyncio.gather(*(ask(engine, profile, each) for each in free))
    said["tokens"] = [tokens[each.id] for each in free]
    said["transformers"] = transformers_tokens(profile, [engine.prompt(each) for each in free], None)
    said["processes"] = children()
    out.write_text(json.dumps({"captioner": found, "classifier": said}))
    os.kill(os.getpid(), signal.SIGKILL)


def transformers_tokens(profile: Engine, prompts: list[str], images: list[Any] | None) -> list[list[int]]:
    """Greedy answers at float32 for the same prompts and pixels."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer

    kind, reader = (AutoModelForImageTextToText, AutoProcessor) if images else (AutoModelForCausalLM, AutoTokenizer)
    model = kind.from_pretrained(profile.model, dtype=torch.float32).eval()
    read = reader.from_pretrained(profile.model)
    found = []
    for number, prompt in enumerate(prompts):
        size = {"shortest_edge": 65536, "longest_edge": profile.max_pixels}
        pixels = {"images": [images[number]], "images_kwargs": {"size": size}} if images else {}
        inputs = read(text=[prompt], return_tensors="pt", **pixels)
        with torch.inference_mode():
            said = model.generate(**inputs, max_new_tokens=GREEDY, do_sample=False)
        found.append(said[0, inputs["input_ids"].shape[1] :].tolist())
    return found


def children() -> list[int]:
    """Processes below this one that live and compute; multiprocessing's own watchman ends with this process."""
    import psutil

    found = []
    for each in psutil.Process().children(recursive=True):
        try:
            if "resource_tracker" not in " ".join(each.cmdline()):
                found.append(each.pid)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue  # it has ended since it was listed
    return found


def main(task: dict[str, Any]) -> None:
    models = Path(task["models"])
    make_models(models)
    found = asyncio.run(describe(models, task["photos"]))
    found["errors"] = asyncio.run(fail(models))
    asyncio.run(label(models, task["captions"], Path(task["out"]), found))


if __name__ == "__main__":
    thread = threading.Thread(target=main, args=[json.loads(Path(sys.argv[1]).read_text())])
    thread.start()
    thread.join()
