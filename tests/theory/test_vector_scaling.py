"""The VS loss against its equation, and where it must agree with plainer methods."""

import math

import pytest
import torch

from longtail.methods import balanced_softmax, vector_scaling

COUNTS = [500, 60, 7, 1]
LABELS = torch.tensor([0, 1, 2, 3, 0, 2])


@pytest.fixture
def features() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(6, 5, dtype=torch.float64)


@pytest.mark.parametrize(("gamma", "tau"), [(0.3, 1.0), (0.15, 1.25), (0.5, 0.0)])
def test_it_is_its_equation(features, gamma, tau):
    objective = vector_scaling(COUNTS, 5, gamma=gamma, tau=tau).double()
    expected = []
    for row, label in zip(objective.scores(features).tolist(), LABELS.tolist(), strict=True):
        z = [(n / 500) ** gamma * score + tau * math.log(n / 568) for n, score in zip(COUNTS, row, strict=True)]
        expected.append(math.log(sum(math.exp(v) for v in z)) - z[label])
    torch.testing.assert_close(
        objective(features, LABELS).per_sample, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-6
    )


def test_without_factors_it_is_balanced_softmax(features):
    plain, scaled = balanced_softmax(COUNTS, 5).double(), vector_scaling(COUNTS, 5, gamma=0.0).double()
    scaled.load_state_dict(plain.state_dict())
    torch.testing.assert_close(scaled(features, LABELS).per_sample, plain(features, LABELS).per_sample)


def test_only_the_prior_is_taken_out_and_the_factor_is_not(features):
    half = vector_scaling(COUNTS, 5, tau=0.5)
    left = half.log_mass - half.log_added
    torch.testing.assert_close(left, 0.5 * half.log_mass)
    torch.testing.assert_close(half.scores(features.float()), half.likelihood(features.float()))


def test_a_class_without_images_takes_no_part(features):
    with_empty = vector_scaling([*COUNTS, 0], 5).double()
    losses = with_empty(features, LABELS).per_sample
    losses.sum().backward()
    assert losses.isfinite().all()
    assert with_empty.likelihood.linear.weight.grad[4].abs().sum() == 0
