"""Decoupled and post-hoc methods: what a second stage makes of the first one's head."""

import pytest
import torch
import torch.nn.functional as F

from longtail.likelihood.linear import Linear
from longtail.methods import METHODS, cross_entropy, lws, ncm, posthoc_adjusted, tau_norm
from longtail.prior import log_prior, prior_free
from longtail.recipe import Optim, Stage

COUNTS = [50, 20, 5, 1]


@pytest.fixture
def head() -> Linear:
    torch.manual_seed(0)
    return Linear(6, 4).double()


def features(rows: int = 8) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(rows, 6, dtype=torch.float64)


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0])
def test_posthoc_adjustment_subtracts_the_prior(head, tau):
    objective = posthoc_adjusted(COUNTS, 6, tau=tau).double()
    objective.likelihood.inherit(head)
    p = torch.tensor(COUNTS, dtype=torch.float64) / sum(COUNTS)
    torch.testing.assert_close(objective.scores(features()), head(features()) - tau * p.log(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0])
def test_however_much_was_subtracted_the_likelihood_is_cross_entropys(head, tau):
    plain = cross_entropy(COUNTS, 6).double()
    plain.likelihood.load_state_dict(head.state_dict())
    objective = posthoc_adjusted(COUNTS, 6, tau=tau).double()
    objective.likelihood.inherit(head)
    found, expected = (
        prior_free(o.scores(features()), o.log_mass, o.log_added).log_softmax(1) for o in (objective, plain)
    )
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_a_class_without_images_keeps_its_score_after_the_fact(head):
    objective = posthoc_adjusted([50, 20, 5, 0], 6).double()
    objective.likelihood.inherit(head)
    torch.testing.assert_close(objective.scores(features())[:, 3], head(features())[:, 3])


@pytest.mark.parametrize("tau", [0.0, 0.7, 1.0])
def test_tau_normalisation_shortens_weights_and_drops_the_bias(head, tau):
    objective = tau_norm(COUNTS, 6, tau=tau).double()
    objective.likelihood.inherit(head)
    w = head.linear.weight
    expected = torch.stack([features() @ (row / row.norm() ** tau) for row in w], dim=1)
    torch.testing.assert_close(objective.scores(features()), expected)
    if tau == 1:
        torch.testing.assert_close(objective.likelihood.linear.linear.weight.norm(dim=1), torch.ones(4).double())


def test_learned_scaling_begins_at_the_trained_head_and_learns_factors_alone(head):
    objective = lws(COUNTS, 6).double()
    objective.likelihood.inherit(head)
    torch.testing.assert_close(objective.scores(features()), head(features()))
    with torch.no_grad():
        objective.likelihood.factors[2] = 3.0
    torch.testing.assert_close(objective.scores(features())[:, 2], 3 * head(features())[:, 2])  # the bias too
    learned = [name for name, p in objective.named_parameters() if p.requires_grad]
    assert learned == ["likelihood.factors"]


def test_class_means_answer_by_distance_in_centred_normalised_space():
    torch.manual_seed(0)
    labels = torch.tensor([0] * 6 + [1] * 3 + [3])
    x = torch.randn(10, 6, dtype=torch.float64) + 2
    objective = ncm(COUNTS, 6).double()
    objective.fill(x, labels, torch.arange(10))
    unit = F.normalize(x - x.mean(dim=0), dim=1)
    query = F.normalize(features() - x.mean(dim=0), dim=1)
    scores = objective.scores(features())
    means = {c: unit[labels == c].mean(dim=0) for c in (0, 1, 3)}
    variance = torch.cat([unit[labels == c] - m for c, m in means.items()]).square().mean()
    for c, mean in means.items():
        torch.testing.assert_close(scores[:, c], -(query - mean).square().sum(1) / (2 * variance))
    assert (scores[:, 2] == -torch.inf).all()  # no image of it


@pytest.mark.parametrize(
    ("name", "epochs", "sampler"),
    [
        ("crt", 10, "k-per-class"),
        ("lws", 5, "k-per-class"),
        ("tau_norm", 0, "instance"),
        ("ncm", 0, "instance"),
        ("posthoc_adjusted", 0, "instance"),
    ],
)
def test_the_second_stage_keeps_the_backbone_and_is_as_long_as_published(name, epochs, sampler):
    first, second = METHODS[name].stages(Stage(method=name, epochs=90, optim=Optim(warmup_epochs=5.0)))
    assert (first.method, first.sampler, first.trains, first.epochs) == ("cross_entropy", "instance", "all", 90)
    assert (second.method, second.start_from, second.trains) == (name, first.name, "head")
    assert (second.epochs, second.sampler) == (epochs, sampler)
    assert (first.optim.warmup_epochs, second.optim.warmup_epochs) == (5.0, 0.0)  # lws would never leave it


def test_normalised_and_mean_scores_have_nothing_left_to_take_out():
    for objective in (tau_norm(COUNTS, 6), ncm(COUNTS, 6)):
        torch.testing.assert_close(objective.log_mass, objective.log_added)
    torch.testing.assert_close(lws(COUNTS, 6).log_mass, log_prior(COUNTS))  # until its sampler is known
