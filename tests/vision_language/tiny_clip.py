"""CLIPs small enough for a test: open_clip's own architectures, random weights, saved as open_clip saves them."""

import json
from pathlib import Path

import open_clip
import torch
from safetensors.torch import save_file

TEXT = {"context_length": 24, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2}
VISION = {
    "vit": {"image_size": 32, "layers": 2, "width": 64, "patch_size": 8, "head_width": 32},
    "coca": {
        "image_size": 32, "layers": 2, "width": 64, "patch_size": 8, "head_width": 32,
        "attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True,
    },
    "resnet": {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8, "patch_size": None},
}  # fmt: skip


def save_clip(folder: Path, kind: str, seed: int = 0) -> str:
    """The name by which longtail knows it."""
    folder.mkdir(parents=True)
    model = {"embed_dim": 32, "vision_cfg": VISION[kind], "text_cfg": TEXT}
    if kind == "coca":
        model["text_cfg"] = TEXT | {"embed_cls": True, "output_tokens": True}
        model |= {"multimodal_cfg": TEXT, "custom_text": True}
    preprocess = {"mean": [0.5, 0.4, 0.3], "std": [0.25, 0.25, 0.2]}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": model, "preprocess_cfg": preprocess}))
    torch.manual_seed(seed)
    clip = open_clip.create_model(f"local-dir:{folder}", load_weights=False)
    with torch.no_grad():
        clip.logit_scale.fill_(3.0)
    save_file({name: tensor.contiguous() for name, tensor in clip.state_dict().items()}, folder / "model.safetensors")
    return f"clip:{folder}"
