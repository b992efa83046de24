"""Engines of kind `vllm`: a model that vLLM runs beside this process, on this machine's GPUs or, built for it, its CPUs."""

from __future__ import annotations

import importlib.util
import itertools
import os
from pathlib import Path
from typing import Any

from smalti.engines.base import Answer, AsyncEngine, Question, RowError
from smalti.engines.vllm_processes import is_called
from smalti.errors import EngineError, InputError
from smalti.profiles import Engine, Sampling
from smalti.reasons import Label

MIN_PIXELS = 65536
"""Pictures with fewer pixels are enlarged to as many: what the processors of Qwen's vision models do by themselves."""

ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",  # nothing is sent to anybody
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # an engine is opened where threads run, and forking those may lock up
    "VLLM_LOGGING_LEVEL": "WARNING",
}

CPU_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; by itself it takes a share of the whole machine
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # on CPUs this, and no more, lets the model live in EngineCore itself
}
"""What an engine without GPUs gets besides. Both tables give way to what the environment says already."""


async def open_vllm(profile: Engine) -> AsyncEngine:
    """Load the model of a profile. The event loop stands still meanwhile: seconds on CPUs, minutes on GPUs.

    Raises:
        InputError: no revision is pinned, or vLLM is not installed here.
        EngineError: the model cannot be loaded.
    """
    where = f"engines/{profile.name}.yaml"
    if not profile.revision and not Path(str(profile.model)).is_dir():
        raise InputError(
            f"model {profile.model} has no revision", where, "Pin it: `revision:` and the commit of its repository"
        )
    if importlib.util.find_spec("vllm") is None:
        fix = "Run it in the GPU image, or where requirements-gpu.txt is installed; for CPUs and tests: `make vllm`"
        raise InputError("kind vllm needs vLLM, which is not installed here", where, fix)
    if not is_called():
        fix = "Install it beside vLLM (`pip install --no-deps .`), and name smalti in VLLM_PLUGINS if that is set"
        raise EngineError("vLLM does not find smalti's plugin: a killed job would leave its GPU taken", where, fix)
    for name, value in {**ENVIRONMENT, **({} if profile.gpus else CPU_ENVIRONMENT)}.items():
        os.environ.setdefault(name, value)
    try:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_arguments(profile)))
    except Exception as error:
        raise EngineError(
            f"model {profile.model} cannot be loaded: {type(error).__name__}: {error}",
            where,
            "The log above has vLLM's reason. Look at `model`, `revision`, `gpus`, `gpu_memory` and `max_model_len`",
        ) from error
    try:
        await (
            engine.get_supported_tasks()
        )  # else the first question asks it, and waits for ever if the process has died
        return VllmEngine(profile, engine)
    except BaseException:
        engine.shutdown()
        raise


def engine_arguments(profile: Engine) -> dict[str, Any]:
    """What vLLM's engine is made with. `profile.arguments` come last: they override any of it."""
    found: dict[str, Any] = {
        "model": profile.model,
        "revision": profile.revision,
        "tokenizer_revision": profile.revision,
        "dtype": profile.dtype,
        "max_model_len": profile.max_model_len,
        "tensor_parallel_size": max(1, profile.gpus),
        "gpu_memory_utilization": profile.gpu_memory,
        "max_num_seqs": profile.concurrency,
        "seed": profile.sampling.seed,
        "disable_log_stats": True,
    }
    if profile.gpus <= 1:
        found["distributed_executor_backend"] = (
            "uni"  # the model lives in EngineCore: one process less to start and feed
        )
    if not profile.gpus:
        found["enforce_eager"] = True  # on CPUs compiling takes longer than it saves
    if profile.architecture:
        found["hf_overrides"] = {"architectures": [profile.architecture]}
    if profile.role == "captioner":
        found["limit_mm_per_prompt"] = {"image": 1, "video": 0}
        smallest = min(MIN_PIXELS, profile.max_pixels)
        found["mm_processor_kwargs"] = {"size": {"shortest_edge": smallest, "longest_edge": profile.max_pixels}}
    return found | profile.arguments


