"""What may be switched on beside the published methods; off, nothing changes."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from squares import squares

from longtail.engine import stages, trained
from longtail.engine.device import choose
from longtail.engine.inputs import Inputs
from longtail.engine.logs import Progress
from longtail.errors import LongtailError
from longtail.likelihood.vmf import concentration, vmf_loglik
from longtail.losses.mixup import mixed
from longtail.methods import cross_entropy, gml
from longtail.methods.method import Method
from longtail.models.backbone import SmallConvNet
from longtail.recipe import Data, Optim, Recipe, Stage
from longtail.recipes.derive import derive
from longtail.template import add_prior
from longtail.types import Batch

COUNTS = [40, 20, 9, 3]
LABELS = torch.tensor([0, 0, 0, 0, 1, 1, 2, 3])


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def step(objective, features, **extras):
    return objective(features, LABELS, torch.arange(8), keys=torch.ones(8, 6) * LABELS[:, None] + 0.1, **extras)


def test_the_class_loss_of_both_views_is_their_mean():
    objective = gml(COUNTS, 6, k=16, both_views=True)
    first, second = torch.randn(8, 6), torch.randn(8, 6)
    each = [
        F.cross_entropy(objective.scores(x) + objective.log_added, LABELS, reduction="none") for x in (first, second)
    ]
    torch.testing.assert_close(step(objective, first, query=second).parts["cls"], (sum(each) / 2).mean())


def test_a_class_with_few_keys_has_its_closed_form_and_the_others_their_mixture():
    plain, fitted = gml(COUNTS, 6, k=16).eval(), gml(COUNTS, 6, k=16, vmf_below=3).eval()
    fitted.load_state_dict(plain.state_dict())
    for objective in (plain, fitted):
        objective.enqueue(torch.arange(48.0).reshape(8, 6).sin(), LABELS, torch.arange(8))
    query = torch.randn(5, 6)
    mixture, both = plain.kernel_loglik(query), fitted.kernel_loglik(query)
    assert fitted.bank.filled_counts().tolist() == [4, 2, 1, 1]
    torch.testing.assert_close(both[:, 0], mixture[:, 0])
    keys, z = fitted.embed_key(fitted.bank.features), fitted.embed_query(query)
    for label in (1, 2, 3):
        rows = (fitted.bank.segments.class_of_row == label) & fitted.bank.filled
        expected = vmf_loglik(z, concentration(keys[rows].mean(0)[None]), 0.1)[:, 0]
        torch.testing.assert_close(both[:, label], expected)


def test_the_closed_form_has_a_gradient_to_query_and_keys_and_none_to_the_temperature():
    objective = gml(COUNTS, 6, k=16, vmf_below=100, learn_tau=True)
    features = torch.randn(8, 6, requires_grad=True)
    losses = step(objective, features)
    losses.per_sample.mean().backward()
    assert features.grad.norm() > 0
    assert objective.embed_key.out.weight.grad.norm() > 0
    assert all(p.grad is None or p.grad.isfinite().all() for p in objective.parameters())


def test_mixing_makes_one_proportion_of_images_and_of_labels():
    images, labels = torch.randn(6, 3, 4, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    mixed_images, target = mixed(images, labels, 4, alpha=1.0)
    torch.testing.assert_close(target.sum(1), torch.ones(6))
    share = target.gather(1, labels[:, None])
    found = [
        (i, j)
        for i in range(6)
        for j in range(6)
        if torch.allclose(mixed_images[i], images[i].lerp(images[j], float(1 - share[i])), atol=1e-5)
        or (labels[i] == labels[j] and share[i] == 1)
    ]
    assert {i for i, _ in found} == set(range(6))


def test_the_teacher_sees_the_mixed_class_view_and_the_contrast_views_stay_as_they_are():
    objective = gml(COUNTS, 64, k=16, mixup=1.0, kd_weight=1.0)
    seen = []

    class Watch(torch.nn.Module):
        momentum = False

        def forward(self, images):
            seen.append(images)
            return torch.randn(len(images), 64), torch.randn(len(images), 4)

    method = Method(SmallConvNet(32), objective, Watch())
    views = tuple(torch.randn(8, 3, 8, 8) for _ in range(3))
    losses = method(Batch(views, LABELS, torch.arange(8)))
    assert losses.per_sample.isfinite().all()
    assert not torch.equal(seen[0][:8], views[0])
    assert torch.equal(seen[0][8:], views[2])


def test_mixed_labels_take_the_place_of_the_labels():
    objective = cross_entropy(COUNTS, 6, mixup=0.4)
    features, target = torch.randn(8, 6), torch.rand(8, 4).softmax(1)
    expected = -(target * add_prior(objective.scores(features), objective.log_added).log_softmax(1)).sum(1)
    torch.testing.assert_close(objective(features, LABELS, target=target).per_sample, expected)


def test_averaged_weights_answer_and_are_what_is_saved(tmp_path):
    table, optim = squares(), Optim(lr=0.1)
    base = Stage(method="cross_entropy", model="small", epochs=2, batch_size=16, optim=optim, augment="none")
    place, quiet = choose("float32", "cpu"), Progress(io.StringIO())
    weights, accuracy = {}, {}
    for ema in (0.0, 0.9):
        recipe = Recipe(Data("squares"), (replace(base, ema=ema),), precision="float32", evaluate_every=2)
        finished = stages.run(recipe, table, tmp_path / str(ema), place, progress=quiet)
        model = trained.load(tmp_path / str(ema))
        weights[ema] = model.method.objective.likelihood.linear.weight
        per_class = stages.count(model.scores, Inputs.of(recipe, table, place).plain("test"), 4, place)
        accuracy[ema] = float(per_class.accuracy.mean())
        assert finished[0].summary["balanced_accuracy"] == pytest.approx(accuracy[ema])
    assert not torch.allclose(weights[0.0], weights[0.9])


def test_what_the_banks_answer_passes_through_is_averaged_too():
    method = Method(SmallConvNet(8), gml(COUNTS, 16, k=32))
    method.keep_average(0.5)
    before = method.objective.embed_key.state_dict()
    before = {name: value.clone() for name, value in before.items()}
    with torch.no_grad():
        for parameter in method.objective.parameters():
            parameter.add_(1.0)
    method.average.update()
    after = method.objective.embed_key.state_dict()
    with method.answering():
        for name, value in method.objective.embed_key.state_dict().items():
            if value.is_floating_point() and "running" not in name:
                assert (value - before[name] < 1).all()
                assert (value - before[name] > 0).all()
    assert all(torch.equal(after[name], value) for name, value in method.objective.embed_key.state_dict().items())


def test_a_momentum_encoder_takes_the_teachers_place_and_fills_no_full_bank():
    data, counts = Data("cifar100-lt"), np.array(COUNTS)
    recipe, _ = derive(data, counts, 32, method="gml", teacher="momentum")
    (stage,) = recipe.stages
    assert (stage.method, stage.keys) == ("gml", "momentum")
    full = replace(stage, model="small", settings={"k": 32, "bank": "full"})
    with pytest.raises(LongtailError, match="take bank=ring, or a teacher"):
        stages.check(Recipe(Data("squares"), (full,)), squares())
