"""What every row of METHODS must do, whatever it is: a new row is tested by being there."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from squares import squares

import longtail.methods
from longtail.data.table import ImageTable
from longtail.engine import stages, trained
from longtail.engine.device import choose
from longtail.engine.logs import Progress
from longtail.errors import LongtailError
from longtail.methods import METHODS, build_objective, find, settings_of
from longtail.methods.method import Method
from longtail.models.backbone import SmallConvNet
from longtail.models.teacher import Teacher
from longtail.prior import log_prior
from longtail.recipe import Data, Optim, Recipe, Stage
from longtail.recipes.derive import derive
from longtail.types import Batch

COUNTS = [24, 12, 6, 1]
SMALL = {"k": 32, "k_m": 2, "embed": 8}  # where a method has them


@pytest.mark.parametrize("name", METHODS)
def test_its_objective_has_its_name_and_is_no_module(name):
    assert getattr(longtail.methods, name) is METHODS[name].objective


def settings(name: str) -> dict:
    return {key: value for key, value in SMALL.items() if key in settings_of(name)}


# Methods that read sentences have tests of their own, under vision_language.
OF_IMAGES = [name for name, row in METHODS.items() if "text" not in row.samples and "sentences" not in row.samples]


def base(name: str) -> Stage:
    optim = Optim(lr=0.05)
    return Stage(
        method=name, model="small", epochs=1, batch_size=16, settings=settings(name), optim=optim, augment="weak"
    )


def trained_stage(name: str) -> Stage:
    """The stage of a method that trains its own objective; for a post-hoc one there is none."""
    return next(stage for stage in METHODS[name].stages(base(name)) if stage.method == name)


TRAINED = [name for name in OF_IMAGES if trained_stage(name).epochs]


@pytest.fixture(scope="module")
def table() -> ImageTable:
    return squares(COUNTS)


def build(name: str) -> Method:
    torch.manual_seed(0)
    stage = trained_stage(name)
    backbone = SmallConvNet(8)
    objective = build_objective(name, COUNTS, backbone.dim, stage.settings, backbone.dim)
    key_encoder = None
    if stage.keys == "momentum":
        key_encoder = stages.MomentumEncoder(backbone, objective.likelihood)
    elif stage.keys:
        teacher = build_objective("logit_adjusted", COUNTS, backbone.dim, {})
        key_encoder = Teacher(SmallConvNet(8), teacher.likelihood)
    method = Method(backbone, objective, key_encoder)
    everything = torch.arange(sum(COUNTS))
    method.eval().prepare([Batch((images(everything),), torch.repeat_interleave(torch.tensor(COUNTS)), everything)])
    return method.train()


def images(ids: torch.Tensor) -> torch.Tensor:
    return torch.randn(len(ids), 3, 8, 8, generator=torch.Generator().manual_seed(int(ids.sum())))


def batch_of(method: Method, rows: int, first: int = 0) -> Batch:
    ids = (torch.arange(rows) + first) * 3 % sum(COUNTS)
    labels = torch.repeat_interleave(torch.tensor(COUNTS))[ids]
    return Batch(tuple(images(ids + view) for view, _ in enumerate(method.views)), labels, ids)


def one_step(method: Method, batch: Batch, optimiser: torch.optim.Optimizer | None = None) -> torch.Tensor:
    torch.manual_seed(int(batch.ids[0]))
    losses = method(batch)
    losses.per_sample.mean().backward()
    if optimiser is not None:
        optimiser.step()
        optimiser.zero_grad()
    method.after_step()
    return losses.per_sample.detach()


def sgd(method: Method) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.05)


@pytest.mark.parametrize("name", OF_IMAGES)
def test_trains_answers_and_comes_back_from_disk(name, table, tmp_path, monkeypatch):
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))
    recipe = Recipe(Data("squares"), METHODS[name].stages(base(name)), precision="float32")
    place = choose("float32", "cpu")
    finished = stages.run(recipe, table, tmp_path / "run", place, progress=Progress(open("/dev/null", "w")))  # noqa: SIM115
    assert [bool(stage.summary) for stage in finished] == [stage.answers for stage in recipe.stages]
    if recipe.stages[-1].answers:
        assert 0 <= finished[-1].summary["accuracy"] <= 1
        model, x = trained.load(tmp_path / "run"), images(torch.arange(5))
        assert model(x).shape == (5, 4)
        assert model(x).isfinite().all()
        assert model.scores(x).isfinite().all()


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_losses_and_gradients_are_finite(name, rows, dtype):
    """One sample; more of a class than a queue holds; a class of one image; bfloat16; the first and the second step."""
    method = build(name)
    for first in (0, 1):
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            if rows == 1:  # BatchNorm of the backbone has no statistics of one image
                method.backbone.eval()
            losses = one_step(method, batch_of(method, rows, first))
        assert losses.shape == (rows,)
        assert losses.isfinite().all()
        for parameter, value in method.named_parameters():
            assert value.grad is None or value.grad.isfinite().all(), parameter


@pytest.mark.parametrize("name", TRAINED)
def test_what_is_logged_is_named_detached_and_scalar(name):
    losses = build(name)(batch_of(build(name), 12))
    assert losses.parts
    assert all(part.shape == () and not part.requires_grad for part in losses.parts.values())
    assert losses.per_sample.requires_grad


@pytest.mark.parametrize("name", TRAINED)
def test_a_restored_state_takes_the_very_same_step(name):
    """Queues, running statistics, memories and moving averages are all in the state."""
    method = build(name)
    optimiser = sgd(method)
    for first in range(3):
        one_step(method, batch_of(method, 12, first), optimiser)
    state = copy.deepcopy(method.resume_state())
    restored = build(name)
    if hasattr(restored, "key_encoder") and method.key_encoder is not None:
        restored.key_encoder = copy.deepcopy(method.key_encoder)
    restored.load_resume_state(state)
    for first in (3, 4):
        batch = batch_of(method, 12, first)
        ours, theirs = one_step(method, batch, optimiser), one_step(restored, batch, sgd(restored))
        torch.testing.assert_close(theirs, ours, rtol=0, atol=0)


@pytest.mark.parametrize("name", OF_IMAGES)
def test_what_was_added_and_what_mass_was_seen_are_vectors_over_the_classes(name):
    objective = build_objective(name, [*COUNTS, 0], 16, settings(name), 16)
    for vector in (objective.log_added, objective.log_mass):
        assert vector.shape == (5,)
        assert vector[:4].isfinite().all()
    assert objective.log_mass[:4].exp().sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", OF_IMAGES)
def test_class_weights_and_samplers_both_count_as_class_mass(name, table, tmp_path):
    """Under a balanced sampler the mass of a method without weights is uniform."""
    stage = replace(trained_stage(name), start_from="", keys="", epochs=1)
    plain = stages.build_method(replace(stage, sampler="instance"), table, tmp_path).objective.log_mass
    balanced = stages.build_method(replace(stage, sampler="class-balanced"), table, tmp_path).objective.log_mass
    torch.testing.assert_close(balanced - plain, log_prior([1, 1, 1, 1]) - log_prior(COUNTS))


@pytest.mark.parametrize("name", OF_IMAGES)
def test_an_unknown_setting_is_answered_with_the_nearest(name):
    known = settings_of(name)
    wrong = next(iter(known), "tau") + "x"
    with pytest.raises(LongtailError, match=f"has no setting '{wrong}'"):
        build_objective(name, COUNTS, 8, {wrong: 1})


def test_an_unknown_method_is_answered_with_the_nearest():
    with pytest.raises(LongtailError, match="did you mean 'ldam_drw'"):
        find("ldam")


@pytest.mark.parametrize("name", METHODS)
def test_a_row_names_itself_and_fills_its_columns(name):
    row = METHODS[name]
    assert row.name == name
    assert all([row.paper, row.likelihood, row.samples, row.prior, row.numerator, row.weight])
    assert row.stages(base(name))[-1].answers or name == "vl_ltr_contrast"


def test_the_first_stage_of_decoupled_methods_is_trained_once(table, tmp_path, monkeypatch):
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))
    place, reused = choose("float32", "cpu"), []
    for name in ("crt", "lws", "tau_norm", "ncm", "posthoc_adjusted"):
        recipe = Recipe(Data("squares"), METHODS[name].stages(base(name)), precision="float32")
        quiet = Progress(open("/dev/null", "w"))  # noqa: SIM115
        reused.append(stages.run(recipe, table, tmp_path / name, place, progress=quiet)[0].reused)
    assert reused == [False, True, True, True, True]


@pytest.mark.parametrize("name", ["crt", "lws", "tau_norm", "ncm", "posthoc_adjusted", "supcon", "moco"])
def test_a_finished_run_stands_in_for_the_first_stage(name):
    data, counts = Data("cifar100-lt"), np.array(COUNTS)
    both, _ = derive(data, counts, 32, method=name)
    alone, _ = derive(data, counts, 32, method=name, first_stage="runs/first")
    assert alone.stages == (replace(both.stages[-1], start_from="runs/first"),)


@pytest.mark.parametrize("name", ["cross_entropy", "gml", "kd"])
def test_a_method_that_starts_from_nothing_takes_no_first_stage(name):
    with pytest.raises(LongtailError, match="no stage that starts from an earlier one"):
        derive(Data("cifar100-lt"), np.array(COUNTS), 32, method=name, first_stage="runs/first")
