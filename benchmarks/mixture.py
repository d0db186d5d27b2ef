"""The mixture likelihood, its loss and all gradients, against the bare matrix products it cannot do without.

    python -m benchmarks.mixture

Both terms are computed: the plain one with gradients to query and bank, and the one without the own sample with its
gradient to the temperature. The floor is S = q z^T, dS z and dS^T q on the same shapes, with dS ready.
"""

import argparse
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from benchmarks.harness import medians_ms, peak_mb, write_result
from longtail.contrast.bank import segment_lengths
from longtail.engine import device
from longtail.likelihood.mixture import mixture_loglik, mixture_loglik_excluding_own
from longtail.segments import Segments


class Shape(NamedTuple):
    name: str
    batch: int
    k: int
    classes: int
    dim: int
    imbalance: float
    target: float | None = None  # at most this many times the floor
    memory_mb: float = 1024  # beyond it a few queries at a time


SHAPES = (
    Shape("CIFAR-100-LT", 128, 4096, 100, 32, 100, 2.5),
    Shape("ImageNet-LT", 128, 16384, 1000, 1024, 256, 1.2),
    Shape("iNaturalist", 128, 65536, 8142, 1024, 500, 1.2),
    Shape("pixels", 4096, 8192, 150, 256, 100),
    Shape("pixels, 32 MB", 4096, 8192, 150, 256, 100, memory_mb=32),
)


@functools.lru_cache(maxsize=1)  # of one shape at a time: iNaturalist's keys alone are 268 MB
def problem(shape: Shape) -> tuple[Any, ...]:
    torch.manual_seed(0)
    counts = (1e4 * shape.imbalance ** -torch.linspace(0, 1, shape.classes)).long()
    segments = Segments.of(segment_lengths(counts, shape.k, 2))
    query = F.normalize(torch.randn(shape.batch, shape.dim)).requires_grad_()
    keys = F.normalize(torch.randn(shape.k, shape.dim)).requires_grad_()
    labels = torch.multinomial(counts.double(), shape.batch, replacement=True)
    key_ids = torch.arange(shape.k)
    ids = segments.offsets[labels]  # each query's own sample is in the bank
    return segments, query, keys, labels, ids, key_ids, counts.log()


def floor(shape: Shape) -> Callable[[], Any]:
    query, keys = (x.detach() for x in problem(shape)[1:3])
    grad = torch.randn(shape.batch, shape.k)
    return lambda: (query @ keys.T, grad @ keys, grad.T @ query)


def both(shape: Shape, autocast: bool = False) -> Callable[[], Any]:
    segments, query, keys, labels, ids, key_ids, log_prior = problem(shape)
    log_tau = torch.tensor(0.1).log().requires_grad_()

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loglik, excluded, valid = mixture_loglik_excluding_own(
                query, keys, segments, log_tau.exp(), labels, ids, key_ids, memory_mb=shape.memory_mb
            )
            others = F.cross_entropy(excluded + log_prior, labels, reduction="none")
            loss = F.cross_entropy(loglik + log_prior, labels) + torch.where(valid, others, 0).mean()
        return torch.autograd.grad(loss, [query, keys, log_tau])

    return step


def in_bf16(shape: Shape) -> Callable[[], Any]:
    return both(shape, autocast=True)


def plain(shape: Shape) -> Callable[[], Any]:
    segments, query, keys, labels, *_, log_prior = problem(shape)

    def step():
        loglik = mixture_loglik(query, keys, segments, 0.1, memory_mb=shape.memory_mb)
        return torch.autograd.grad(F.cross_entropy(loglik + log_prior, labels), [query, keys])

    return step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device.choose()  # as in a training: the allocator keeps what a step frees
    print("times the floor; bf16: gain over our float32; memory: beyond the gradients, in similarity matrices")
    print(
        f"{'':15s}{'floor ms':>10s}{'at most':>9s}{'both':>8s}{'plain':>8s}{'bf16':>8s}{'memory':>9s}{'of floor':>10s}"
    )
    rows = []
    for shape in SHAPES:
        ms = medians_ms({make.__name__: make(shape) for make in (floor, both, plain, in_bf16)}, arguments.repeats)
        ratio = {name: ms[name] / ms["floor"] for name in ("both", "plain", "in_bf16")}
        gradients_mb, matrix_mb = 4 * shape.dim * (shape.k + shape.batch) / 2**20, 4 * shape.k * shape.batch / 2**20
        memory = {
            make.__name__: (peak_mb(make, shape) - gradients_mb) / matrix_mb for make in (floor, both, plain, in_bf16)
        }
        rows.append({**shape._asdict(), "ms": ms, "ratio": ratio, "memory_matrices": memory})
        print(
            f"{shape.name:15s}{ms['floor']:10.2f}{shape.target or '-':>9}{ratio['both']:8.2f}{ratio['plain']:8.2f}"
            f"{ms['both'] / ms['in_bf16']:8.2f}{memory['both']:9.2f}{memory['floor']:10.2f}",
            flush=True,
        )
    name = "mixture" if arguments.threads == 1 else f"mixture-{arguments.threads}-threads"
    print(write_result(name, {"shapes": rows}))


if __name__ == "__main__":
    main()
