"""Focal, class-balanced and LDAM losses against their equations, and where they must agree with plainer ones."""

import math

import pytest
import torch

from longtail.losses.class_weights import effective_number_weights
from longtail.losses.focal import focal, focal_sigmoid
from longtail.losses.margin import ldam_margins, with_margin
from longtail.methods import (
    class_balanced,
    class_balanced_focal,
    cosine_cross_entropy,
    cross_entropy,
    ldam_drw,
    logit_adjusted,
)
from longtail.methods import focal as focal_method
from longtail.prior import log_prior

COUNTS = [500, 60, 7, 1]


@pytest.fixture
def logits() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(9, 4, dtype=torch.float64) * 3


@pytest.fixture
def labels() -> torch.Tensor:
    return torch.tensor([0, 1, 2, 3, 0, 0, 1, 2, 0])


def features(rows: int = 9) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(rows, 6, dtype=torch.float64)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_focal_is_its_equation(logits, labels, gamma):
    expected = []
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        p = math.exp(row[label]) / sum(math.exp(z) for z in row)
        expected.append(-((1 - p) ** gamma) * math.log(p))
    torch.testing.assert_close(focal(logits, labels, gamma), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_sigmoid_focal_is_its_equation(logits, labels, gamma):
    expected = []
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        right = [1 / (1 + math.exp(-z if c == label else z)) for c, z in enumerate(row)]
        expected.append(sum(-((1 - q) ** gamma) * math.log(q) for q in right))
    torch.testing.assert_close(focal_sigmoid(logits, labels, gamma), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_focal_has_a_finite_slope_where_a_sample_is_certain(gamma):
    logits = torch.tensor([[200.0, 0.0], [-200.0, 0.0]], requires_grad=True)
    loss = focal(logits, torch.tensor([0, 0]), gamma)
    loss.sum().backward()
    assert loss.isfinite().all()
    assert logits.grad.isfinite().all()


def test_focal_without_gamma_is_cross_entropy(labels):
    plain, none = cross_entropy(COUNTS, 6).double(), focal_method(COUNTS, 6, gamma=0.0).double()
    none.load_state_dict(plain.state_dict())
    torch.testing.assert_close(none(features(), labels).per_sample, plain(features(), labels).per_sample)


@pytest.mark.parametrize("beta", [0.0, 0.9, 0.9999])
def test_class_weights_are_the_inverse_effective_numbers(beta):
    effective = [sum(beta**i for i in range(n)) for n in COUNTS]  # the sum of which (1 - beta^n) / (1 - beta) is short
    inverse = torch.tensor([1 / e for e in effective], dtype=torch.float64)
    torch.testing.assert_close(
        effective_number_weights(COUNTS, beta).double(), inverse * 4 / inverse.sum(), rtol=1e-6, atol=1e-7
    )


def test_a_class_without_images_has_no_weight_and_the_others_are_as_without_it():
    weights = effective_number_weights([*COUNTS, 0])
    assert weights[4] == 0
    torch.testing.assert_close(weights[:4], effective_number_weights(COUNTS))


def test_class_balanced_multiplies_each_sample_by_its_classs_weight(labels):
    plain, balanced = cross_entropy(COUNTS, 6).double(), class_balanced(COUNTS, 6).double()
    balanced.load_state_dict(plain.state_dict(), strict=False)
    expected = plain(features(), labels).per_sample * effective_number_weights(COUNTS).double()[labels]
    torch.testing.assert_close(balanced(features(), labels).per_sample, expected)


@pytest.mark.parametrize(("form", "loss"), [("sigmoid", focal_sigmoid), ("softmax", focal)])
def test_class_balanced_focal_takes_its_confidence_from_the_unweighted_network(labels, form, loss):
    objective = class_balanced_focal(COUNTS, 6, gamma=2.0, form=form).double()
    expected = loss(objective.scores(features()), labels, 2.0) * effective_number_weights(COUNTS).double()[labels]
    torch.testing.assert_close(objective(features(), labels).per_sample, expected)


def test_sigmoid_biases_start_at_the_prior_of_a_right_class():
    bias = class_balanced_focal([5] * 50, 6).likelihood.linear.bias
    torch.testing.assert_close(bias.sigmoid(), torch.full((50,), 1 / 50))


def test_weighted_methods_count_their_weights_as_class_mass():
    objective = class_balanced(COUNTS, 6, beta=0.9999)
    mass = torch.tensor(COUNTS) * effective_number_weights(COUNTS, 0.9999)
    torch.testing.assert_close(objective.log_mass, (mass / mass.sum()).log())
    assert (objective.log_mass.max() - objective.log_mass.min()) < 0.05  # 0.9999 weights by almost 1 / n
    torch.testing.assert_close(objective.log_added, torch.zeros(4))


def test_ldam_margins_fall_with_the_fourth_root_of_the_count():
    expected = torch.tensor([0.5 * (1 / n) ** 0.25 for n in COUNTS])
    torch.testing.assert_close(ldam_margins(COUNTS), expected)


def test_ldam_is_its_equation(labels):
    torch.manual_seed(0)
    cosine = torch.rand(9, 4, dtype=torch.float64) * 2 - 1
    margins = ldam_margins(COUNTS).double()
    expected = []
    for row, label in zip(cosine, labels, strict=True):
        z = row.clone()
        z[label] -= margins[label]
        expected.append(-(30 * z).log_softmax(0)[label])
    torch.testing.assert_close(with_margin(30 * cosine, labels, margins, 30), torch.stack(expected))


def test_ldam_without_margin_and_weights_is_cosine_cross_entropy(labels):
    plain, ldam = cosine_cross_entropy(COUNTS, 6).double(), ldam_drw(COUNTS, 6, max_margin=0.0, defer=1.0).double()
    ldam.load_state_dict(plain.state_dict())
    torch.testing.assert_close(ldam(features(), labels).per_sample, plain(features(), labels).per_sample)


def test_deferred_weights_come_in_late_and_make_torchs_weighted_mean(labels):
    objective = ldam_drw(COUNTS, 6, defer=0.8).double()
    scores, margins = objective.scores(features()), objective.margins
    shifted = scores - 30 * torch.nn.functional.one_hot(labels, 4) * margins[labels][:, None]
    for progress, weight in ((0.79, None), (0.8, effective_number_weights(COUNTS).double())):
        objective.progress = progress
        expected = torch.nn.functional.cross_entropy(shifted, labels, weight=weight)
        torch.testing.assert_close(objective(features(), labels).per_sample.mean(), expected)
    mass = torch.tensor(COUNTS) * effective_number_weights(COUNTS)
    torch.testing.assert_close(objective.log_mass.float(), (mass / mass.sum()).log())
    torch.testing.assert_close(ldam_drw(COUNTS, 6, defer=1.0).log_mass, log_prior(COUNTS))


def test_cosine_cross_entropy_is_logit_adjustment_without_the_prior(labels):
    cosine, adjusted = cosine_cross_entropy(COUNTS, 6).double(), logit_adjusted(COUNTS, 6, tau=0.0).double()
    adjusted.load_state_dict(cosine.state_dict())
    torch.testing.assert_close(cosine(features(), labels).per_sample, adjusted(features(), labels).per_sample)
