"""The losses of pixels against loops over pixels, and against what they must equal in special cases."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from longtail.errors import LongtailError
from longtail.methods.method import Method
from longtail.models.teacher import Teacher
from longtail.prior import log_prior
from longtail.segmentation import objective as objectives
from longtail.segmentation.networks import resize
from longtail.segmentation.objective import PerPixel, score_map
from longtail.template import class_log_mean_exp
from longtail.types import Batch

C, D, H, W = 4, 6, 12, 16
COUNTS = [5000, 900, 90, 10]
GML = {"k": 64, "k_m": 4, "tau_s": 0.05, "tau_g": 0.07}


def example(seed=0, batch=3):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(batch, D, 3, 4, generator=generator)
    labels = torch.randint(0, C, (batch, H, W), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) < 0.2] = -100
    return features, labels, torch.arange(batch) + 40


def built(method, settings=None, **options):
    torch.manual_seed(1)
    return objectives.build(method, COUNTS, D, {**(GML if method == "gml" else {}), **(settings or {})}, **options)


@pytest.mark.parametrize(
    ("method", "alpha"), [("cross_entropy", 0.0), ("logit_adjusted", 1.0), ("logit_adjusted", 0.3)]
)
def test_class_loss_is_the_mean_over_pixels(method, alpha):
    losses = built(method, {} if method == "cross_entropy" else {"tau": alpha})
    features, labels, ids = example()
    scores = resize(score_map(losses.likelihood, features), (H, W)).double()
    log_p = torch.tensor(COUNTS, dtype=torch.float64).div(sum(COUNTS)).log()
    expected = torch.zeros(3, dtype=torch.float64)
    for b in range(3):
        for y in range(H):
            for x in range(W):
                if labels[b, y, x] >= 0:
                    logits = scores[b, :, y, x] + alpha * log_p
                    expected[b] -= logits.log_softmax(0)[labels[b, y, x]] / (H * W)
    assert torch.allclose(losses(features, labels, ids).per_sample.double(), expected, atol=1e-5)


def test_every_labelled_pixel_weighs_the_same():
    """Halving an image's labels halves its loss: no crop's pixels count for more because others are void."""
    losses = built("cross_entropy")
    features = torch.randn(1, D, 1, 1).expand(1, D, 3, 4)  # the same at every place
    labels = torch.ones(1, H, W, dtype=torch.int64)
    whole = losses(features, labels, torch.zeros(1)).per_sample
    labels[:, : H // 2] = -100
    assert torch.allclose(losses(features, labels, torch.zeros(1)).per_sample, whole / 2)


@pytest.mark.parametrize("method", ["cross_entropy", "gml"])
def test_any_negative_label_is_none(method):
    losses = built(method)
    features, labels, ids = example()
    if method == "gml":
        filled(losses)
    found = []
    for nothing in (-100, -1):
        torch.manual_seed(0)
        found.append(losses(features, torch.where(labels < 0, nothing, labels), ids).per_sample)
    assert torch.equal(*found)


def filled(losses, n=400, seed=3):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, C, (n,), generator=generator)
    losses.inner.enqueue(torch.randn(n, D, generator=generator), labels, torch.arange(n))
    return losses


@pytest.mark.parametrize("alpha", [0.0, 0.2, 1.0])
def test_contrast_is_the_papers_at_the_drawn_pixels(alpha, monkeypatch):
    losses = filled(built("gml", {"alpha": alpha, "alpha_cls": 0.5}, queries=11)).eval()
    features, labels, ids = example()
    pixels = torch.stack([torch.randint(0, H * W, (11,)) for _ in range(3)])
    known = [row[pixel] for row, pixel in zip(labels.flatten(1), pixels, strict=True)]
    labels.view(3, -1).scatter_(1, pixels, torch.stack(known).clamp(min=0))  # drawn pixels have a label
    monkeypatch.setattr(objectives, "draw", lambda weights, n: pixels)
    found = losses(features, labels, ids)

    gml = losses.inner
    query = resize(features, (H, W)).flatten(2).transpose(1, 2).gather(1, pixels[..., None].expand(-1, -1, D))
    similar = gml.embed_query(query.flatten(0, 1)) @ gml.embed_key(gml.bank.features).T / 0.07
    loglik = class_log_mean_exp(similar, gml.bank.segments.class_of_row, C)
    log_p = torch.tensor(COUNTS).div(sum(COUNTS)).log()
    each = F.cross_entropy(loglik + alpha * log_p, labels.flatten(1).gather(1, pixels).flatten(), reduction="none")
    share = (labels >= 0).float().mean((1, 2))
    cls = F.cross_entropy(
        resize(score_map(gml.likelihood, features), (H, W)) + 0.5 * log_p[:, None, None], labels, reduction="none"
    )
    assert torch.allclose(found.per_sample, cls.mean((1, 2)) + each.view(3, 11).mean(1) * share, atol=1e-4)
    assert found.parts["gml"].item() == pytest.approx(each.mean().item(), rel=1e-4)


def test_prior_of_the_contrast_is_the_mass_it_sees():
    """Queries are drawn as the labels are: their class mix is the prior that alpha multiplies."""
    losses = filled(built("gml", queries=4000))
    labels = torch.full((1, H, W), -100)
    labels[0, :9], labels[0, 9], labels[0, 10, :4] = 0, 1, 2
    seen = []
    losses.inner.contrast = lambda query, labels, ids: (seen.append(labels), (torch.zeros(len(labels)), {}))[1]
    losses(torch.randn(1, D, 3, 4), labels, torch.zeros(1, dtype=torch.int64))
    mix = torch.bincount(seen[0], minlength=C) / 4000
    assert torch.allclose(mix, torch.tensor([9 * W, W, 4, 0]) / (10 * W + 4), atol=0.03)


def test_keys_are_pixels_of_the_key_encoder_under_their_own_labels_and_image():
    losses = built("gml", keys=50)
    _, labels, ids = example()
    maps = F.one_hot(labels.clamp(min=0), C).permute(0, 3, 1, 2).float()  # features that say their class
    maps = torch.cat([maps, ids[:, None, None, None].expand(-1, 1, H, W).float(), torch.zeros(3, 1, H, W)], 1)
    losses.enqueue(torch.cat([maps, torch.zeros(3, 2, H, W)], 1), labels, ids)  # an auxiliary head's channels behind
    bank = losses.inner.bank
    rows = bank.features[bank.filled]
    assert len(rows) > 40
    assert torch.equal(rows[:, :C].argmax(1), bank.segments.class_of_row[bank.filled])
    assert torch.equal(rows[:, C].long(), bank.ids[bank.filled])


def test_images_without_labels():
    losses = built("gml")
    features, labels, ids = example()
    labels[:] = -100
    losses.enqueue(torch.randn(3, D, H, W), labels, ids)
    assert not losses.inner.bank.any_filled
    filled(losses)
    features.requires_grad_()
    found = losses(features, labels, ids).per_sample
    assert found.tolist() == [0, 0, 0]
    found.sum().backward()
    assert features.grad.abs().max() == 0


def test_a_class_without_keys_and_a_class_without_pixels():
    torch.manual_seed(0)
    counts = [5000, 900, 90, 0]  # the last class has no pixel in training
    losses = objectives.build("gml", counts, D, GML, auxiliary_dim=D, queries=200)
    features, labels, ids = example()
    features = torch.cat([features, features], 1).requires_grad_()
    labels[labels == 3] = 2
    losses.inner.enqueue(
        torch.randn(40, D), torch.zeros(40, dtype=torch.int64), torch.arange(40)
    )  # keys of class 0 alone
    found = losses(features, labels, ids)
    found.per_sample.mean().backward()
    assert found.per_sample.isfinite().all()
    assert features.grad.isfinite().all()


def test_auxiliary_head_has_its_share_of_the_channels_and_the_loss():
    losses = built("logit_adjusted", auxiliary_dim=2, auxiliary_weight=0.4)
    features, labels, ids = example()
    alone = built("logit_adjusted")
    alone.inner.load_state_dict(losses.inner.state_dict())
    rest = torch.randn(3, 2, 3, 4)
    both = losses(torch.cat([features, rest], 1), labels, ids)
    main = alone(features, labels, ids)
    assert torch.allclose(both.per_sample.mean(), main.parts["cls"] + 0.4 * both.parts["aux"])
    assert torch.equal(losses.scores(features), alone.scores(features))


def test_alpha_changes_the_prior_and_nothing_else():
    """The class loss follows alpha_cls; the answer's prior-free form takes out exactly what training left in."""
    losses = built("gml", {"alpha": 0.2, "alpha_cls": 0.2})
    assert torch.allclose(losses.log_added, 0.2 * log_prior(COUNTS))
    method = Method(torch.nn.Identity(), losses).eval()
    features, _, _ = example()
    expected = losses.scores(features) - 0.8 * log_prior(COUNTS)[:, None, None]
    assert torch.allclose(method.loglik(features), expected, atol=1e-6)


