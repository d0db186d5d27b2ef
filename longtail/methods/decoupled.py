"""The two stages of a decoupled method (Kang et al., ICLR 2020): features first, then a classifier on them.

Instance-sampled cross-entropy on a linear head already learns good features; only the classifier needs the balance.
The first stage is the same for all of them and for post-hoc adjustment, so it is trained once and taken from the
cache.
"""

from __future__ import annotations

from dataclasses import replace

from longtail.recipe import Stage

BACKBONE = "backbone"


def after_cross_entropy(base: Stage, *, share: float = 0.0, sampler: str = "instance") -> tuple[Stage, ...]:
    """Cross-entropy, then `base.method` on its frozen backbone for a share of the epochs; 0 is no training at all.

    A head alone needs no warm-up, and a few epochs have no time for the first stage's.
    """
    first = replace(base, name=BACKBONE, method="cross_entropy", settings={})
    epochs = max(1, round(share * base.epochs)) if share else 0
    optim = replace(base.optim, warmup_epochs=0.0)
    return (first, replace(base, start_from=BACKBONE, trains="head", epochs=epochs, sampler=sampler, optim=optim))
