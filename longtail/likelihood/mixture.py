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

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from longtail.segments import LOWEST, Segments

LOG_2 = math.log(2)
BLOCK = 2**19  # similarities worked on at a time on a CPU: they stay in its cache, and a cast of their keys is small

F = TypeVar("F", bound=Callable[..., Any])


class ExcludingOwn(NamedTuple):
    loglik_bc: Tensor  # gradient to query and keys
    excluded_bc: Tensor  # gradient to tau
    valid_b: Tensor  # bool; where False no other key of the true class is left, and excluded_bc repeats loglik_bc


def _eager(function: F) -> F:
    """`torch.compile` runs these as they are: it gains nothing on three matrix products."""
    return torch.compiler.disable(function)  # type: ignore[return-value]


@_eager
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
    tau = tau.detach() if isinstance(tau, Tensor) else tau
    return _in_chunks(query_bd, keys_kd, segments, tau, filled_k, None, memory_mb)[0]


@_eager
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
    step = max(1, int(memory_mb * 2**20 / (len(keys) * _dtypes(query)[1].itemsize)))
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
    """Scores are kept in units of log 2, for exp2 is several times faster than exp on a CPU and never slower."""

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
            scaled = (query.to(reduction) / (LOG_2 * tau)).to(product)
            score_kb = scaled.new_empty(len(keys), len(query), dtype=reduction)
            max_cb = score_kb.new_full((segments.num_classes, len(query)), LOWEST)
            sum_cb, moment_cb = torch.zeros_like(max_cb), torch.zeros_like(max_cb)
            blocks = _blocks(segments, score_kb)

            for rows, block, _ in blocks:
                _multiply(keys[rows].to(product), scaled.T, out=score_kb[rows])
                if filled is not None:
                    score_kb[rows].masked_fill_(~filled[rows, None], LOWEST)
                block.maxima_(max_cb, score_kb[rows])
            others = None if own is None else _true_class_without_own(score_kb, segments, filled, own)
            for rows, block, scratch_kb in blocks:
                below_kb = score_kb[rows].sub_(block.expand(max_cb, out_kb=scratch_kb))
                weight_kb = torch.exp2(below_kb, out=scratch_kb)
                block.sums_(sum_cb, weight_kb)
                if others is not None:
                    block.sums_(moment_cb, below_kb.mul_(weight_kb))
                score_kb[rows] = weight_kb

            count_c1 = _counts(segments, filled, reduction)
            empty_c1 = count_c1 == 0
            log_count_c1 = count_c1.log().masked_fill_(empty_c1, torch.inf)
            loglik_bc = (LOG_2 * (max_cb + sum_cb.log2()) - log_count_c1).T.contiguous()
            # An empty class has weights too, for all its scores are LOWEST: an infinite sum takes their gradient away.
            sum_cb.masked_fill_(empty_c1, torch.inf)

            outputs, slope_bc = (loglik_bc,), None
            if others is not None:
                mean_cb = max_cb + moment_cb / sum_cb
                excluded_bc = loglik_bc.scatter(1, others.label, others.loglik)
                slope_bc = mean_cb.T.scatter(1, others.label, others.mean_score) * (-LOG_2 / tau)  # of excluded, by tau
                ctx.mark_non_differentiable(others.valid)
                outputs = (loglik_bc, excluded_bc, others.valid)

        ctx.save_for_backward(scaled, keys, score_kb, sum_cb, slope_bc)
        ctx.tau = tau.detach() if isinstance(tau, Tensor) else tau
        ctx.segments, ctx.query_dtype = segments, query.dtype
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  (the decorator hides the parameters' names)
        ctx: Any, *grads: Tensor | None
    ):
        grad_loglik_bc, grad_excluded_bc = (*grads, None)[:2]
        scaled, keys, weight_kb, sum_cb, slope_bc = ctx.saved_tensors
        grad_query = grad_keys = grad_tau = None
        with torch.autocast(scaled.device.type, enabled=False):
            if grad_loglik_bc is not None:
                grad_cb = LOG_2 * grad_loglik_bc.T / sum_cb
                grad_scaled = torch.zeros_like(scaled, dtype=weight_kb.dtype) if ctx.needs_input_grad[0] else None
                grad_keys = torch.empty_like(keys) if ctx.needs_input_grad[1] else None
                for rows, block, scratch_kb in _blocks(ctx.segments, weight_kb):
                    grad_kb = block.expand(grad_cb, out_kb=scratch_kb).mul_(weight_kb[rows]).to(scaled.dtype)
                    if grad_scaled is not None:
                        grad_scaled += grad_kb.T @ keys[rows].to(scaled.dtype)
                    if grad_keys is not None:
                        _multiply(grad_kb, scaled, out=grad_keys[rows])
                if grad_scaled is not None:
                    grad_query = (grad_scaled / (LOG_2 * ctx.tau)).to(ctx.query_dtype)
            if grad_excluded_bc is not None and ctx.needs_input_grad[2]:
                grad_tau = (grad_excluded_bc * slope_bc).sum().to(ctx.tau.dtype).reshape(ctx.tau.shape)
        return grad_query, grad_keys, grad_tau, None, None, None


