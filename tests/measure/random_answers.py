"""Scores and labels for the tests of this folder, and their counters."""

import numpy as np
import torch

from longtail.measure.counters import Counters


def random_answers(n=700, num_classes=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(num_classes - 1, (n,), generator=generator)  # the last class is never tested
    scores = 2 * torch.randn(n, num_classes, generator=generator)
    scores[torch.arange(n), labels] += 1.5
    return scores, labels


def count(scores, labels, batch=64, **options):
    counters = Counters(scores.shape[1], **options)
    for start in range(0, len(labels), batch):
        counters.update(scores[start : start + batch], labels[start : start + batch])
    return counters


def gaussians(labels, num_classes, spread=1.5, seed=0):
    """True log-likelihoods [N, C] of a mixture of Gaussians in eight dimensions, of images with these labels."""
    random = np.random.default_rng(seed)
    means = random.normal(0, spread, (num_classes, 8))
    images = means[labels] + random.normal(size=(len(labels), 8))
    return -((images[:, None] - means) ** 2).sum(-1) / 2
