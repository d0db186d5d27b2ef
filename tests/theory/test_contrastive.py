"""SupCon, BCL, PaCo, GPaCo and MoCo: against their equations written out, and as the template with other arguments."""

import math

import pytest
import torch
import torch.nn.functional as F

from longtail.losses.parametric import parametric_contrast
from longtail.methods import balanced_softmax, bcl, gpaco, moco, paco
from longtail.methods.bcl import bcl_loss
from longtail.methods.supcon import supcon_loss
from longtail.template import class_log_mean_exp, cross_entropy_with_numerator

COUNTS = [40, 20, 9, 3]


def unit(*shape: int) -> torch.Tensor:
    return F.normalize(torch.randn(*shape, dtype=torch.float64), dim=-1)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def test_supcon_is_its_equation():
    views, labels, tau = (unit(7, 5), unit(7, 5)), torch.tensor([0, 0, 1, 2, 0, 1, 3]), 0.1
    v, y = torch.cat(views), labels.repeat(2).tolist()
    expected = []
    for i in range(14):
        e = [math.exp(float(v[i] @ v[a]) / tau) for a in range(14)]
        positives = [p for p in range(14) if p != i and y[p] == y[i]]
        everything = sum(e) - e[i]
        expected.append(-sum(math.log(e[p] / everything) for p in positives) / len(positives))
    found = supcon_loss(views, labels, tau)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64).view(2, 7).mean(0))


def test_supcon_is_the_template_with_the_count_of_contrasts_as_prior():
    """log s(x|c) + log m_c over the classes, and Jensen's bound of the true class as numerator."""
    views, labels, tau = (unit(6, 5), unit(6, 5)), torch.tensor([0, 1, 1, 2, 0, 0]), 0.2
    v, y = torch.cat(views), labels.repeat(2)
    expected = []
    for i in range(12):
        others = torch.arange(12) != i
        scores, classes = (v[i] @ v[others].T / tau)[None], y[others]
        logits = class_log_mean_exp(scores, classes, 3) + torch.bincount(classes, minlength=3).log()
        numerator = scores[0, classes == y[i]].mean()[None]
        expected.append(cross_entropy_with_numerator(numerator, logits))
    torch.testing.assert_close(supcon_loss(views, labels, tau), torch.cat(expected).view(2, 6).mean(0))


def test_bcl_is_its_equation():
    views, labels, prototypes, tau = (unit(6, 5), unit(6, 5)), torch.tensor([0, 0, 1, 2, 0, 1]), unit(4, 5), 0.1
    v, y = torch.cat([*views, prototypes]), [*labels.tolist(), *labels.tolist(), 0, 1, 2, 3]
    size = [y.count(c) for c in range(4)]
    expected = []
    for i in range(12):
        e = [math.exp(float(v[i] @ v[k]) / tau) for k in range(16)]
        d = sum(
            sum(e[k] for k in range(16) if k != i and y[k] == c) / (size[c] - (1 if c == y[i] else 0)) for c in range(4)
        )
        positives = [p for p in range(16) if p != i and y[p] == y[i]]
        expected.append(-sum(math.log(e[p] / d) for p in positives) / len(positives))
    found = bcl_loss(views, labels, prototypes, tau)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64).view(2, 6).mean(0))


def test_bcl_is_the_template_with_a_uniform_prior():
    views, labels, prototypes, tau = (unit(6, 5), unit(6, 5)), torch.tensor([0, 0, 1, 2, 0, 1]), unit(4, 5), 0.3
    v, y = torch.cat([*views, prototypes]), torch.cat([labels, labels, torch.arange(4)])
    expected = []
    for i in range(12):
        others = torch.arange(16) != i
        scores = (v[i] @ v[others].T / tau)[None]
        numerator = scores[0, y[others] == y[i]].mean()[None]
        expected.append(cross_entropy_with_numerator(numerator, class_log_mean_exp(scores, y[others], 4)))
    torch.testing.assert_close(bcl_loss(views, labels, prototypes, tau), torch.cat(expected).view(2, 6).mean(0))


