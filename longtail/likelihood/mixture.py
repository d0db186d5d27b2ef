"""The class likelihood as a Gaussian mixture whose centres are the contrasts of the class (eq. 3).

    loglik[b, c] = log( 1/|Z_c| * sum over z in Z_c of exp(q_b . z / tau) )

with unit-length queries q_b and keys z. |Z_c| counts the keys that are summed: the filled ones. A class without any has
loglik -inf, so it takes no part in a softmax, and gives no gradient.

A temperature trained by this likelihood makes the mixture spiky, for the query's own image is among the keys. So
`mixture_loglik_excluding_own` also gives the same table with the own sample's keys left out, which changes nothing but
the true class's column. Gradients are kept apart: the first table moves queries and keys and never tau, the second tau
alone.

Cost: three matrix products, and a few passes over one [K, B] matrix, which is kept for the backward pass. It is reduced
in float32 (float64 for float64 queries) whatever the dtype of the products, each class below its own maximum.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from longtail.segments import LOWEST, Segments


class ExcludingOwn(NamedTuple):
    loglik_bc: Tensor  # gradient to query and keys
    excluded_bc: Tensor  # gradient to tau
    valid_b: Tensor  # bool; where False no other key of the true class is left, and excluded_bc repeats loglik_bc


@torch.compiler.disable
def mixture_loglik(
    query_bd: Tensor,
    keys_kd: Tensor,
    segments: Segments,
    tau: float | Tensor,
    filled_k: Tensor | None = None,
    *,
    memory_mb: float = 1024,
) -> Tensor:
    """The table above. Keys are sorted by class as `segments` says; `filled_k` None means that all are filled.

    Similarities beyond `memory_mb` are computed a few queries at a time, and again in the backward pass.
    """
    return _in_chunks(query_bd, keys_kd, segments, tau, filled_k, None, memory_mb)[0]


@torch.compiler.disable
def mixture_loglik_excluding_own(
    query_bd: Tensor,
    keys_kd: Tensor,
    segments: Segments,
    tau: float | Tensor,
    labels_b: Tensor,
    ids_b: Tensor,
    key_ids_k: Tensor,
    filled_k: Tensor | None = None,
    *,
    memory_mb: float = 1024,
) -> ExcludingOwn:
    """The table above, and the same without the keys that have the query's own id (which are keys of its own class)."""
    own = _Own(labels_b, ids_b, key_ids_k)
    return ExcludingOwn(*_in_chunks(query_bd, keys_kd, segments, tau, filled_k, own, memory_mb))


class _Own(NamedTuple):
    labels_b: Tensor
    ids_b: Tensor
    key_ids_k: Tensor


def _in_chunks(
    query: Tensor,
    keys: Tensor,
    segments: Segments,
    tau: float | Tensor,
    filled: Tensor | None,
    own: _Own | None,
    memory_mb: float,
) -> tuple[Tensor, ...]:
    bytes_per_query = 2 * len(keys) * max(4, query.element_size())
    step = max(1, int(memory_mb * 2**20 / bytes_per_query))
    if len(query) <= step:
        return _Mixture.apply(query, keys, tau, segments, filled, own)
    chunks = []
    for i in range(0, len(query), step):
        part = slice(i, i + step)
        own_part = own and _Own(own.labels_b[part], own.ids_b[part], own.key_ids_k)
        arguments = query[part], keys, tau, segments, filled, own_part
        chunks.append(checkpoint(_Mixture.apply, *arguments, use_reentrant=False, preserve_rng_state=False))
    return tuple(torch.cat(parts) for parts in zip(*chunks, strict=True))


