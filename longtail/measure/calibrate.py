"""Better answers from scores that are already there: temperature and tau-normalisation. Pure functions on arrays."""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp

from longtail.errors import LongtailError

_PULL = 1e-3


def fit_temperature(loglik_nc: np.ndarray, labels: np.ndarray) -> float:
    """T that minimises the mean of -log softmax(loglik / T + log p)[label], p the class mix of these labels.

    The temperature divides the log-likelihood alone and the prior is added afterwards, so that it stays right under any
    other prior; p takes the class mix of `val` out of the fit. The loss is convex in b = 1/T: Newton's method, kept
    inside a shrinking bracket, finds its one minimum to 1e-9.
    """
    counts = np.bincount(labels, minlength=loglik_nc.shape[1])
    present = counts > 0
    loglik = np.asarray(loglik_nc[:, present], dtype=np.float64)
    log_prior = np.log(counts[present] / counts.sum())
    true = loglik[np.arange(len(labels)), (np.cumsum(present) - 1)[labels]]

    def slope_and_curvature(b: float) -> tuple[float, float]:
        scores = b * loglik + log_prior
        weights = np.exp(scores - scores.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        mean = (weights * loglik).sum(1)
        return float((mean - true).mean()), float((weights * (loglik - mean[:, None]) ** 2).sum(1).mean())

    low, high = 1e-4, 1e4
    if slope_and_curvature(low)[0] >= 0:
        raise LongtailError(
            "on val the scores say nothing about the classes (chance level), so no temperature fits them."
        )
    if slope_and_curvature(high)[0] <= 0:
        raise LongtailError(
            "on val every image is answered rightly, so no temperature is too low: use more val images."
        )
    b = 1.0
    for _ in range(200):
        slope, curvature = slope_and_curvature(b)
        low, high = (b, high) if slope < 0 else (low, b)
        step = b - slope / curvature if curvature > 0 else low
        step = step if low < step < high else np.sqrt(low * high)
        if abs(step - b) <= 1e-9 * b:
            break
        b = step
    return float(1 / b)


def average_weight(first_nc: np.ndarray, second_nc: np.ndarray, labels: np.ndarray) -> float:
    """w of the mean (1 - w) first + w second of two log-likelihoods that answers the labels of val best, in [0, 1].

    Best at whatever temperature: a, b >= 0 minimise the mean of -log softmax(a first + b second + log p)[label] with p
    the class mix of the labels, and w = b / (a + b). That is convex; the slight pull to a = b = 1 keeps it finite where
    val is answered without an error. Classes that one of the two knows nothing of (-inf) are left out.
    """
    known = np.bincount(labels, minlength=first_nc.shape[1]) > 0
    known &= np.isfinite(first_nc).all(axis=0) & np.isfinite(second_nc).all(axis=0)
    rows = known[labels]
    if not rows.any():
        return 0.0
    pair = np.stack([first_nc, second_nc])[:, rows][:, :, known].astype(np.float64)  # [2, N, C]
    target = (np.cumsum(known) - 1)[labels[rows]]
    log_prior = np.log(np.bincount(target) / len(target))
    true = pair[:, np.arange(len(target)), target]

    def loss_and_gradient(ab: np.ndarray) -> tuple[float, np.ndarray]:
        scores = np.tensordot(ab, pair, 1) + log_prior
        log_sum = np.asarray(logsumexp(scores, axis=1))
        expected = (np.exp(scores - log_sum[:, None]) * pair).sum(2)
        loss = (log_sum - ab @ true).mean() + _PULL / 2 * ((ab - 1) ** 2).sum()
        return float(loss), (expected - true).mean(1) + _PULL * (ab - 1)

    a, b = minimize(loss_and_gradient, np.ones(2), jac=True, method="L-BFGS-B", bounds=[(0, None)] * 2).x
    return float(b / (a + b)) if a + b > 0 else 0.0


def tau_normalise(scores_nc: np.ndarray, weight_cd: np.ndarray, bias_c: np.ndarray, tau: float) -> np.ndarray:
    """Scores of a linear head whose class weights are divided by their norm to the tau, without the bias.

    w_c x / |w_c|^tau = (score_c - b_c) / |w_c|^tau, so features are not needed. tau = 0 only drops the bias, 1 makes
    all norms equal (Kang et al. 2020).
    """
    return (scores_nc - bias_c) / np.linalg.norm(weight_cd, axis=1) ** tau


def choose_tau(
    scores_nc: np.ndarray,
    labels: np.ndarray,
    weight_cd: np.ndarray,
    bias_c: np.ndarray,
    grid: Sequence[float] = tuple(k / 10 for k in range(21)),
) -> tuple[float, np.ndarray]:
    """The tau of the highest balanced accuracy on val (the lowest of equals), and the accuracy of every tau tried."""
    counts = np.bincount(labels, minlength=scores_nc.shape[1])
    per_image = 1 / (counts[labels] * (counts > 0).sum())  # weights that make a plain mean a balanced one
    tried = np.array(
        [per_image[tau_normalise(scores_nc, weight_cd, bias_c, tau).argmax(1) == labels].sum() for tau in grid]
    )
    return grid[int(np.argmax(tried.round(12)))], tried