def test_bcl_of_a_balanced_batch_is_supcon_with_prototypes_up_to_the_anchors_own_class():
    """With m contrasts of every class the class averages cancel but for the anchor, who is not among its own m."""
    labels, tau = torch.arange(4).repeat(3), 0.2
    views, prototypes = (unit(12, 5), unit(12, 5)), unit(4, 5)
    v, y = torch.cat([*views, prototypes]), torch.cat([labels, labels, torch.arange(4)])
    scores = v[:24] @ v.T / tau
    same, own = y[:24, None] == y, torch.eye(24, 28, dtype=torch.bool)
    m = 7
    weight = torch.where(same, m / (m - 1), 1.0).masked_fill(own, 0)
    supcon = (weight * scores.exp()).sum(1).log() - (scores * (same & ~own)).sum(1) / (m - 1)
    torch.testing.assert_close(bcl_loss(views, labels, prototypes, tau), (supcon - math.log(m)).view(2, 12).mean(0))


def test_bcls_gradient_reaches_the_head_through_the_prototypes():
    objective = bcl(COUNTS, 6, a=0.0).double()
    x = [torch.randn(5, 6, dtype=torch.float64) for _ in range(3)]
    objective(x[0], torch.tensor([0, 1, 2, 0, 1]), query=x[1], key=x[2]).per_sample.mean().backward()
    assert objective.likelihood.centres.grad.norm() > 0


def test_bcl_with_a_teacher_contrasts_with_its_features_through_an_mlp_of_its_own():
    objective = bcl(COUNTS, 6, key_dim=10, teacher=True).double()
    labels = torch.tensor([0, 1, 2, 0, 1])
    x, query, keys = (torch.randn(5, d, dtype=torch.float64) for d in (6, 6, 10))
    losses = objective(x, labels, query=query, keys=keys)
    views = objective.embed(query), objective.embed_key(keys)
    expected = bcl_loss(views, labels, objective.embed_class(objective.likelihood.centres), 0.1)
    torch.testing.assert_close(losses.parts["bcl"], expected.mean())


def paco_by_hand(logits, v_i, others, tau, alpha, beta=1.0, gamma=1.0, smooth=0.0):
    """One query. `logits` with prior; `others` are (feature, is of the query's class); the true class is 0."""
    e = [math.exp(z) for z in logits]
    contrast = [(math.exp(float(v_i @ k) / tau), same) for k, same in others]
    total = sum(e) + gamma * sum(x for x, _ in contrast)
    classes = len(logits)
    weights = [beta * (1 - smooth)] + [beta * smooth / (classes - 1)] * (classes - 1)
    attract = sum(w * math.log(x / total) for w, x in zip(weights, e, strict=True))
    attract += alpha * sum(math.log(x / total) for x, same in contrast if same)
    return -attract / (sum(weights) + alpha * sum(same for _, same in contrast))


def test_paco_is_its_equation():
    torch.manual_seed(1)
    objective = paco(COUNTS, 6, k=8, tau=0.3, alpha=0.07).double()
    labels = torch.tensor([1, 0, 1])
    for first in (0, 3):  # six keys of eight rows: two stay empty
        objective.enqueue(torch.randn(3, 6, dtype=torch.float64), labels, torch.arange(3) + first)
    x = torch.randn(3, 6, dtype=torch.float64)
    losses = objective(x, labels, torch.arange(3) + 3)
    queries, queue = objective.embed_query(x).detach(), objective.queue
    logits = (objective.scores(x) + objective.log_added).detach()
    for i in range(3):
        others = [(queries[j], bool(labels[j] == labels[i])) for j in range(3) if j != i]
        others += [(queue.features[j], bool(queue.labels[j] == labels[i])) for j in range(6)]
        order = [int(labels[i]), *(c for c in range(4) if c != labels[i])]
        expected = paco_by_hand(logits[i, order].tolist(), queries[i], others, 0.3, 0.07)
        assert losses.per_sample[i].item() == pytest.approx(expected, rel=1e-6)


def test_paco_without_contrasts_is_balanced_softmax():
    plain, parametric = balanced_softmax(COUNTS, 6).double(), paco(COUNTS, 6, k=8, alpha=0.0, gamma=0.0).double()
    parametric.likelihood.load_state_dict(plain.likelihood.state_dict())
    x, labels = torch.randn(7, 6, dtype=torch.float64), torch.arange(7) % 4
    parametric.enqueue(torch.randn(7, 6, dtype=torch.float64), labels, torch.arange(7))
    torch.testing.assert_close(
        parametric(x, labels, torch.arange(7)).per_sample, plain(x, labels).per_sample, rtol=1e-12, atol=1e-12
    )


