"""LIFT (Shi et al., ICML 2024): a frozen CLIP, small trainable parts in it, and a logit-adjusted cosine head from text.

    L = -log softmax_c( cos(x, m_c) / tau_s + log p_c )[y],   tau_s = 1/25,   m_c begins at the mean text feature

Heavy fine-tuning on a long tail distorts the tail's conditional distribution, which the frozen tower keeps: what was
learned from the web is not unlearned for want of examples. The tower is `clip:...+adaptformer8` (`adapters.py`); the
width follows from the number of classes where the command line chooses it.

Differs from the authors' code: the head stands on CLIP's projected features, where theirs stands before the projection
and maps the text back through its transpose; so training starts exactly at the zero-shot classifier. Their numbers with
five crops at test (78.3 on ImageNet-LT, 77.0 with one) compare with one crop here.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from longtail.methods.published import Published
from longtail.vision_language.gml_text import TextGML


def lift(
    counts: Sequence[int] | Tensor,
    dim: int,
    *,
    sentences: str = "",  # a corpus: JSON lines, or a folder in VL-LTR's layout
    templates: str | Sequence[str] = "simple",
    tau_s: float = 1 / 25,
    tau: float = 1.0,  # multiplies log p
) -> TextGML:
    return TextGML(counts, dim, sentences=sentences, templates=templates, tau_s=tau_s, alpha_cls=tau, beta=0.0)


METHOD = Published(
    "lift",
    lift,
    paper="Shi et al., ICML 2024",
    likelihood="cosine",
    samples="one centre a class, from text",
    prior="tau * log p",
    numerator="exact",
    weight="-",
)
