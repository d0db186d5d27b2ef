"""In which order an epoch sees the images: one global list of rows as a pure function of (kind, labels, seed, epoch).

There is no state to save and nothing to agree on between ranks: each computes the same list and takes its slice of
every batch, so a run resumes in the middle of an epoch, on another number of ranks too, with the batches it would have
had.

A kind is a share of the draws a class gets, from its share of the data p_c = n_c / N:

    instance         p_c                                  every image once
    class-balanced   1 / C
    square-root      proportional to sqrt(n_c)
    progressive      from p_c in the first epoch to 1 / C in the last, linearly (Kang et al. 2020)
    reversed         proportional to 1 / n_c              the tail gets what the head had (BBN)
    repeat-factor    proportional to p_c * max(1, sqrt(t / p_c)), over a longer epoch (LVIS; t = 1 / C, so that classes
                     under an equal share are repeated)
    k-per-class      1 / C, in blocks of k images of one class (class-aware)

Draws are dealt, not thrown: every epoch a class gets its share to within one image, and within a class no image comes
a second time before all have come once. C counts the classes that have images.
"""

import numpy as np
import torch

from longtail.data.randomness import keys, uniforms
from longtail.errors import LongtailError

SAMPLERS = ("instance", "class-balanced", "square-root", "progressive", "reversed", "repeat-factor", "k-per-class")

# Where views have numbers from 0 up, the sampler's own draws have these.
_WITHIN_CLASS, _ORDER, _ROUNDING, _CLASS_CYCLES = -1, -2, -3, -4


def class_shares(kind: str, counts: np.ndarray, epoch: int = 0, epochs: int = 1) -> np.ndarray:
    """Share of an epoch's draws that each class gets, [C] float64: the class mass the loss will see."""
    if kind not in SAMPLERS:
        raise LongtailError(f"There is no sampler {kind!r}; choose one of {', '.join(SAMPLERS)}.")
    present = counts > 0
    p = counts / counts.sum()
    uniform = present / present.sum()
    if kind == "instance":
        return p
    if kind == "progressive":
        t = epoch / max(epochs - 1, 1)
        return (1 - t) * p + t * uniform
    if kind == "square-root":
        shares = np.sqrt(p)
    elif kind == "reversed":
        shares = present / np.maximum(counts, 1)
    elif kind == "repeat-factor":
        shares = p * _repeats(p, present)
    else:
        return uniform
    return shares / shares.sum()


def order(
    kind: str, labels: np.ndarray, num_classes: int, seed: int, epoch: int, *, epochs: int = 1, per_class: int = 4
) -> np.ndarray:
    """Indices into `labels` in the order an epoch takes them, int64. Its length is len(labels) but for repeat-factor
    (longer) and k-per-class (whole blocks of `per_class`)."""
    counts = np.bincount(labels, minlength=num_classes)
    shares = class_shares(kind, counts, epoch, epochs)
    # Images sorted by class, in random order within each; image i of class c stands at start[c] + place.
    by_class = np.lexsort((keys(seed, epoch, torch.arange(len(labels)), _WITHIN_CLASS).numpy(), labels))
    start = np.cumsum(counts) - counts
    if kind == "k-per-class":
        return by_class[_blocks(counts, start, len(labels) // per_class, per_class, seed, epoch)]

    size = len(labels)
    if kind == "repeat-factor":
        p = counts / size
        size = round(size * float(p @ _repeats(p, counts > 0)))
    draws = _round(shares * size, size, seed, epoch)
    place = np.arange(len(labels)) - np.repeat(start, counts)
    full, rest = np.divmod(draws, np.maximum(counts, 1))
    times = np.repeat(full, counts) + (place < np.repeat(rest, counts))
    drawn = np.repeat(by_class, times)
    return drawn[_permutation(len(drawn), seed, epoch, _ORDER)]


def _repeats(p: np.ndarray, present: np.ndarray) -> np.ndarray:
    """How often repeat-factor sampling takes each image of a class."""
    threshold = 1 / present.sum()
    return np.maximum(1, np.sqrt(threshold / np.where(present, p, 1)))


def _permutation(n: int, seed: int, epoch: int, stream: int) -> np.ndarray:
    return np.argsort(keys(seed, epoch, torch.arange(n), stream).numpy())


def _round(expected: np.ndarray, total: int, seed: int, epoch: int) -> np.ndarray:
    """Whole numbers that sum to `total`, each the floor or ceiling of what is expected, and on average exactly that."""
    edges = np.cumsum(expected)
    edges[-1] = total
    u = uniforms(keys(seed, epoch, torch.zeros(1), _ROUNDING), 1).item()
    return np.diff(np.floor(edges + u), prepend=0).astype(np.int64)


def _blocks(counts: np.ndarray, start: np.ndarray, blocks: int, k: int, seed: int, epoch: int) -> np.ndarray:
    """Places in the class-sorted list, in blocks of k of a class; all classes come, in any order, before one recurs."""
    present = np.flatnonzero(counts)
    cycles = -(-blocks // len(present))
    random = keys(seed, epoch, torch.arange(cycles * len(present)), _CLASS_CYCLES).numpy().reshape(cycles, -1)
    classes = present[np.argsort(random, axis=1)].ravel()[:blocks]
    cycle = np.arange(blocks) // len(present)
    place = (cycle[:, None] * k + np.arange(k)) % counts[classes][:, None]
    return (start[classes][:, None] + place).ravel()