class _Mixture(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        keys: Tensor,
        tau: float | Tensor,
        segments: Segments,
        filled: Tensor | None,
        own: _Own | None,
    ):
        product, reduction = _dtypes(query)
        with torch.autocast(query.device.type, enabled=False):
            scaled = (query.to(reduction) / tau).to(product)
            keys_ = keys.to(product)
            score_kb = (keys_ @ scaled.T).to(reduction)
            if filled is None:
                count_c1 = segments.offsets.diff()[:, None].to(reduction)
            else:
                count_c1 = segments.sums(filled[:, None].to(reduction))
                score_kb.masked_fill_(~filled[:, None], LOWEST)
            others = None if own is None else _true_class_without_own(score_kb, segments, filled, own)

            # From here on the score matrix is overwritten: below its class's maximum, then exponentiated.
            max_cb = segments.maxima(score_kb)
            weight_kb = segments.expand(max_cb)
            below_kb = score_kb.sub_(weight_kb)
            torch.exp(below_kb, out=weight_kb)
            sum_cb = segments.sums(weight_kb)
            empty_c1 = count_c1 == 0
            loglik_cb = (max_cb + sum_cb.log() - count_c1.log()).masked_fill_(empty_c1, -torch.inf)
            loglik = loglik_cb.T.contiguous()
            outputs = (loglik,)
            slope = None
            if own is not None and others is not None:
                mean_cb = max_cb + segments.sums(below_kb.mul_(weight_kb)) / sum_cb
                mean = mean_cb.masked_fill_(empty_c1, 0).T.contiguous()
                labels = own.labels_b[:, None]
                excluded = loglik.clone().scatter_(
                    1, labels, torch.where(others.valid, others.loglik, loglik.gather(1, labels))
                )
                slope = -mean.scatter_(1, labels, torch.where(others.valid, others.mean, mean.gather(1, labels))) / tau
                valid = others.valid[:, 0]
                ctx.mark_non_differentiable(valid)
                outputs = (loglik, excluded, valid)

        # An empty class has weights too (its "scores" are all LOWEST); an infinite sum makes their gradient zero.
        sum_cb.masked_fill_(empty_c1, torch.inf)
        ctx.save_for_backward(scaled, keys_, weight_kb, sum_cb, slope)
        ctx.tau = tau.detach() if isinstance(tau, Tensor) else tau
        ctx.segments, ctx.dtypes = segments, (query.dtype, keys.dtype, reduction)
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  (the decorator hides the parameters' names)
        ctx: Any, *grads: Tensor | None
    ):
        grad_loglik, grad_excluded = (*grads, None)[:2]
        scaled, keys, weight_kb, sum_cb, slope = ctx.saved_tensors
        query_dtype, keys_dtype, reduction = ctx.dtypes
        grad_query = grad_keys = grad_tau = None
        with torch.autocast(scaled.device.type, enabled=False):
            if grad_loglik is not None:
                grad_kb = ctx.segments.expand(grad_loglik.T / sum_cb).mul_(weight_kb).to(scaled.dtype)
                if ctx.needs_input_grad[0]:
                    grad_query = ((grad_kb.T @ keys).to(reduction) / ctx.tau).to(query_dtype)
                if ctx.needs_input_grad[1]:
                    grad_keys = (grad_kb @ scaled).to(keys_dtype)
            if grad_excluded is not None and ctx.needs_input_grad[2]:
                grad_tau = (grad_excluded * slope).sum().to(ctx.tau.dtype).reshape(ctx.tau.shape)
        return grad_query, grad_keys, grad_tau, None, None, None


class _Others(NamedTuple):
    loglik: Tensor  # [B, 1]
    mean: Tensor  # [B, 1] of the scores, weighted as the mixture weights them
    valid: Tensor  # [B, 1] bool


def _true_class_without_own(score_kb: Tensor, segments: Segments, filled: Tensor | None, own: _Own) -> _Others:
    """Only the true class differs, so only its segment is read again, padded to the longest: [B, longest]."""
    start, end = segments.offsets[own.labels_b, None], segments.offsets[own.labels_b + 1, None]
    row = start + torch.arange(segments.longest, device=start.device)
    kept = row < end
    row = row.clamp_(max=len(score_kb) - 1)
    kept &= own.key_ids_k[row] != own.ids_b[:, None]
    if filled is not None:
        kept &= filled[row]
    score = score_kb.T.gather(1, row)
    top = score.masked_fill(~kept, LOWEST).amax(1, keepdim=True)
    weight = (score - top).exp_().masked_fill_(~kept, 0)
    total, count = weight.sum(1, keepdim=True), kept.sum(1, keepdim=True, dtype=weight.dtype)
    return _Others(top + total.log() - count.log(), (weight * score).sum(1, keepdim=True) / total, count > 0)


def _dtypes(query: Tensor) -> tuple[torch.dtype, torch.dtype]:
    """Of the matrix products, and of everything else."""
    device = query.device.type
    if query.dtype == torch.float64:
        return torch.float64, torch.float64
    product = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else query.dtype
    return product, torch.float32