def test_a_step_with_a_teacher():
    """Through the ordinary method: a teacher's keys enter before the batch is scored."""
    torch.manual_seed(0)
    backbone, frozen = torch.nn.Conv2d(3, D, 4, stride=4), torch.nn.Conv2d(3, 5, 2, stride=2)
    frozen.dim = 5
    losses = objectives.build("gml", COUNTS, D, GML, key_dim=5)
    method = Method(backbone, losses, Teacher(frozen, PerPixel(torch.nn.Linear(5, C), 5)))
    assert method.views == ("image", "key")
    _, labels, ids = example()
    images = torch.randn(3, 3, H, W)
    found = method(Batch((images, images), labels, ids))
    assert set(found.parts) == {"cls", "gml"}
    found.per_sample.mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in backbone.parameters())
    assert all(p.grad is None for p in frozen.parameters())
    assert np.isin(losses.inner.bank.ids[losses.inner.bank.filled].numpy(), ids.numpy()).all()


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("gmm", {}, "segmentation has no method 'gmm'; did you mean 'gml'"),
        ("ncm", {}, "segmentation has no method 'ncm'"),
        ("gml", {"bank": "full"}, "no full bank"),
        ("gml", {"kd_weight": 1.0}, "no distillation"),
        ("gml", {"keys_of": "class"}, "leave keys_of, mixup and both_views out"),
        ("gml", {"both_views": True}, "leave keys_of, mixup and both_views out"),
        ("gml", {"k": 64, "k_m": 27}, "cannot hold k_m=27 rows for each of 4 classes"),
    ],
)
def test_what_pixels_cannot_have(method, settings, message):
    with pytest.raises(LongtailError, match=message):
        objectives.build(method, COUNTS, D, settings)
