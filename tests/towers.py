"""Small open_clip models with random weights, in the files that open_clip itself writes and reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import open_clip
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

_TEXT = {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
# As of ViT-B-16-SigLIP2 in open_clip, with smaller numbers.
_SIGLIP_TEXT = {
    **{"context_length": 12, "vocab_size": 40, "width": 64, "heads": 2, "layers": 1},
    **{"hf_tokenizer_name": "timm/ViT-B-16-SigLIP2", "tokenizer_kwargs": {"clean": "canonicalize"}},
    **{"no_causal_mask": True, "proj_bias": True, "pool_type": "last", "norm_kwargs": {"eps": 1e-6}},
    "act_kwargs": {"approximate": "tanh"},
}
CONFIGS: dict[str, dict[str, Any]] = {
    # The tower of TinyCLIP-ViT-8M-16, in open_clip's own layout, as OpenAI's and LAION's models are.
    "clip": {
        "embed_dim": 24,
        "vision_cfg": {"image_size": 32, "layers": 10, "width": 256, "head_width": 64, "patch_size": 16},
        "text_cfg": _TEXT,
    },
    "timm-clip": {
        "embed_dim": 24,
        "vision_cfg": {
            **{"image_size": 160, "timm_model_name": "test_vit", "timm_model_pretrained": False},
            **{"timm_pool": "token", "timm_proj": "linear"},
        },
        "text_cfg": _TEXT,
    },
    "siglip": {
        **{"embed_dim": 64, "init_logit_bias": -10, "custom_text": True},
        "vision_cfg": {
            **{"image_size": 160, "timm_model_name": "test_vit", "timm_model_pretrained": False},
            **{"timm_pool": "map", "timm_proj": "none"},
        },
        "text_cfg": _SIGLIP_TEXT,
    },
}


def write_tower(folder: Path, config: dict[str, Any]) -> Any:
    """A folder as on the hub: `open_clip_config.json`, `open_clip_model.safetensors`, a tokenizer; gives the model."""
    folder.mkdir(parents=True)
    preprocessing = {
        "mean": [0.4, 0.5, 0.6],
        "std": [0.5, 0.5, 0.4],
        "interpolation": "bicubic",
        "resize_mode": "squash",
    }
    content = {"model_cfg": config, "preprocess_cfg": preprocessing}
    (folder / "open_clip_config.json").write_text(json.dumps(content))
    if "hf_tokenizer_name" in config["text_cfg"]:
        words = ["[PAD]", "[UNK]", "a", "photo", "of", "dog", "cat", "harbour", "boat", "car", "sun"]
        tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
        fast.save_pretrained(folder)
    torch.manual_seed(0)
    model = open_clip.create_model(f"local-dir:{folder}", load_weights=False).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)  # no bias stays 0, no norm 1
    save_file(
        {name: tensor.contiguous() for name, tensor in model.state_dict().items()},
        folder / "open_clip_model.safetensors",
    )
    return model
