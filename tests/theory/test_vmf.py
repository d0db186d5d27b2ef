"""The von Mises-Fisher likelihood against SciPy's Bessel functions, against samples, and inside ProCo."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.special import gammaln, ive

from longtail.contrast.running import RunningMeans
from longtail.likelihood.vmf import KAPPA_MAX, concentration, vmf_loglik
from longtail.methods import proco
from longtail.template import class_log_mean_exp


def log_bessel_over_power(v: float, x: np.ndarray) -> np.ndarray:
    """log( I_v(x) / x^v ), its limit at 0."""
    safe = np.maximum(x, 1e-6)
    with np.errstate(divide="ignore"):
        away = np.log(ive(v, safe)) + safe - v * np.log(safe)
    return np.where(x > 1e-6, away, -v * np.log(2) - gammaln(v + 1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("dim", "tolerance"), [(32, 1e-6), (64, 3e-7), (128, 3e-7)])
def test_it_is_the_ratio_of_normalising_constants(dim, tolerance, dtype):
    torch.manual_seed(0)
    length = torch.tensor([0.0, 0.1, 0.5, 0.9, 0.99, 0.9999, 1.0], dtype=torch.float64)
    mean = F.normalize(torch.randn(7, dim, dtype=torch.float64), dim=1) * length[:, None]
    query = F.normalize(torch.randn(5, dim, dtype=torch.float64), dim=1)
    kappa_mu = concentration(mean)
    before = kappa_mu.norm(dim=1).numpy()
    after = (kappa_mu + query[:, None] / 0.1).norm(dim=2).numpy()
    expected = log_bessel_over_power(dim / 2 - 1, after) - log_bessel_over_power(dim / 2 - 1, before)
    found = vmf_loglik(query.to(dtype), concentration(mean.to(dtype)), 0.1)
    np.testing.assert_allclose(
        found, expected, rtol=0, atol=tolerance if dtype == torch.float64 else 2 * tolerance + 1e-6
    )


def test_it_is_the_mixture_of_very_many_samples():
    """200,000 samples of two classes: the closed form is what the mean over the bank tends to."""
    torch.manual_seed(0)
    dim, kappa = 32, 60.0
    mu = F.normalize(torch.randn(2, dim, dtype=torch.float64), dim=1)
    samples = torch.cat([sample_vmf(m, kappa, 100_000) for m in mu])
    labels = torch.arange(2).repeat_interleave(100_000)
    query = F.normalize(torch.randn(6, dim, dtype=torch.float64), dim=1)
    sampled = class_log_mean_exp(query @ samples.T / 0.5, labels, 2)
    torch.testing.assert_close(vmf_loglik(query, kappa * mu, 0.5), sampled, rtol=0, atol=2e-3)


def sample_vmf(mu: torch.Tensor, kappa: float, n: int) -> torch.Tensor:
    """By the density of t = mu . z, exp(kappa t) (1 - t^2)^((D - 3) / 2), inverted on a fine grid."""
    dim = len(mu)
    t = torch.linspace(-1, 1, 20_001, dtype=torch.float64)
    log_density = kappa * t + (dim - 3) / 2 * (1 - t**2).clamp_min(1e-300).log()
    cumulative = (log_density - log_density.max()).exp().cumsum(0)
    along = t[torch.searchsorted(cumulative / cumulative[-1], torch.rand(n, dtype=torch.float64))]
    across = torch.randn(n, dim, dtype=torch.float64)
    across = F.normalize(across - (across @ mu)[:, None] * mu, dim=1)
    return along[:, None] * mu + (1 - along**2).sqrt()[:, None] * across


def test_concentration_is_recovered_from_samples():
    torch.manual_seed(0)
    mu = F.normalize(torch.randn(64, dtype=torch.float64), dim=0)
    found = concentration(sample_vmf(mu, 80.0, 50_000).mean(dim=0)[None])[0]
    assert found.norm().item() == pytest.approx(80.0, rel=0.02)
    assert (found @ mu / found.norm()).item() > 0.999


def test_one_sample_is_as_concentrated_as_can_be_and_nothing_is_infinite():
    z = F.normalize(torch.randn(1, 32), dim=1).requires_grad_()
    kappa_mu = concentration(z)
    assert kappa_mu.norm().item() == pytest.approx(KAPPA_MAX, rel=0.05)
    query = F.normalize(torch.randn(3, 32), dim=1).requires_grad_()
    loglik = vmf_loglik(query, kappa_mu, 0.1)
    torch.testing.assert_close(loglik, query @ z.T / 0.1, rtol=1e-2, atol=2e-2)  # all of the class is at z
    loglik.sum().backward()
    assert query.grad.isfinite().all()
    assert z.grad.isfinite().all()


def test_no_direction_at_all_says_the_same_of_every_query():
    query = F.normalize(torch.randn(4, 32, dtype=torch.float64), dim=1)
    mean = torch.zeros(1, 32, dtype=torch.float64, requires_grad=True)
    loglik = vmf_loglik(query, concentration(mean), 0.1)
    torch.testing.assert_close(loglik, loglik[:1].expand(4, 1))
    loglik.sum().backward()
    assert mean.grad.isfinite().all()


def test_the_gradient_is_right():
    torch.manual_seed(0)
    query = F.normalize(torch.randn(3, 16, dtype=torch.float64), dim=1).requires_grad_()
    mean = (F.normalize(torch.randn(4, 16, dtype=torch.float64), dim=1) * 0.7).requires_grad_()
    assert torch.autograd.gradcheck(lambda q, m: vmf_loglik(q, concentration(m), 0.2), (query, mean))


def test_running_means_hold_the_previous_epoch_and_the_current_one():
    running = RunningMeans(2, 1, epoch=4)
    for value in (1.0, 2.0, 3.0, 4.0):  # two features each, of class 0: an epoch is two of these
        running.add(torch.full((2, 1), value), torch.zeros(2, dtype=torch.int64))
    means, seen = running.means()
    assert means[0].item() == pytest.approx((1 + 2 + 3 + 4) / 4)
    running.add(torch.full((2, 1), 9.0), torch.zeros(2, dtype=torch.int64))
    means, seen = running.means()
    assert means[0].item() == pytest.approx((3 + 4 + 9) / 3)
    assert seen.tolist() == [True, False]


def test_proco_is_its_equation():
    """Transcribed with SciPy; a class that has not been seen yet takes no part."""
    torch.manual_seed(0)
    counts, dim, tau = [40, 20, 9, 3], 64, 0.2
    objective = proco(counts, 6, embed=dim, tau=tau, weight=0.7).double()
    labels = torch.tensor([0, 1, 0, 1, 1])
    x = [torch.randn(5, 6, dtype=torch.float64) for _ in range(3)]
    losses = objective(x[0], labels, query=x[1], key=x[2])
    v = objective.embed(torch.cat(x[1:])).detach().numpy()
    y, p = labels.repeat(2).numpy(), np.array(counts) / sum(counts)
    loglik = np.full((10, 4), -np.inf)
    for c in (0, 1):
        mean = v[y == c].mean(axis=0)
        r = np.linalg.norm(mean)
        kappa = r * (dim - r**2) / (1 - r**2)
        after = np.linalg.norm(kappa * mean / r + v / tau, axis=1)
        loglik[:, c] = log_bessel_over_power(dim / 2 - 1, after) - log_bessel_over_power(dim / 2 - 1, np.array(kappa))
    logits = loglik + np.log(p)
    contrast = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(10), y]
    cls = F.cross_entropy(objective.scores(x[0]) + torch.tensor(p).log(), labels, reduction="none")
    expected = cls + 0.7 * torch.tensor(contrast).view(2, 5).mean(dim=0)
    torch.testing.assert_close(losses.per_sample, expected, rtol=1e-6, atol=1e-6)