def test_pacos_smoothing_spreads_over_the_wrong_centres():
    logits, queries = torch.randn(1, 4, dtype=torch.float64), unit(1, 5)
    keys, labels_k = unit(6, 5), torch.tensor([0, 1, 0, 2, 3, 3])
    found = parametric_contrast(
        logits,
        queries @ keys.T / 0.2,
        torch.ones(1, 6, dtype=torch.bool),
        (labels_k == 0)[None],
        torch.tensor([0]),
        alpha=0.05,
        beta=0.9,
        gamma=0.5,
        smooth=0.1,
    )
    others = [(keys[j], bool(labels_k[j] == 0)) for j in range(6)]
    assert found.item() == pytest.approx(paco_by_hand(logits[0].tolist(), queries[0], others, 0.2, 0.05, 0.9, 0.5, 0.1))


def test_gpaco_has_both_views_as_anchors_and_remembers_the_second():
    torch.manual_seed(1)
    objective = gpaco(COUNTS, 6, k=8, tau=0.3).double()
    labels, ids = torch.tensor([2, 0, 2]), torch.arange(3)
    first, second = (torch.randn(3, 6, dtype=torch.float64) for _ in range(2))
    objective(first, labels, ids, key=second)
    torch.testing.assert_close(objective.queue.features[:3], F.normalize(objective.embed(second), dim=1).detach())
    assert objective.queue.labels.tolist() == [2, 0, 2, -1, -1, -1, -1, -1]

    remembered = objective.queue.features[:3].clone()
    x = [torch.randn(3, 6, dtype=torch.float64) for _ in range(2)]
    losses = objective(x[0], labels, ids, key=x[1])
    both = torch.cat(x)
    v, y = F.normalize(objective.embed(both), dim=1).detach(), labels.repeat(2)
    logits, expected = (objective.scores(both) + objective.log_added).detach(), []
    for i in range(6):
        others = [(v[j], bool(y[j] == y[i])) for j in range(6) if j != i]
        others += [(remembered[j], bool(labels[j] == y[i])) for j in range(3)]
        order = [int(y[i]), *(c for c in range(4) if c != y[i])]
        expected.append(paco_by_hand(logits[i, order].tolist(), v[i], others, 0.3, 0.05))
    for i in range(3):
        assert losses.per_sample[i].item() == pytest.approx((expected[i] + expected[i + 3]) / 2, rel=1e-6)


def test_moco_is_its_equation_without_the_querys_own_older_keys():
    torch.manual_seed(1)
    objective = moco(COUNTS, 6, k=16, tau=0.3).double()
    labels = torch.zeros(4, dtype=torch.int64)
    objective.enqueue(torch.randn(4, 6, dtype=torch.float64), labels, torch.tensor([0, 1, 2, 3]))
    objective.enqueue(torch.randn(4, 6, dtype=torch.float64), labels, torch.tensor([2, 3, 4, 5]))
    x, ids = torch.randn(4, 6, dtype=torch.float64), torch.tensor([2, 3, 4, 5])
    losses = objective(x, labels, ids)
    q, queue = objective.embed_query(x).detach(), objective.queue
    for i in range(4):
        own = math.exp(float(q[i] @ queue.features[4 + i]) / 0.3)
        negatives = [math.exp(float(q[i] @ queue.features[j]) / 0.3) for j in range(8) if queue.ids[j] != ids[i]]
        assert losses.per_sample[i].item() == pytest.approx(-math.log(own / (own + sum(negatives))), rel=1e-6)


def test_the_keys_projection_follows_the_querys():
    objective = moco(COUNTS, 6, m=0.9)
    before = objective.embed_key.hidden.weight.clone()
    with torch.no_grad():
        objective.embed_query.hidden.weight += 1
    objective.after_step()
    torch.testing.assert_close(objective.embed_key.hidden.weight, before + 0.1)
    assert not any(p.requires_grad for p in objective.embed_key.parameters())
