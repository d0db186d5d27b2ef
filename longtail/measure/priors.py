"""Where the classes have another mix: tests resampled to it, and learning it from images without labels.

A model's `loglik` [N, C] is prior-free, so it can be answered under any mix: argmax of `loglik + log prior`. Priors are
[C] probabilities here; a zero says that the class does not occur and is never answered.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from longtail.errors import LongtailError
from longtail.measure.counters import Counters
from longtail.measure.groups import Groups, by_threshold
from longtail.measure.metrics import Summary, summarise
from longtail.prior import log_prior

# Head-to-tail ratio of the test's class mix, ordered by training count: the usual test-agnostic protocol.
SHIFTS = {
    "forward 50": 50.0,
    "forward 10": 10.0,
    "forward 2": 2.0,
    "uniform": 1.0,
    "backward 2": 1 / 2,
    "backward 10": 1 / 10,
    "backward 50": 1 / 50,
}


@dataclass(frozen=True)
class PriorEstimate:
    prior: np.ndarray  # [C] probabilities
    interval: np.ndarray | None  # [2, C] ends of the 90 % interval over bootstrap resamples of the images
    loglik: np.ndarray  # mean log-likelihood of the images before each step: never falls
    gap: float  # no prior is likelier by more than this, in nats summed over the images


def estimate_prior(
    loglik_nc: np.ndarray, possible: np.ndarray | None = None, replicates: int = 100, seed: int = 0
) -> PriorEstimate:
    """The class mix under which unlabelled images are likeliest: max over p of sum_n log sum_c p_c exp loglik_nc.

    By EM: p_c becomes the mean over images of the posterior of c under p (Saerens, Latinne and Decaestecker 2002). The
    objective is concave, so EM climbs from an interior start to its maximum, and g_c = mean_n exp(loglik_nc) /
    sum_k p_k exp(loglik_nk) tells how far that is: the best mean log-likelihood is at most max_c g_c - 1 higher. It
    stops when that is under 0.1 nat over all images. `possible` [C] rules classes out beforehand.

    The interval is the bootstrap's: no normal approximation, so it stays inside [0, 1] where a class is near zero. It
    is too narrow for a class with hardly an image, and it covers the sampling of images, not a model whose
    probabilities are wrong: fit the temperature first. `replicates=0` leaves it out.
    """
    possible = np.ones(loglik_nc.shape[1], dtype=bool) if possible is None else np.asarray(possible, dtype=bool)
    if not len(loglik_nc):
        raise LongtailError("there are no images to estimate the class mix from: give at least one image.")
    if not possible.any():
        raise LongtailError("every class is ruled out, so no class mix can be estimated: allow at least one class.")
    allowed = np.asarray(loglik_nc[:, possible], dtype=np.float64)
    peak = allowed.max(1, keepdims=True)
    if not np.isfinite(peak).all():
        bad = int((~np.isfinite(peak)).sum())
        raise LongtailError(f"{bad} of {len(loglik_nc)} images have scores that are not numbers: leave them out.")
    density = np.exp(allowed - peak)
    images, classes = density.shape

    start = np.full(classes, 1 / classes)
    prior, gap, trace = _climb(density, np.ones(images), start, nats=0.1)
    random = np.random.default_rng(seed)
    resampled = []
    for _ in range(replicates):
        drawn = np.bincount(random.integers(images, size=images), minlength=images)
        # Half way to uniform, because EM needs long to bring a class back that the estimate has at zero.
        resampled.append(_climb(density[drawn > 0], drawn[drawn > 0], (prior + start) / 2, nats=1.0)[0])
    interval = np.quantile(resampled, [0.05, 0.95], axis=0) if replicates else None

    def among_all(values_c: np.ndarray) -> np.ndarray:
        full = np.zeros((*values_c.shape[:-1], len(possible)))
        full[..., possible] = values_c
        return full

    return PriorEstimate(
        prior=among_all(prior),
        interval=None if interval is None else among_all(interval),
        loglik=np.array(trace) + peak.mean(),
        gap=gap,
    )


def _climb(
    density_nc: np.ndarray, weights_n: np.ndarray, prior_c: np.ndarray, nats: float
) -> tuple[np.ndarray, float, list[float]]:
    """EM until within `nats` of the maximum: the prior, the gap that is left, the mean log-likelihoods on the way.

    Two EM steps give a direction and a curvature to extrapolate along (SQUAREM; Varadhan and Roland 2008), which saves
    nine steps in ten where classes are hard to tell apart. An extrapolation that ends below the first of the two steps
    is replaced by the second, so the climb stays monotone, and the next ones reach less far.
    """
    images = weights_n.sum()

    def look(prior_c: np.ndarray) -> tuple[float, np.ndarray]:
        evidence_n = density_nc @ prior_c
        return float(weights_n @ np.log(evidence_n) / images), (weights_n / evidence_n) @ density_nc / images

    trace: list[float] = []
    floor, plain_c, reach, longest = -np.inf, prior_c, 0.0, 4.0
    while True:
        loglik, gain_c = look(prior_c)
        if loglik < floor:
            prior_c, longest = plain_c, max(reach / 2, 1.0)
            loglik, gain_c = look(prior_c)
        elif reach == longest:
            longest *= 4
        trace.append(loglik)
        gap = float(images * (gain_c.max() - 1))
        if gap < nats:
            return prior_c, gap, trace
        first_c = prior_c * gain_c
        floor, gain_c = look(first_c)
        plain_c = first_c * gain_c
        step_c, bend_c = first_c - prior_c, plain_c - 2 * first_c + prior_c
        wanted = np.linalg.norm(step_c) / max(np.linalg.norm(bend_c), 1e-300)
        reach = float(np.clip(wanted, 1.0, longest))  # at 1 the extrapolation is the second step itself
        prior_c = np.maximum(prior_c + 2 * reach * step_c + reach**2 * bend_c, plain_c / 100)
        prior_c /= prior_c.sum()


def shifted_prior(train_counts: np.ndarray, ratio: float) -> np.ndarray:
    """[C] exponential mix with the most frequent training class `ratio` times as frequent as the rarest.

    ratio > 1 is forward (head stays head), 1 uniform, < 1 backward. Classes of equal count keep their order.
    """
    rank = np.empty(len(train_counts))
    rank[np.argsort(-np.asarray(train_counts), kind="stable")] = np.arange(len(train_counts))
    prior = ratio ** (-rank / max(len(train_counts) - 1, 1))
    return prior / prior.sum()


def resample(labels: np.ndarray, prior: np.ndarray, seed: int = 0) -> np.ndarray:
    """Row numbers (sorted) of the largest part of a test whose classes have the mix `prior`, none taken twice.

    Which images of a class are kept depends on the seed alone, and fewer are a subset of more.
    """
    have = np.bincount(labels, minlength=len(prior))
    wanted = prior > 0
    if np.any(have[wanted] == 0):
        absent = int(np.flatnonzero(wanted & (have == 0))[0])
        raise LongtailError(f"the test has no image of class {absent}, which the wanted mix has: set it to 0 there.")
    keep = np.floor(prior * np.min(have[wanted] / prior[wanted]) + 1e-9).astype(np.int64)
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    place = np.arange(len(labels)) - np.repeat(np.cumsum(have) - have, have)  # within the class
    return np.sort(by_class[place < np.repeat(keep, have)])


def answers(loglik_nc: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """[N] the likeliest class under the mix `prior`."""
    with np.errstate(divide="ignore"):
        return (loglik_nc + np.log(prior)).argmax(1)


@dataclass(frozen=True)
class ShiftRow:
    """Accuracy of one model on tests resampled to one mix, answered under four priors; means over the resamples."""

    name: str
    images: int
    train: float
    uniform: float
    true: float
    estimated: float
    distance: float  # total variation between estimated and true mix


def under_shifts(
    loglik_nc: np.ndarray,
    labels: np.ndarray,
    train_counts: np.ndarray,
    shifts: Mapping[str, float] = SHIFTS,
    seeds: Sequence[int] = (0,),
) -> list[ShiftRow]:
    """Resample a test to each shift, once a seed, and answer it under the training, uniform, true and estimated mix."""
    fixed = [train_counts / train_counts.sum(), np.full(len(train_counts), 1 / len(train_counts))]
    rows = []
    for name, ratio in shifts.items():
        found, images = [], 0
        for seed in seeds:
            kept = resample(labels, shifted_prior(train_counts, ratio), seed)
            images, loglik, truth = len(kept), loglik_nc[kept], labels[kept]
            true = np.bincount(truth, minlength=len(train_counts)) / len(truth)
            estimated = estimate_prior(loglik, replicates=0).prior
            right = [float((answers(loglik, prior) == truth).mean()) for prior in (*fixed, true, estimated)]
            found.append([*right, float(np.abs(estimated - true).sum() / 2)])
        rows.append(ShiftRow(name, images, *np.mean(found, axis=0).tolist()))
    return rows


def under_strengths(
    loglik_nc: np.ndarray,
    labels: np.ndarray,
    train_counts: np.ndarray,
    strengths: Sequence[float],
    group: Callable[[np.ndarray], Groups] = by_threshold,
) -> list[tuple[float, Summary]]:
    """The same test answered with `strength` times the training log prior added: the head-to-tail trade-off."""
    loglik, truth = torch.from_numpy(loglik_nc), torch.from_numpy(labels)
    rows = []
    for strength in strengths:
        counters = Counters(len(train_counts))
        counters.update(loglik + log_prior(torch.from_numpy(train_counts), tau=strength), truth)
        rows.append((strength, summarise(counters.per_class(), train_counts, group)))
    return rows


def render_shifts(rows: Sequence[ShiftRow]) -> str:
    names = ("train", "uniform", "true", "estimated")
    lines = [f"{'test mix':<12}  {'images':>6}  {'  '.join(f'{name:>9}' for name in names)}  {'distance':>8}"]
    for row in rows:
        cells = "  ".join(f"{100 * getattr(row, name):>9.1f}" for name in names)
        lines.append(f"{row.name:<12}  {row.images:>6}  {cells}  {row.distance:>8.2f}")
    return "\n".join(lines)
