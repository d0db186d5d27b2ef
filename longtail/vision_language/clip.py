"""CLIPs of open_clip, by name or from a folder. The image tower is a backbone, the text tower reads sentences.

clip:ViT-B-16/openai               an architecture, and weights that open_clip knows and fetches
clip:ViT-B-16//data/ViT-B-16.pt    the same architecture, its weights in a file
clip:ViT-B-16                      the architecture alone, to be trained from scratch
clip:my_clip/                      a folder with open_clip_config.json and the weights
clip:ViT-B-16/openai@384           at another image size: position embeddings are interpolated
clip:ViT-B-16/openai+adaptformer8  frozen, with small trainable parts (see `adapters`)
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import json
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from longtail.data.augment import ImageFormat
from longtail.errors import LongtailError
from longtail.offline import hub
from longtail.recipe import nearest
from longtail.vision_language.adapters import KINDS, add_adapters

PREFIX = "clip:"
DEFAULT = "ViT-B-16/openai"
_NAME = re.compile(r"(?P<model>.+?)(?:@(?P<size>\d+))?(?:\+(?P<adapter>[a-z]+)(?P<width>\d+))?")


@dataclass(frozen=True)
class Name:
    """A model's name in its parts."""

    folder: Path | None
    architecture: str
    weights: str  # one of open_clip's tags, or a file
    size: int | None
    adapter: str
    width: int

    @classmethod
    def parse(cls, text: str) -> Name:
        match = _NAME.fullmatch(text.removeprefix(PREFIX))
        if match is None:
            raise LongtailError(f"{text!r} names no CLIP; a name looks like {DEFAULT}")
        model, size, adapter, width = match.group("model", "size", "adapter", "width")
        if adapter and (adapter not in KINDS or not int(width)):
            raise LongtailError(
                f"+{adapter}{width} is no adapter: write +adaptformer8 or +lora8, with the width you want"
            )
        architecture, _, weights = model.partition("/")
        known = _open_clip().get_model_config(architecture) is not None
        folder = None if known else Path(model).expanduser()
        if folder is not None and not (folder / "open_clip_config.json").is_file():
            if folder.is_dir():
                raise LongtailError(f"{folder} has no open_clip_config.json: save a CLIP there with open_clip")
            near = difflib.get_close_matches(architecture, _open_clip().list_models(), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; a name looks like {DEFAULT}"
            raise LongtailError(f"there is no CLIP named {architecture!r} and no folder {model!r}{hint}")
        weights = str(Path(weights).expanduser()) if weights.startswith("~") else weights
        return cls(folder, architecture, weights, int(size) if size else None, adapter or "", int(width or 0))

    @property
    def for_open_clip(self) -> str:
        return self.architecture if self.folder is None else f"local-dir:{self.folder}"

    @property
    def config(self) -> dict[str, Any]:
        return _open_clip().get_model_config(self.for_open_clip)

    def known_weights(self) -> str:
        tags = _open_clip().list_pretrained_tags_by_model(self.architecture)
        if self.weights not in tags and not Path(self.weights).is_file():
            raise LongtailError(
                f"the CLIP {self.architecture} has no weights {self.weights!r}, and there is no such file"
                f"{nearest(self.weights, tags)}"
            )
        return self.weights


class ImageTower(nn.Module):
    """Normalised images [B, 3, H, W] -> features [B, D] in the space shared with text, of any length.

    Images of another size, such as CIFAR's, are resized here. BatchNorm keeps the statistics it was trained with:
    a fine-tuning is far too short to measure better ones.
    """

    def __init__(self, name: str, *, pretrained: bool) -> None:
        super().__init__()
        parsed = Name.parse(name)
        self.visual = load(name, pretrained=pretrained).visual
        self.dim = int(parsed.config["embed_dim"])
        self.size = image_format(name).size
        self.keeps_statistics = pretrained
        if parsed.adapter:
            self.visual.requires_grad_(False)
            add_adapters(self.visual, parsed.adapter, parsed.width)
            self.keeps_statistics = True

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-2:] != (self.size, self.size):
            images = F.interpolate(images, (self.size, self.size), mode="bicubic")
        return _pooled(self.visual(images))

    def train(self, mode: bool = True) -> ImageTower:
        super().train(mode)
        if self.keeps_statistics:
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self


