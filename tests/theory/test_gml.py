"""GML against the authors' loss (stored numbers), and against what it must equal in special cases."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from longtail.contrast.bank import Bank, segment_lengths
from longtail.likelihood.mixture import mixture_loglik, mixture_loglik_excluding_own
from longtail.losses.kd import distillation
from longtail.methods import gml, logit_adjusted
from longtail.prior import log_prior
from longtail.segments import Segments
from longtail.template import add_prior, class_log_mean_exp, cross_entropy, cross_entropy_with_numerator

GOLDEN = Path(__file__).parent.parent / "golden" / "gml_loss.npz"


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_loss_parts_and_gradients_are_the_authors(dtype, tolerance):
    golden = {name: torch.from_numpy(np.asarray(value)) for name, value in np.load(GOLDEN).items()}

    def given(name: str) -> torch.Tensor:
        return golden[name].to(dtype)

    order = golden["bank_labels"].argsort(stable=True)  # our bank is sorted by class
    query, cosine = given("query").requires_grad_(), given("cosine").requires_grad_()
    bank = given("bank")[order].requires_grad_()
    log_tau = given("tau").log().requires_grad_()
    labels, prior = golden["labels"], log_prior(golden["counts"]).to(dtype)
    if dtype == torch.float64:
        prior = (golden["counts"].double() / golden["counts"].sum()).log()  # log_prior returns float32
    segments = Segments.of(torch.bincount(golden["bank_labels"], minlength=len(prior)))
    own = labels, golden["query_ids"], golden["bank_ids"][order]

    loglik, others, valid = mixture_loglik_excluding_own(query, bank, segments, log_tau.exp(), *own)
    scores, teacher_scores = cosine / given("tau_s"), given("teacher_cosine") / given("tau_s")
    parts = {
        "loss_cls": cross_entropy(add_prior(scores, prior), labels).mean(),
        "loss_gml": cross_entropy(add_prior(loglik, prior), labels).mean(),
        "loss_gml_excl_own": cross_entropy(add_prior(others, prior), labels).mean(),
        "loss_kd": distillation(scores, teacher_scores, golden["kd_temperature"].item()).mean(),
    }
    total = sum(parts.values()) + (golden["kd_weight"].item() - 1) * parts["loss_kd"]
    total.backward()
    found = parts | {
        "total": total,
        "class_loglik": loglik,
        "grad_query": query.grad,
        "grad_bank": bank.grad[order.argsort()],
        "grad_cosine": cosine.grad,
        "grad_log_tau": log_tau.grad.reshape(1),
    }
    assert valid.all()
    for name, value in found.items():
        expected = golden[name].double()
        error = (value.detach().double() - expected).norm() / expected.norm()
        assert error < tolerance, (name, error.item())


def points(*shape: int) -> torch.Tensor:
    return F.normalize(torch.randn(*shape, dtype=torch.float64), dim=-1)


def test_with_lengths_proportional_to_counts_the_prior_cancels():
    """k_m = 0 and |Z_c| = n_c: what is left is neighbourhood components, one sum over a class against one over all."""
    counts = torch.tensor([12, 6, 4, 2])
    assert segment_lengths(counts, k=24, k_m=0).tolist() == counts.tolist()
    query, keys, labels = points(9, 5), points(24, 5), torch.arange(9) % 4
    segments = Segments.of(counts)
    ours = cross_entropy(add_prior(mixture_loglik(query, keys, segments, 0.2), (counts.double() / 24).log()), labels)
    kernel = (query @ keys.T / 0.2).exp()
    same = segments.class_of_row == labels[:, None]
    torch.testing.assert_close(ours, -((kernel * same).sum(1) / kernel.sum(1)).log(), rtol=1e-6, atol=1e-6)


def test_one_centre_a_class_is_cosine_logit_adjustment():
    """One key a class, identity embedding, tau_g = tau_s: the mixture is L_cls with the keys as its centres."""
    torch.manual_seed(0)
    counts, features, labels = [50, 20, 5], torch.randn(7, 4), torch.arange(7) % 3
    cls = logit_adjusted(counts, 4, tau_s=0.1)
    centres = F.normalize(cls.likelihood.centres.detach(), dim=1)
    loglik = mixture_loglik(F.normalize(features, dim=1), centres, Segments.of(torch.ones(3, dtype=torch.int64)), 0.1)
    ours = cross_entropy(add_prior(loglik, log_prior(counts)), labels)
    torch.testing.assert_close(ours, cls(features, labels).per_sample.detach())


def test_supcon_is_the_jensen_bound_of_balanced_gml():
    """L_GML + log |Z_y| <= SupCon with the mean over positives, and SupCon is the template with its own numerator."""
    per_class, classes = 6, 5
    query, keys, labels = points(20, 8), points(per_class * classes, 8), torch.arange(20) % classes
    class_of = torch.arange(classes).repeat_interleave(per_class)
    scores = query @ keys.T / 0.1
    loglik = class_log_mean_exp(scores, class_of, classes)
    ours = cross_entropy(add_prior(loglik, torch.zeros(classes)), labels) + np.log(per_class)
    positives = class_of == labels[:, None]
    supcon = -(scores.log_softmax(1) * positives).sum(1) / positives.sum(1)
    assert (ours <= supcon + 1e-9).all()
    numerator = (scores * positives).sum(1) / positives.sum(1)
    torch.testing.assert_close(cross_entropy_with_numerator(numerator, scores), supcon)


def test_order_inside_a_class_changes_nothing():
    lengths = torch.tensor([5, 1, 7, 3])
    query, keys, segments = points(6, 4), points(16, 4), Segments.of(lengths)
    start = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    shuffled = torch.cat([a + torch.randperm(b - a) for a, b in pairwise(start)])
    torch.testing.assert_close(
        mixture_loglik(query, keys[shuffled], segments, 0.07), mixture_loglik(query, keys, segments, 0.07)
    )


def test_the_plain_formula_and_the_fast_one_agree():
    lengths = torch.tensor([5, 0, 7, 3])
    query, keys, segments = points(6, 4), points(15, 4), Segments.of(lengths)
    torch.testing.assert_close(
        class_log_mean_exp(query @ keys.T / 0.07, segments.class_of_row, 4), mixture_loglik(query, keys, segments, 0.07)
    )


def one_step(objective, features, labels, ids, keys, **kwargs):
    losses = objective(features, labels, ids, keys=keys, **kwargs)
    losses.per_sample.mean().backward()
    return losses


@pytest.mark.parametrize("learn_tau", [False, True])
@pytest.mark.parametrize("tau", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("rows", [1, 40])
def test_loss_and_gradients_are_finite_from_the_first_step(learn_tau, tau, rows):
    """Classes of one sample, a nearly empty bank, one query, bfloat16, a batch with more of a class than its ring."""
    torch.manual_seed(0)
    objective = gml([100, 10, 1, 1], 8, k=24, k_m=2, tau_g=tau, learn_tau=learn_tau, kd_weight=1.0)
    features = torch.randn(rows, 8, requires_grad=True)
    labels = torch.arange(rows) % 4
    with torch.autocast("cpu", torch.bfloat16):
        losses = one_step(
            objective, features, labels, torch.arange(rows), torch.randn(rows, 8), key_scores=torch.randn(rows, 4)
        )
    assert losses.per_sample.isfinite().all()
    assert features.grad.isfinite().all()
    for name, parameter in objective.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


def test_an_empty_bank_leaves_the_term_out_and_the_log_says_so():
    objective = gml([10, 5], 8, k=16)
    losses = objective(torch.randn(3, 8), torch.tensor([0, 1, 0]), torch.arange(3))
    assert "gml" not in losses.parts
    torch.testing.assert_close(losses.per_sample.mean(), losses.parts["cls"])


def test_a_row_whose_class_would_be_left_with_nothing_is_left_out_of_the_temperature_term():
    objective = gml([10, 5], 8, k=16, learn_tau=True)
    keys, labels, ids = torch.randn(3, 8), torch.tensor([0, 0, 1]), torch.tensor([7, 8, 9])
    losses = one_step(objective, torch.randn(3, 8), labels, ids, keys)
    assert losses.parts["left_out"] == pytest.approx(1 / 3)  # only the class of id 9 has no other sample
    assert objective.log_tau.grad.isfinite()


def test_tau_learns_from_the_second_term_alone():
    torch.manual_seed(0)
    objective = gml([10, 5], 8, k=16, learn_tau=True)
    labels = torch.tensor([0, 1] * 6)
    losses = one_step(objective, torch.randn(12, 8), labels, torch.arange(12), torch.randn(12, 8))
    assert objective.log_tau.grad != 0
    fixed = gml([10, 5], 8, k=16)
    one_step(fixed, torch.randn(12, 8), labels, torch.arange(12), torch.randn(12, 8))
    assert fixed.log_tau.grad is None
    assert "gml_without_own" in losses.parts


def test_alpha_multiplies_the_prior_and_never_the_loss():
    torch.manual_seed(0)
    counts, labels = [90, 10], torch.tensor([0, 1, 1, 0])
    plain, half = gml(counts, 8, k=16, alpha=0.0), gml(counts, 8, k=16, alpha=0.5)
    half.load_state_dict(plain.state_dict())
    batch = torch.randn(4, 8), labels, torch.arange(4)
    keys = torch.randn(4, 8)
    a, b = plain(*batch, keys=keys), half(*batch, keys=keys)
    assert a.parts["cls"] == b.parts["cls"]
    assert a.parts["gml"] != b.parts["gml"]


def test_the_kernel_answers_without_a_prior():
    torch.manual_seed(0)
    objective = gml([30, 3], 8, k=32)
    centre = torch.randn(2, 8) * 4
    labels = torch.tensor([0] * 10 + [1] * 3)
    objective.enqueue(centre[labels] + torch.randn(13, 8) * 0.1, labels, torch.arange(13))
    objective.eval()
    answer = objective.kernel_loglik(centre)
    assert answer.shape == (2, 2)
    assert answer.isfinite().all()


def test_full_bank_equals_the_neighbourhood_loss():
    torch.manual_seed(0)
    labels = torch.tensor([0] * 8 + [1] * 4)
    bank = Bank.full(points(12, 5), labels, torch.arange(12), 2)
    query = points(4, 5)
    loglik = mixture_loglik(query, bank.features, bank.segments, 0.1)
    logits = add_prior(loglik, torch.tensor([2 / 3, 1 / 3], dtype=torch.float64).log())
    kernel = (query @ bank.features.T / 0.1).exp()
    expected = torch.stack([kernel[:, :8].sum(1), kernel[:, 8:].sum(1)], 1)
    torch.testing.assert_close(logits.softmax(1), expected / expected.sum(1, keepdim=True), rtol=1e-6, atol=1e-6)