class _Others(NamedTuple):
    label: Tensor  # [B, 1]
    loglik: Tensor  # [B, 1]
    mean_score: Tensor  # [B, 1], weighted as the mixture weights its keys
    valid: Tensor  # [B] bool


def _true_class_without_own(score_kb: Tensor, segments: Segments, filled: Tensor | None, own: _Own) -> _Others:
    """Only the true class differs, so only its rows are read again, padded to the longest class: [B, longest]."""
    row = segments.offsets[own.labels_b, None] + torch.arange(segments.longest, device=score_kb.device)
    inside = row < segments.offsets[own.labels_b + 1, None]
    row = row.clamp_(max=len(score_kb) - 1)
    if filled is not None:
        inside &= filled.expand(len(row), -1).gather(1, row)
    differs = own.key_ids_k.expand(len(row), -1).gather(1, row) != own.ids_b[:, None]
    valid = (inside & differs).any(1, keepdim=True)
    kept = inside & (differs | ~valid)  # where nothing would be left, nothing is left out

    score = torch.where(kept, score_kb.T.gather(1, row), LOWEST)
    top = score.amax(1, keepdim=True)
    weight = (score - top).exp2_()
    total = weight.sum(1, keepdim=True)
    count = kept.sum(1, keepdim=True).clamp_(min=1).to(score.dtype)
    loglik = LOG_2 * (top + total.log2()) - count.log()
    mean_score = (weight * score).sum(1, keepdim=True) / total
    return _Others(own.labels_b[:, None], loglik, mean_score, valid[:, 0])


def _counts(segments: Segments, filled: Tensor | None, dtype: torch.dtype) -> Tensor:
    """[C, 1]: how many keys are summed."""
    if filled is None:
        return segments.offsets.diff()[:, None].to(dtype)
    count_c1 = torch.zeros(segments.num_classes, 1, dtype=dtype, device=filled.device)
    segments.sums_(count_c1, filled[:, None].to(dtype))
    return count_c1


def _multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
    if a.dtype == out.dtype:
        torch.mm(a, b, out=out)
    else:
        out.copy_(a @ b)


def _blocks(segments: Segments, score_kb: Tensor) -> list[tuple[slice, Segments, Tensor]]:
    """Which rows to work on at a time, and room to work in, the same for all."""
    rows = max(1, (BLOCK if score_kb.device.type == "cpu" else 2**26) // max(1, score_kb.shape[1]))
    room = score_kb.new_empty(min(rows, len(score_kb)), score_kb.shape[1])
    return [(cut, block, room[: cut.stop - cut.start]) for cut, block in segments.blocks(rows)]


def _dtypes(query: Tensor) -> tuple[torch.dtype, torch.dtype]:
    """Of the matrix products, and of everything else."""
    device = query.device.type
    if query.dtype == torch.float64:
        return torch.float64, torch.float64
    product = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else query.dtype
    return product, torch.float32
