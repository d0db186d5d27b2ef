"""Priors: reading them, and taking them out of a score exactly once."""

import math

import pytest
import torch

from longtail.errors import LongtailError
from longtail.methods import balanced_softmax, cross_entropy, logit_adjusted
from longtail.prior import from_file, log_prior, prior_free, uniform
from longtail.template import add_prior
from longtail.template import cross_entropy as template_cross_entropy


def test_balanced_softmax_is_logit_adjustment_at_tau_1():
    torch.manual_seed(0)
    counts, features, labels = [50, 20, 5], torch.randn(6, 4), torch.arange(6) % 3
    method = balanced_softmax(counts, 4)
    scores = method.scores(features)
    weighted = torch.tensor(counts) * scores.exp()
    expected = -(weighted.gather(1, labels[:, None])[:, 0] / weighted.sum(1)).log()
    torch.testing.assert_close(method(features, labels).per_sample, expected)


def test_alpha_zero_adds_nothing_even_to_an_impossible_class():
    loglik = torch.randn(2, 3)
    assert add_prior(loglik, log_prior([3, 0, 1]), alpha=0).equal(loglik)


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0])
def test_loglik_is_the_same_however_much_of_the_prior_was_trained_in(tau):
    """Two Gaussians whose Bayes rule is known: at the optimum, plain, half and fully adjusted models agree.

    One feature x ~ N(+-1, 1), classes 9 : 1. log p(x|1) - log p(x|0) = 2x whatever the class mix.
    """
    torch.manual_seed(0)
    counts, per_class = [9000, 1000], (9000, 1000)
    x = torch.cat([torch.randn(per_class[0]) - 1, torch.randn(per_class[1]) + 1])[:, None]
    labels = torch.cat([torch.zeros(per_class[0]), torch.ones(per_class[1])]).long()
    method = balanced_softmax(counts, 1, tau=tau) if tau else cross_entropy(counts, 1)
    optimiser = torch.optim.LBFGS(method.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        loss = method(x, labels).per_sample.mean()
        loss.backward()
        return loss

    optimiser.step(closure)
    grid = torch.linspace(-2, 2, 9)[:, None]
    loglik = prior_free(method.scores(grid), method.log_mass, method.log_added).detach()
    torch.testing.assert_close(loglik[:, 1] - loglik[:, 0], 2 * grid[:, 0], atol=0.2, rtol=0.05)


def test_nothing_is_removed_from_adjusted_methods_and_all_of_it_from_plain_ones():
    scores = torch.randn(2, 3)
    plain, adjusted = cross_entropy([8, 1, 1], 4), logit_adjusted([8, 1, 1], 4)
    assert prior_free(scores, adjusted.log_mass, adjusted.log_added).equal(scores)
    removed = scores - prior_free(scores, plain.log_mass, plain.log_added)
    torch.testing.assert_close(removed[0], log_prior([8, 1, 1]))


def test_a_class_without_training_images_breaks_nothing():
    method = cross_entropy([8, 0, 2], 4)
    free = prior_free(torch.randn(5, 3), method.log_mass, method.log_added)
    assert free.isfinite().all()
    adjusted = logit_adjusted([8, 0, 2], 4)
    assert adjusted(torch.randn(2, 4), torch.tensor([0, 2])).per_sample.isfinite().all()


def test_soft_targets():
    logits = torch.randn(3, 4)
    hard = torch.tensor([0, 3, 1])
    soft = torch.nn.functional.one_hot(hard, 4).float()
    torch.testing.assert_close(template_cross_entropy(logits, soft), template_cross_entropy(logits, hard))


def test_a_prior_file(tmp_path):
    path = tmp_path / "prior.csv"
    path.write_text("class,probability\nowl,0.25\nfox,0.75\nyeti,0\n", encoding="utf-8")
    prior = from_file(path, ["fox", "owl", "yeti"])
    assert prior[:2].exp().tolist() == pytest.approx([0.75, 0.25])
    assert prior[2] == -math.inf


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("owl,0.5\nfxo,0.5\n", "no class named 'fxo'"),
        ("owl,1.0\n", "no probability for 'fox'"),
        ("owl,0.5\nfox,0.9\n", "sum to 1.4"),
        ("owl,0.5\nfox\n", "expected `class,probability`"),
        ("owl,-1\nfox,2\n", "non-negative"),
    ],
)
def test_a_wrong_prior_file_is_one_sentence(tmp_path, text, message):
    path = tmp_path / "prior.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(LongtailError, match=message):
        from_file(path, ["fox", "owl"])


def test_counts_without_an_image():
    with pytest.raises(LongtailError, match="positive sum"):
        log_prior([0, 0])
    assert uniform(3).tolist() == [0, 0, 0]
