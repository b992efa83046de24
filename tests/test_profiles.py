"""What a profile says, what it pins, and what its digest is of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from smalti.config import home, load_engine, load_engines
from smalti.errors import InputError
from smalti.profiles import SPEED, Engine, PromptText

WORDS = PromptText(system="You are a captioner.", user="Caption this.")
CAPTIONER: dict[str, Any] = {
    "name": "m",
    "role": "captioner",
    "kind": "vllm",
    "model": "org/model",
    "prompt": {"name": "p", "sha256": WORDS.sha256},
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    prompts = tmp_path / "engines" / "prompts"
    prompts.mkdir(parents=True)
    (prompts / "p.yaml").write_text(yaml.safe_dump(WORDS.model_dump()))
    (tmp_path / "engines" / "m.yaml").write_text(yaml.safe_dump(CAPTIONER))
    return tmp_path


def engine(**changes: Any) -> Engine:
    return Engine.model_validate(CAPTIONER | changes)


def test_a_profile_is_loaded_with_the_words_of_its_prompt(root: Path) -> None:
    loaded = load_engine("m", "captioner", root)
    assert loaded.prompt is not None
    assert loaded.prompt.text == WORDS


def test_a_prompt_that_was_changed_is_not_the_one_that_is_pinned(root: Path) -> None:
    changed = WORDS.model_copy(update={"system": "You are a poet."})
    (root / "engines" / "prompts" / "p.yaml").write_text(yaml.safe_dump(changed.model_dump()))
    with pytest.raises(InputError, match=f"profile 'm' pins; its sha256 is {changed.sha256}.*under new names"):
        load_engine("m", "captioner", root)


def test_a_prompt_that_is_not_there_is_named(root: Path) -> None:
    (root / "engines" / "prompts" / "p.yaml").rename(root / "engines" / "prompts" / "q.yaml")
    with pytest.raises(InputError, match=r"prompts/p\.yaml: there is no prompttext 'p'\. Use one of: q"):
        load_engine("m", "captioner", root)


def test_a_classifier_must_be_shown_the_caption(root: Path) -> None:
    (root / "engines" / "m.yaml").write_text(yaml.safe_dump(CAPTIONER | {"role": "classifier"}))
    with pytest.raises(InputError, match=r"prompt p does not say \{caption\}"):
        load_engine("m", "classifier", root)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": None}, "kind vllm needs `model`"),
        ({"prompt": None}, "kind vllm needs `prompt`"),
        ({"kind": "openai"}, "kind openai needs `base_url`"),
        ({"kind": "openai", "base_url": "http://h/v1", "gpus": 1}, "kind openai takes no `gpus`"),
        ({"kind": "openai", "base_url": "http://ada:pass@h/v1"}, "holds no user, password"),
        ({"kind": "openai", "base_url": "http://h/v1?api-key=x"}, "holds no user, password, query"),
        ({"revision": "main"}, "revision"),
        ({"name": "source"}, "source's own captions"),
    ],
)
def test_what_a_kind_needs_is_said(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        engine(**changes)


def test_a_password_in_an_address_is_not_repeated() -> None:
    with pytest.raises(ValidationError) as refused:
        engine(kind="openai", base_url="http://ada:pass-7731@h/v1")
    assert "7731" not in str(refused.value)


def test_only_what_decides_the_words_is_in_a_profiles_digest() -> None:
    speed = {
        "description": "x",
        "batch_size": 99,
        "concurrency": 9,
        "engines": 3,
        "cpus": 0.5,
        "gpus": 2,
        "gpu_memory": 0.5,
        "rate": 1.0,
        "price": 2.0,
        "base_url": "http://h/v1",
        "key": {"env": "K"},
        "timeout": 9.0,
    }
    assert set(speed) == SPEED
    assert engine(**speed).digest == engine().digest
    words: list[dict[str, Any]] = [
        {"name": "n"},
        {"model": "org/other"},
        {"revision": "0" * 40},
        {"architecture": "A"},
        {"dtype": "float32"},
        {"max_model_len": 99},
        {"arguments": {"quantization": "fp8"}},
        {"prompt": {"name": "p", "sha256": "0" * 64}},
        {"thinking": True},
        {"sampling": {"temperature": 0.5}},
        {"attempts": 1},
        {"checks": {"min_words": 1}},
        {"max_pixels": 2048},
    ]
    digests = {engine().digest, *(engine(**change).digest for change in words)}
    assert len(digests) == 1 + len(words)


def test_the_profiles_of_this_repository_are_those_that_are_known() -> None:
    engines = {each.name: each for each in load_engines()}
    assert {name: each.rate for name, each in engines.items() if each.kind == "vllm"} == {
        "qwen3-vl-8b": 20,
        "qwen2.5-vl-7b-captioner-relaxed": 20,
        "qwen3.5-9b": 6.5,
        "qwen3-8b": 200,
    }
    assert engines["qwen2.5-vl-7b-captioner-relaxed"].architecture == "Qwen2_5_VLForConditionalGeneration"
    assert engines["qwen3-8b"].role == "classifier"
    written = {path.stem for path in (home() / "engines" / "prompts").glob("*.yaml")}
    assert written == {each.prompt.name for each in engines.values() if each.prompt}  # none lies about unused
