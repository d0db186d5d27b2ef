"""Logit adjustment on a cosine head: the paper's L_cls, its ablation's "cross-entropy" row, and GML's teacher.

    L = -log softmax_c( cos(x, m_c) / tau_s + tau log p_c )[y],   tau_s = 1/30, tau = 1

The paper's baseline rows named "Balanced Softmax" use a linear head: see `balanced_softmax.py`.

Where paper and code differ: the formula is the same. The authors of logit adjustment train CIFAR-100-LT for 1419 epochs
in their code, so its numbers stand beside no table of 200, and add a small constant inside the logarithm; here a class
without an image has log 0 and is never answered. GML's authors add the prior in training alone, as here.
"""

from longtail.likelihood.cosine import Cosine
from longtail.methods.classifier import Classifier
from longtail.methods.published import Published
from longtail.types import Counts


def logit_adjusted(
    counts: Counts, dim: int, *, tau_s: float = 1 / 30, tau: float = 1.0, mixup: float = 0.0
) -> Classifier:
    return Classifier(Cosine(dim, len(counts), tau_s), counts, tau, mixup=mixup)


METHOD = Published(
    "logit_adjusted",
    logit_adjusted,
    paper="Menon et al., ICLR 2021; Suh and Seo, ICML 2023 (L_cls)",
    likelihood="cosine",
    samples="one learned centre a class",
    prior="tau * log p",
    numerator="exact",
    weight="-",
)
