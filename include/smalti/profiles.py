"""A profile: one file in include/engines, which says what a captioner or a classifier is and how it is asked.

What decides the words (model, revision, prompt, sampling, pixels, checks, ...) is in the profile's digest, and a column of a
table holds the words of one digest only. How fast they come (batches, engines, GPUs, price) is not.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from smalti.strict import Name, Strict

Role = Literal["captioner", "classifier"]
Kind = Literal["rules", "vllm", "openai"]

SOURCE: Final = "source"
"""In place of a captioner's profile: the captions that the source itself came with."""

SPEED: Final = frozenset({
    "description",
    "batch_size",
    "concurrency",
    "engines",
    "cpus",
    "gpus",
    "gpu_memory",
    "rate",
    "price",
    "base_url",
    "key",
    "timeout",
})
"""Fields that decide how fast, where and at what price an engine says something, and never what it says."""


class PromptText(Strict):
    """One file in include/engines/prompts: what an engine is told, in the words of a person."""

    system: str = ""
    user: str = Field(min_length=1, description="the turn that goes with each picture; `{caption}` for a classifier")

    @property
    def sha256(self) -> str:
        """Of both texts, in hex."""
        return hashlib.sha256(json.dumps([self.system, self.user]).encode()).hexdigest()


class Prompt(Strict):
    """A prompt by name and hash. The text is filled in when the profile is loaded."""

    name: Name
    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="of the text; `smalti engines` shows it")
    text: PromptText | None = Field(None, description="not written in a profile: taken from prompts/<name>.yaml")


class Sampling(Strict):
    """How the next token is chosen. A retry changes it (see `smalti.engines.sampling`)."""

    temperature: float = Field(0.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int | None = Field(None, ge=1)
    repetition_penalty: float = Field(1.0, ge=0.5, le=2)
    max_tokens: int = Field(512, ge=1)
    seed: int = 0


class Checks(Strict):
    """What a caption has to be beside whole, fluent and plain (see `smalti.engines.checks`)."""

    min_words: int = Field(40, ge=0)
    language: Literal["en"] | None = Field(
        "en", description="of the prose; quoted text may be in any. Empty: not checked"
    )


class Key(Strict):
    """Where the key of an openai server is; never the key itself."""

    env: str | None = Field(None, description="environment variable of the Ray workers")
    connection: str | None = Field(None, description="Airflow connection: its password goes to the job sealed")


class Engine(Strict, hide_input_in_errors=True):
    """One file in include/engines: a profile of a captioner or a classifier."""

    name: Name
    role: Role
    kind: Kind
    description: str = ""
    model: str | None = Field(None, description="Hugging Face repository, directory, or the name a server knows")
    revision: str | None = Field(None, pattern="^[0-9a-f]{40}$", description="commit of the model's repository")
    architecture: str | None = Field(None, description="overrides what the checkpoint says of its class")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    max_model_len: int | None = Field(None, ge=64, description="tokens of picture, prompt and answer together")
    arguments: dict[str, Any] = Field(
        {}, description="further arguments of vLLM's engine; kind openai: fields of each request, null leaves one out"
    )
    prompt: Prompt | None = None
    thinking: bool = Field(False, description="let a reasoning model think aloud first")
    sampling: Sampling = Sampling()
    attempts: int = Field(3, ge=1, le=10, description="times that a row is asked about before it counts as failed")
    checks: Checks | None = Field(None, description="of a captioner: what a caption must be; empty: anything is taken")
    max_pixels: int = Field(1 << 20, ge=1024, description="pixels an engine is shown at most")
    batch_size: int = Field(16, ge=1, description="rows a task takes at once, and a checkpoint holds at most")
    concurrency: int = Field(64, ge=1, description="rows that one engine works on at once")
    engines: int | None = Field(
        None, ge=1, description="engines; empty: what the GPUs that the cluster has at the start allow"
    )
    cpus: float = Field(1.0, gt=0, description="CPUs of one engine; kind rules: of one task")
    gpus: int = Field(0, ge=0, description="GPUs of one engine; more than one: tensor parallel")
    gpu_memory: float = Field(0.9, gt=0, le=1, description="share of a GPU's memory that vLLM takes")
    rate: float | None = Field(None, gt=0, description="rows a second of one engine that were measured")
    price: float | None = Field(None, ge=0, description="of one GPU hour, in your currency")
    base_url: str | None = Field(None, pattern="^https?://", description="kind openai: up to and with /v1")
    key: Key = Key()
    timeout: float = Field(300.0, gt=0, description="kind openai: seconds for one answer")

    @field_validator("name")
    @classmethod
    def _not_reserved(cls, name: str) -> str:
        if name == SOURCE:
            raise ValueError("`source` is the name of the source's own captions")
        return name

    @field_validator("base_url")
    @classmethod
    def _no_secret_in_it(cls, url: str | None) -> str | None:
        parts = urlsplit(url or "")
        if "@" in parts.netloc or parts.query or parts.fragment:  # it is shown in errors and logs
            raise ValueError("a server's address holds no user, password, query or fragment: name its key in `key`")
        return url

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Engine:
        if self.kind == "rules":
            return self
        if not self.model:
            raise ValueError(f"kind {self.kind} needs `model`")
        if self.prompt is None:
            raise ValueError(f"kind {self.kind} needs `prompt`: name and sha256 of a file in prompts/")
        if self.kind == "openai" and not self.base_url:
            raise ValueError("kind openai needs `base_url`: where the server is, up to and with /v1")
        if self.kind == "openai" and self.gpus:
            raise ValueError("kind openai takes no `gpus`: the server has them")
        if self.role == "classifier" and self.prompt.text and "{caption}" not in self.prompt.text.user:
            raise ValueError(f"prompt {self.prompt.name} does not say {{caption}}: a classifier would not see one")
        return self

    def __hash__(self) -> int:
        return hash((self.name, self.digest))  # `arguments` cannot be hashed

    @property
    def digest(self) -> str:
        """sha256, in hex, of all in the profile that decides what it says; not of how fast it says it."""
        return digest_of(self.model_dump(mode="json", exclude=set(SPEED)))


def column_name(prefix: str, profile: str) -> str:
    """The column of a profile, for instance caption_rules: what SQL has no room for in a name becomes _."""
    return f"{prefix}_{re.sub('[^a-z0-9]', '_', profile)}"


def caption_column(profile: str) -> str:
    """Where the captions of a profile, or of SOURCE, stand: in a source's table, and as an extra column in MDS."""
    return column_name("caption", profile)


def digest_of(*what: Any) -> str:
    """sha256, in hex, of JSON values."""
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()
