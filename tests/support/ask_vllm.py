"""What vLLM and transformers say, as JSON: `python -m tests.support.ask_vllm TASK.json`, in .venv-vllm.

The task names the tiny models, photographs and captions; answers go to its `out`. Engines are opened in a thread with an event
loop of its own, as a job's actors do it. Each model is loaded once.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from PIL import Image

from smalti.engines.asking import answer
from smalti.engines.base import AsyncEngine, Question, RowError, open_engine
from smalti.profiles import Engine, PromptText
from smalti.reasons import Label

SHOWN = 400_000
"""Pixels of a photograph here: at most 391 tokens, which fit."""

GREEDY = 24
"""Tokens that are compared."""


def profile_of(name: str, role: str, model: Path, user: str, **more: Any) -> Engine:
    text = PromptText(system="You look.", user=user)
    prompt = {"name": "tiny", "sha256": text.sha256, "text": text.model_dump()}
    fields = {"name": name, "role": role, "kind": "vllm", "model": str(model), "prompt": prompt, "dtype": "float32"}
    return Engine.model_validate(
        {**fields, "max_model_len": 768, "concurrency": 16, "sampling": {"max_tokens": GREEDY}, **more}
    )


def photograph(path: str) -> Image.Image:
    image = Image.open(path).convert("RGB")
    scale = (SHOWN / (image.width * image.height)) ** 0.5
    return image.resize((int(image.width * scale), int(image.height * scale)))


async def ask(engine: AsyncEngine, profile: Engine, question: Question) -> list[Any]:
    try:
        return ["answer", *await engine.ask(question, profile.sampling)]
    except RowError as error:
        return ["row error", str(error)]


async def describe(models: Path, photos: list[str]) -> dict[str, Any]:
    """Photographs, and among them a picture and a prompt that are too long; then the same through `answer`."""
    profile = profile_of("tiny-eyes", "captioner", models / "qwen3-vl", "Describe the picture.")
    user = "Describe the picture."
    questions = [Question(path, user, photograph(path)) for path in photos]
    wide = Question("wide", user, Image.new("RGB", (1024, 1024), (200, 40, 40)))
    long = Question("long", "word " * 900, photograph(photos[0]))
    started = time.monotonic()
    engine: Any = await open_engine(profile)
    seconds = time.monotonic() - started
    got = await asyncio.gather(*(ask(engine, profile, each) for each in [wide, *questions, long]))
    kept = await asyncio.gather(*(answer(engine, profile, each) for each in [*questions[:2], wide]))
    written = [engine.prompt(each) for each in questions]
    before = children()
    await engine.close()
    found = {"load_seconds": seconds, "wide": got[0], "photos": got[1:-1], "long": got[-1], "left": await gone(before)}
    found["kept"] = [[each.status, each.reason, each.detail] for each in kept]
    found["transformers"] = transformers_says(profile, written, [each.image for each in questions])
    return found


async def label(models: Path, captions: list[str]) -> dict[str, Any]:
    """Captions through `answer`, which takes a label or nothing; and, by a captioner's profile, what is said unconstrained."""
    profile = profile_of("tiny-label", "classifier", models / "qwen3", "Which label? {caption}")
    questions = [Question(str(n), f"Which label? {caption}") for n, caption in enumerate(captions)]
    started = time.monotonic()
    engine: Any = await open_engine(profile)
    seconds = time.monotonic() - started
    kept = await asyncio.gather(*(answer(engine, profile, each) for each in questions))
    engine._profile = free = profile.model_copy(update={"role": "captioner"})  # the same model, once without a choice
    got = await asyncio.gather(*(ask(engine, free, each) for each in questions[:8]))
    written = [engine.prompt(each) for each in questions[:8]]
    before = children()
    await engine.close()
    return {
        "load_seconds": seconds,
        "labels": [[each.text, each.status, each.attempts] for each in kept],
        "free": got,
        "left": await gone(before),
        "transformers": transformers_says(profile, written, None),
        "allowed": list(Label),
    }


def transformers_says(profile: Engine, prompts: list[str], images: list[Any] | None) -> list[list[Any]]:
    """Text, special tokens included, and number of tokens of greedy answers at float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer

    kind = AutoModelForImageTextToText if images else AutoModelForCausalLM
    model = kind.from_pretrained(profile.model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(profile.model)
    processor = AutoProcessor.from_pretrained(profile.model) if images else tokenizer
    found = []
    for number, prompt in enumerate(prompts):
        size = {"shortest_edge": 65536, "longest_edge": profile.max_pixels}
        pixels = {"images": [images[number]], "images_kwargs": {"size": size}} if images else {}
        inputs = processor(text=[prompt], return_tensors="pt", **pixels)
        with torch.inference_mode():
            said = model.generate(**inputs, max_new_tokens=GREEDY, do_sample=False)[0, inputs["input_ids"].shape[1] :]
        ended = int(said[-1]) in model.generation_config.eos_token_id
        words = tokenizer.decode(said[:-1] if ended else said, skip_special_tokens=False)
        found.append([words, "stop" if ended else "length", len(said)])
    return found


def children() -> list[int]:
    """Processes below this one that compute; multiprocessing's own watchman ends with this process."""
    import psutil

    found = psutil.Process().children(recursive=True)
    return [each.pid for each in found if "resource_tracker" not in " ".join(each.cmdline())]


async def gone(before: list[int]) -> dict[str, int]:
    """How many processes there were while the engine was open, and how many are there after it was closed."""
    return {"before": len(before), "after": len(children())}


async def hold(models: Path, out: Path) -> None:
    """Open an engine, say so, and wait to be killed."""
    await open_engine(profile_of("tiny-label", "classifier", models / "qwen3", "Which label? {caption}"))
    out.write_text(json.dumps(children()))
    await asyncio.sleep(600)


def main(task: dict[str, Any]) -> None:
    models, out = Path(task["models"]), Path(task["out"])
    if task["do"] == "hold":
        asyncio.run(hold(models, out))
    work = describe(models, task["photos"]) if task["do"] == "describe" else label(models, task["captions"])
    out.write_text(json.dumps(asyncio.run(work)))


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    thread = threading.Thread(target=main, args=[json.loads(Path(sys.argv[1]).read_text())])
    thread.start()
    thread.join()
