"""Sentences become features once, and are kept on disk under the hash of all they depend on.

    ~/.cache/longtail/text/<hash>.safetensors     (elsewhere with LONGTAIL_CACHE)

The hash covers the tokens and the text tower's weights: another sentence, template, tokenizer or a fine-tuned tower is
another file, and nothing needs to be told to forget.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor

from longtail.files import atomic
from longtail.likelihood.prototypes import class_means
from longtail.vision_language.clip import TextTower
from longtail.vision_language.corpus import Corpus

BATCH = 256


class TextBank(NamedTuple):
    """Sentences as samples, sorted by class."""

    features: Tensor  # [K, D], unit length
    class_of: Tensor  # [K] int64
    num_classes: int

    def means(self) -> Tensor:
        """[C, D]: each sentence at unit length, their mean, and that at unit length again."""
        return F.normalize(class_means(self.features, self.class_of, self.num_classes)[0], dim=1)

    def take(self, rows: Tensor) -> TextBank:
        return TextBank(self.features[rows], self.class_of[rows], self.num_classes)


def text_bank(corpus: Corpus, tower: TextTower) -> TextBank:
    said = [corpus.of_class(c) for c in range(len(corpus.names))]
    class_of = torch.arange(len(said)).repeat_interleave(torch.tensor([len(own) for own in said]))
    return TextBank(encode(tower, [sentence for own in said for sentence in own]), class_of, len(said))


def encode(tower: TextTower, sentences: Sequence[str]) -> Tensor:
    """[K, D] float32 on the host, unit length; from the cache if these sentences went through this tower before."""
    tokens = tower.tokenize(sentences)
    file = _cache_folder() / f"{_hash(tower, tokens)}.safetensors"
    if file.is_file():
        try:
            return safetensors.torch.load_file(file)["features"]
        except safetensors.SafetensorError:  # half a file, of a machine that went down: as good as none
            file.unlink()
    features = _through(tower, tokens)
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic(file) as out:
        out.write(safetensors.torch.save({"features": features}))
    return features


@torch.no_grad()
def _through(tower: TextTower, tokens: Tensor) -> Tensor:
    """Sentences of a length together, for a batch costs what its longest sentence costs."""
    order = tokens.count_nonzero(dim=1).argsort()
    parts = [F.normalize(tower(tokens[rows]).float(), dim=1).cpu() for rows in order.split(BATCH)]
    return torch.cat(parts)[order.argsort()]


def _hash(tower: TextTower, tokens: Tensor) -> str:
    digest = hashlib.sha256(tokens.numpy().tobytes())
    for name, tensor in sorted(tower.text.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:32]


def _cache_folder() -> Path:
    return Path(os.environ.get("LONGTAIL_CACHE") or Path.home() / ".cache" / "longtail") / "text"
