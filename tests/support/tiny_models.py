"""Models of a megabyte that the real vLLM and transformers load: `python -m tests.support.tiny_models DIR`, in .venv-vllm.

Their weights are random, so what they say is garbage, and always the same garbage. Made here: `DIR/qwen3-vl` (pictures and text),
`DIR/qwen3` (text). Tokenizer, template and processor are made here as well; nothing is downloaded.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

END, TURN, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
MERGES = ("visual", "text", "nsfw", "system", "user", "assistant", "picture", "the caption describe")
"""Words that become tokens of their own; all else is spelled in bytes."""

TEMPLATE = (
    "{% for turn in messages %}<|im_start|>{{ turn.role }}\n"
    "{% if turn.content is string %}{{ turn.content }}{% else %}{% for piece in turn.content %}"
    "{% if piece.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ piece.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)

SPREAD = 0.2
"""Of the random weights. With a model's usual 0.02 all tokens are about equally likely, and rounding would choose among them."""


def make_tokenizer() -> Any:
    """Byte-level BPE of about 300 tokens with Qwen's special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[END, TURN, TURN_END, *VISION],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    model.train_from_iterator(MERGES * 4, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=model,
        eos_token=TURN_END,
        pad_token=END,
        additional_special_tokens=[TURN, *VISION],
        model_max_length=8192,
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE,
    )


def make_models(folder: Path) -> None:
    """Both models, float32, the same bytes each time."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3VLConfig, Qwen3VLForConditionalGeneration

    tokenizer = make_tokenizer()
    number = tokenizer.convert_tokens_to_ids
    ends = {"eos_token_id": number(TURN_END), "pad_token_id": number(END)}
    words = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 8192,
        "initializer_range": SPREAD,
        "tie_word_embeddings": False,
    }
    torch.manual_seed(1)
    _save(Qwen3ForCausalLM(Qwen3Config(**words, **ends)), tokenizer, folder / "qwen3")

    rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [6, 5, 5], "mrope_interleaved": True}
    eyes = {
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_heads": 2,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": 64,
        "num_position_embeddings": 256,
        "deepstack_visual_indexes": [0, 1],
        "initializer_range": SPREAD,
    }
    tokens = {
        "vision_start_token_id": number(VISION[0]),
        "vision_end_token_id": number(VISION[1]),
        "image_token_id": number(VISION[2]),
        "video_token_id": number(VISION[3]),
    }
    torch.manual_seed(2)
    config = Qwen3VLConfig(
        text_config={**words, "rope_parameters": rope, **ends}, vision_config=eyes, tie_word_embeddings=False, **tokens
    )
    _save(Qwen3VLForConditionalGeneration(config), tokenizer, folder / "qwen3-vl")
    _write_processor(folder / "qwen3-vl")


def _save(model: Any, tokenizer: Any, folder: Path) -> None:
    from transformers import GenerationConfig

    ends = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=ends[1], do_sample=False)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _write_processor(folder: Path) -> None:
    shared = {
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "processor_class": "Qwen3VLProcessor",
    }
    pictures = {"image_processor_type": "Qwen2VLImageProcessorFast"}
    films = {"video_processor_type": "Qwen3VLVideoProcessor"}
    for name, more, most in (("preprocessor", pictures, 1 << 24), ("video_preprocessor", films, 3 << 23)):
        size = {"shortest_edge": 65536, "longest_edge": most}
        (folder / f"{name}_config.json").write_text(json.dumps({**shared, **more, "size": size}))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"processor_class": "Qwen3VLProcessor"}))


if __name__ == "__main__":
    make_models(Path(sys.argv[1]))