class VllmEngine:
    """A loaded model."""

    def __init__(self, profile: Engine, engine: Any) -> None:
        self._profile = profile
        self._engine = engine
        self._where = f"engines/{profile.name}.yaml"
        self._numbers = itertools.count()
        self._tokenizer = engine.get_tokenizer()
        self._template = self._tokenizer.chat_template or _template_of_processor(profile)
        if not self._template:
            raise EngineError(f"model {profile.model} has no chat template", self._where, "Name a model made for chats")

    async def ask(self, question: Question, sampling: Sampling) -> Answer:
        """One answer; see AsyncEngine."""
        from vllm.exceptions import VLLMClientError
        from vllm.v1.engine.exceptions import EngineDeadError

        prompt: dict[str, Any] = {"prompt": self.prompt(question)}
        if question.image is not None:
            prompt["multi_modal_data"] = {"image": question.image}
        last: Any = None
        try:
            async for each in self._engine.generate(
                prompt,
                self._sampling(sampling),
                request_id=f"{next(self._numbers)}-{question.id}",
                tokenization_kwargs={"add_special_tokens": False},  # the template has written them
            ):
                last = each
        except EngineDeadError as error:
            raise self._dead(error) from error
        except (VLLMClientError, ValueError) as error:
            raise RowError(f"{type(error).__name__}: {error}") from error
        except Exception as error:
            if self._engine.errored:
                raise self._dead(error) from error
            cause = error.__cause__ or error  # vLLM wraps what went wrong with one row and says nothing of it
            raise RowError(f"{type(cause).__name__}: {cause}") from error
        if last is None or last.outputs[0].finish_reason not in ("stop", "length"):
            finish = last and last.outputs[0].finish_reason
            raise EngineError(
                f"model {self._profile.model} left a question unanswered ({finish})", self._where, "Run the job again"
            )
        said = last.outputs[0]
        return Answer(said.text, said.finish_reason, len(said.token_ids))

    def prompt(self, question: Question) -> str:
        """The conversation as the model's own template writes it, up to where the answer begins."""
        text = self._profile.prompt and self._profile.prompt.text
        user: Any = question.user
        if question.image is not None:
            user = [{"type": "image"}, {"type": "text", "text": question.user}]
        turns = [{"role": "system", "content": text.system}] if text and text.system else []
        written: str = self._tokenizer.apply_chat_template(
            [*turns, {"role": "user", "content": user}],
            chat_template=self._template,
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=self._profile.thinking,
        )
        return written

    async def close(self) -> None:
        """End the model's process; see AsyncEngine."""
        manager = self._engine.engine_core.resources.engine_manager
        self._engine.shutdown()
        for process in manager.processes if manager else ():
            process.join(10)  # vLLM kills it at last and does not wait until it, and its memory, has gone

    def _sampling(self, sampling: Sampling) -> Any:
        from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

        labels = [label.value for label in Label]
        return SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k or 0,  # 0: all
            repetition_penalty=sampling.repetition_penalty,
            max_tokens=sampling.max_tokens,
            seed=sampling.seed,
            # A special token in the midst of an answer is a fault that the checks must see; the one that ends it is left out.
            skip_special_tokens=False,
            structured_outputs=StructuredOutputsParams(choice=labels) if self._profile.role == "classifier" else None,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _dead(self, error: Exception) -> EngineError:
        return EngineError(
            f"the process of model {self._profile.model} has ended: {error}",
            self._where,
            "The log above has vLLM's reason. If memory ran out, lower `concurrency`, `max_model_len` or `gpu_memory`",
        )


def _template_of_processor(profile: Engine) -> str | None:
    """Some models of pictures keep their template with the processor alone."""
    if profile.role == "classifier":
        return None
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(profile.model, revision=profile.revision)
    template: str | None = getattr(processor, "chat_template", None)
    return template