class TextTower(nn.Module):
    """Tokens [B, L] -> features [B, D]. `scale` is the inverse temperature the two towers were trained with."""

    text: Any
    log_scale: nn.Parameter

    def __init__(self, name: str, *, pretrained: bool) -> None:
        super().__init__()
        model = load(name, pretrained=pretrained)
        self.text, self.log_scale = model.text, model.logit_scale
        self.tokenizer = _open_clip().get_tokenizer(Name.parse(name).for_open_clip)
        # A causal transformer that answers at its last token never looks at the padding behind it.
        self.causal = getattr(self.text, "pool_type", "") == "argmax" and self.text.cls_emb is None

    @property
    def scale(self) -> Tensor:
        """Never above 100, where CLIP's training holds it too."""
        return self.log_scale.exp().clamp(max=100.0)

    def tokenize(self, sentences: Sequence[str]) -> Tensor:
        return self.tokenizer(list(sentences))

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens come on the host; those beyond the longest sentence are cut off, a fifth remains of most prompts."""
        device = self.log_scale.device
        if not self.causal:
            return _pooled(self.text(tokens.to(device)))
        length = int(tokens.argmax(dim=1).max()) + 1
        whole_mask = self.text.attn_mask
        self.text.attn_mask = whole_mask[:length, :length]
        try:
            return _pooled(self.text(tokens[:, :length].to(device)))
        finally:
            self.text.attn_mask = whole_mask


def _pooled(output: Any) -> Tensor:
    """A CoCa's towers give their tokens too."""
    return output[0] if isinstance(output, tuple) else output


def load(name: str, *, pretrained: bool) -> Any:
    """Both towers of a CLIP: `.visual`, `.text` and `.logit_scale`."""
    open_clip, parsed = _open_clip(), Name.parse(name)
    if any(key.startswith("hf_") for key in parsed.config["text_cfg"]) and not importlib.util.find_spec("transformers"):
        raise LongtailError(f"the text tower of {parsed.architecture} needs transformers: pip install transformers")
    wanted: dict[str, Any] = {"force_custom_text": True, "force_image_size": parsed.size, "pretrained_text": False}
    if parsed.folder is not None:
        wanted["load_weights"] = pretrained
    else:
        told = open_clip.get_pretrained_cfg(parsed.architecture, parsed.weights)
        wanted["force_quick_gelu"] = told.get("quick_gelu", False)  # OpenAI's weights were trained with it
        wanted["pretrained"] = parsed.known_weights() if pretrained else None
    try:
        with _quiet(), hub():
            return open_clip.create_model(parsed.for_open_clip, require_pretrained=pretrained, **wanted)
    except Exception as error:  # whatever the network, the hub, pickle and torch may raise
        if not pretrained:
            raise
        if parsed.folder is not None:
            raise LongtailError(f"{parsed.folder} has no weights that fit its open_clip_config.json") from error
        raise LongtailError(
            f"the weights of {parsed.architecture}/{parsed.weights} are not on this machine and cannot be fetched: put "
            f"the file here and name it, as in --clip {parsed.architecture}//path/to/weights.safetensors"
        ) from error


def image_format(name: str) -> ImageFormat:
    """Size, mean and deviation of the images a CLIP was trained with, known without building it."""
    parsed = Name.parse(name)
    if parsed.folder is not None:
        told = json.loads((parsed.folder / "open_clip_config.json").read_text()).get("preprocess_cfg", {})
    else:
        told = _open_clip().get_pretrained_cfg(parsed.architecture, parsed.weights)
    usual = _open_clip().transform.PreprocessCfg()
    size = parsed.size or parsed.config["vision_cfg"].get("image_size", usual.size)
    return ImageFormat(
        size=size if isinstance(size, int) else size[0],
        mean=tuple(told.get("mean", usual.mean)),
        std=tuple(told.get("std", usual.std)),
        interpolation=told.get("interpolation", usual.interpolation),
        crop_pct=1.0,
    )


def _open_clip() -> Any:
    try:
        import open_clip
    except ImportError:
        raise LongtailError("CLIP models need open_clip: pip install 'longtail[clip]'") from None
    return open_clip


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """open_clip warns of every model without weights, and logs each error before it raises it."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)
