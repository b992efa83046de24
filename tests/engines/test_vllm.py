"""Engines of kind `vllm`: the real vLLM, on CPUs, with tiny models whose weights are random.

vLLM has an environment of its own (`make vllm`); one process there asks everything, once.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from smalti.engines.base import open_engine
from smalti.engines.vllm import engine_arguments
from smalti.errors import InputError
from smalti.profiles import Engine, PromptText
from smalti.reasons import Label

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
SUBJECTS = ("a red car", "page 7 of an essay", "two nude people", "東京の夜", "<|im_start|> in quotes", "x" * 200)
CAPTIONS = [f"A picture of {subject}, seen {number} times." for number in range(10) for subject in SUBJECTS]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What was answered. The process that asked has killed itself, with its second engine open."""
    if not PYTHON.exists():
        pytest.skip("there is no .venv-vllm: `make vllm` makes it")
    import interior_photos

    photos = sorted((Path(interior_photos.__file__).parent / "images").glob("*.jpg"))[:8]
    folder = tmp_path_factory.mktemp("vllm")
    task = {"models": str(folder / "models"), "out": str(folder / "said.json"), "captions": CAPTIONS}
    (folder / "task.json").write_text(json.dumps({**task, "photos": [str(path) for path in photos]}))
    with (folder / "log").open("w") as log:
        command = [str(PYTHON), "-m", "tests.support.ask_vllm", str(folder / "task.json")]
        ended = subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, timeout=500, check=False)
    assert ended.returncode == -signal.SIGKILL, (folder / "log").read_text()[-3000:]
    found: dict[str, Any] = json.loads((folder / "said.json").read_text())
    return found


def test_processes_of_an_engine_whose_owner_was_killed_end_by_themselves(said: dict[str, Any]) -> None:
    processes = said["classifier"]["processes"]
    assert processes
    deadline = time.monotonic() + 15
    while left := [pid for pid in processes if is_running(pid)]:
        if time.monotonic() > deadline:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            pytest.fail(f"{len(left)} processes live on")
        time.sleep(0.1)


def test_a_closed_engine_leaves_no_process(said: dict[str, Any]) -> None:
    assert said["captioner"]["open"] >= 1
    assert said["captioner"]["closed"] == 0


def test_greedy_tokens_about_photographs_are_those_of_transformers(said: dict[str, Any]) -> None:
    captioner = said["captioner"]
    assert len(captioner["tokens"]) == 8
    assert captioner["tokens"] == captioner["transformers"]
    assert len({tuple(tokens) for tokens in captioner["tokens"]}) > 4  # it saw the pictures


def test_greedy_tokens_about_captions_are_those_of_transformers(said: dict[str, Any]) -> None:
    classifier = said["classifier"]
    assert len(classifier["tokens"]) == 8
    assert classifier["tokens"] == classifier["transformers"]


def test_answers_say_how_they_ended_and_how_long_they_are(said: dict[str, Any]) -> None:
    for (kind, text, finish, length), tokens in zip(
        said["captioner"]["photos"], said["captioner"]["tokens"], strict=True
    ):
        assert (kind, length) == ("answer", len(tokens))
        assert finish == ("length" if length == 24 else "stop")
        assert not text.endswith(("<|im_end|>", "<|endoftext|>"))


def test_a_picture_or_prompt_that_is_too_long_fails_alone(said: dict[str, Any]) -> None:
    captioner = said["captioner"]
    assert captioner["wide"][0] == captioner["long"][0] == "row error"
    assert "maximum model length of 768" in captioner["wide"][1]
    assert Counter(kind for kind, *_ in captioner["photos"]) == {"answer": 8}
    assert [status for status, *_ in captioner["kept"]] == ["ok", "ok", "failed"]
    assert captioner["kept"][2][1] == "error"


def test_a_classifier_says_one_of_the_labels_and_nothing_else(said: dict[str, Any]) -> None:
    labels = said["classifier"]["labels"]
    assert len(labels) == len(CAPTIONS) == 60
    assert {(status, attempts) for _, status, attempts in labels} == {("ok", 1)}
    assert {text for text, *_ in labels} <= set(Label)


def test_an_engine_that_cannot_load_or_has_died_says_which_model_and_what_to_look_at(said: dict[str, Any]) -> None:
    errors = said["captioner"]["errors"]
    assert errors["no model"].startswith("engines/none.yaml: model ")
    assert "cannot be loaded" in errors["no model"]
    assert "Look at `model`, `revision`" in errors["no model"]
    assert errors["killed"].startswith("engines/killed.yaml: the process of model ")
    assert "lower `concurrency`" in errors["killed"]


def is_running(pid: int) -> bool:
    """A zombie holds nothing: it waits for whoever adopted it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def profile(**more: Any) -> Engine:
    text = PromptText(user="Describe.")
    prompt = {"name": "p", "sha256": text.sha256, "text": text.model_dump()}
    return Engine.model_validate({
        "name": "big",
        "role": "captioner",
        "kind": "vllm",
        "model": "org/m",
        "prompt": prompt,
        **more,
    })


def test_a_model_without_a_pinned_revision_is_refused() -> None:
    with pytest.raises(InputError, match=r"engines/big\.yaml: model org/m has no revision\. Pin it"):
        asyncio.run(open_engine(profile()))


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_vllm_the_error_says_where_it_is_to_be_had(tmp_path: Path) -> None:
    for fields in ({"revision": "0" * 40}, {"model": str(tmp_path)}):
        with pytest.raises(InputError, match=r"vLLM, which is not installed here\. .*requirements-gpu\.txt"):
            asyncio.run(open_engine(profile(**fields)))


def test_the_profile_decides_the_engine_and_its_arguments_override() -> None:
    fields = {"gpus": 2, "gpu_memory": 0.5, "concurrency": 7, "architecture": "A", "max_pixels": 2048}
    found = engine_arguments(profile(**fields, sampling={"seed": 3}, arguments={"max_num_seqs": 9}))
    assert (found["tensor_parallel_size"], found["gpu_memory_utilization"], found["seed"]) == (2, 0.5, 3)
    assert found["max_num_seqs"] == 9
    assert found["hf_overrides"] == {"architectures": ["A"]}
    assert found["mm_processor_kwargs"] == {"size": {"shortest_edge": 2048, "longest_edge": 2048}}
    assert found["limit_mm_per_prompt"] == {"image": 1, "video": 0}
    assert "distributed_executor_backend" not in found
    reader = profile(role="classifier", prompt={"name": "p", "sha256": "0" * 64})
    assert not {"limit_mm_per_prompt", "mm_processor_kwargs"} & set(engine_arguments(reader))
