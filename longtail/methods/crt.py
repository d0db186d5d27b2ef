"""Classifier re-training, cRT (Kang et al., ICLR 2020): a new linear head on frozen features, with balanced sampling.

    stage 1   cross-entropy, every image once an epoch
    stage 2   L = -log softmax( w_c . x + b_c )[y] on class-aware samples (4 images of a class at a time), new w and b

The authors train the second stage for 10 epochs after 90, with the same learning rate and cosine schedule; here a
ninth of the epochs. Their batch statistics keep moving in the second stage; here the frozen backbone stays in
evaluation mode. Their sampler makes an epoch of n_max C draws; here an epoch is as long as the data.

The class mass of the second stage is uniform, so nothing is left to take out of its scores.
"""

from __future__ import annotations

from longtail.methods.cross_entropy import cross_entropy
from longtail.methods.decoupled import after_cross_entropy
from longtail.methods.published import Published
from longtail.recipe import Stage


def stages(base: Stage) -> tuple[Stage, ...]:
    return after_cross_entropy(base, share=1 / 9, sampler="k-per-class")


METHOD = Published(
    "crt",
    cross_entropy,
    paper="Kang et al., ICLR 2020",
    likelihood="linear, frozen features",
    samples="-",
    prior="uniform, balanced sampler",
    numerator="exact",
    weight="-",
    stages=stages,
)
