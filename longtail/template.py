"""The formula: the score of class c for a sample x is log s(x|c) + log p(c).

A likelihood model supplies log s(x|c) as a [B, C] tensor, the training set supplies log p(c), and the loss is the
cross-entropy of their sum (eq. 2 of the paper). Every method here is a choice of the two, and of how the numerator is
taken: exactly, or by its Jensen bound as the supervised contrastive losses do.

Shapes, here and everywhere: B batch, C classes, K contrast samples, D feature width, V views. A name that ends in such
letters (`loglik_bc`) says the shape of what crosses a function boundary. All losses are per sample; whoever calls takes
the mean. Reductions happen in float32 whatever the autocast type is.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def one_hot(labels_n: Tensor, num_classes: int, dtype: torch.dtype) -> Tensor:
    """[N, C]. Unlike torch's own it asks no device whether the labels are in range."""
    return torch.zeros(len(labels_n), num_classes, dtype=dtype, device=labels_n.device).scatter_(
        1, labels_n[:, None], 1
    )


def add_prior(loglik_bc: Tensor, log_prior_c: Tensor, alpha: float = 1.0) -> Tensor:
    """log s(x|c) + alpha log p(c). alpha = 0 adds nothing at all, also for a class whose prior is zero.

    Scores of pixels are [B, C, H, W].
    """
    loglik_bc = at_least_float32(loglik_bc)
    if loglik_bc.ndim == 4:
        log_prior_c = log_prior_c[:, None, None]
    return loglik_bc if alpha == 0 else loglik_bc + alpha * log_prior_c.to(loglik_bc.dtype)


def cross_entropy(logits_bc: Tensor, target: Tensor) -> Tensor:
    """-log softmax(logits)[target], per sample [B]. `target` is [B] class indices or [B, C] probabilities."""
    return F.cross_entropy(at_least_float32(logits_bc), target, reduction="none")


def cross_entropy_with_numerator(numerator_b: Tensor, logits_bc: Tensor) -> Tensor:
    """The same with a numerator of its own, per sample [B].

    With the true class's logit as numerator this is `cross_entropy`; with the mean of the log in place of the log of
    the mean (Jensen's bound) it is the supervised contrastive family.
    """
    return torch.logsumexp(at_least_float32(logits_bc), dim=1) - at_least_float32(numerator_b)


def class_log_mean_exp(scores_bk: Tensor, class_of_k: Tensor, num_classes: int) -> Tensor:
    """log (1/|Z_c|) sum_{z in Z_c} exp(score), [B, K] -> [B, C] (eq. 3); -inf for a class without a sample.

    This is the formula for any few keys in any order. `likelihood/mixture.py` computes the same for a large bank that
    is sorted by class. A class's own maximum is taken out before exp: one far below the row's maximum stays right.
    """
    scores_bk = at_least_float32(scores_bk)
    class_bk = class_of_k.expand(len(scores_bk), -1)
    empty_bc = scores_bk.new_full((len(scores_bk), num_classes), -torch.inf)
    peak_bc = empty_bc.scatter_reduce(1, class_bk, scores_bk.detach(), "amax")
    shifted_bk = (scores_bk - peak_bc.gather(1, class_bk)).exp()
    total_bc = torch.zeros_like(empty_bc).scatter_add(1, class_bk, shifted_bk)
    size_c = torch.zeros_like(empty_bc[0]).index_add(0, class_of_k, torch.ones_like(scores_bk[0]))
    return torch.where(size_c > 0, peak_bc + total_bc.clamp_min(1e-30).log() - size_c.clamp_min(1).log(), empty_bc)
