"""Runs on the digits: resumed to the bit, repeated to the bit, and leaving nothing behind when refused."""

import json
from dataclasses import replace
from io import StringIO

import pytest
import torch

from longtail.engine import device as devices
from longtail.engine import stages, trained
from longtail.engine.inputs import Inputs
from longtail.engine.logs import Progress
from longtail.engine.loop import Interrupted, split
from longtail.engine.preflight import preflight
from longtail.errors import LongtailError
from longtail.prior import prior_free
from longtail.recipe import Data, Optim, Recipe, Stage
from longtail.types import Batch

CPU = devices.choose("float32", "cpu")
SMALL = Stage(model="small", epochs=3, batch_size=64, augment="shift", optim=Optim(lr=0.05), method="logit_adjusted")
GML = replace(SMALL, method="gml", settings={"k": 64, "kd_weight": 1.0, "learn_tau": True})


@pytest.fixture(scope="module")
def digits():
    return stages.load_data(Data("digits-lt", imbalance=50))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))


def two_stages(stage: Stage = GML) -> tuple[Stage, ...]:
    return replace(SMALL, name="teacher"), replace(stage, name="student", keys="teacher")


def run(table, folder, *run_stages, stop_after=None, seed=0, use_cache=False):
    steps = iter(range(10**9))

    def stop_requested():
        return 15 if stop_after is not None and next(steps) >= stop_after else None

    recipe = Recipe(Data("digits-lt", imbalance=50), run_stages, seed=seed, evaluate_every=2)
    return stages.run(
        recipe, table, folder, CPU, progress=Progress(StringIO()), stop_requested=stop_requested, use_cache=use_cache
    )


def inputs_of(table):
    return Inputs.of(Recipe(Data("digits-lt"), (SMALL,)), table, CPU)


def weights(folder):
    return trained.load(folder).method.state_dict()


def rows(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in ("seconds", "images_per_second")} for row in lines]


@pytest.mark.parametrize("keys", ["teacher", "momentum"])
@pytest.mark.parametrize("stop_after", [1, 5, 9])
def test_a_stopped_run_carries_on_to_the_bit(digits, tmp_path, keys, stop_after):
    chosen = two_stages() if keys == "teacher" else (replace(GML, keys="momentum"),)
    run(digits, tmp_path / "straight", *chosen)
    with pytest.raises(Interrupted):
        run(digits, tmp_path / "stopped", *chosen, stop_after=stop_after)
    run(digits, tmp_path / "stopped", *chosen)
    torch.testing.assert_close(weights(tmp_path / "stopped"), weights(tmp_path / "straight"), rtol=0, atol=0)
    assert rows(tmp_path / "stopped") == rows(tmp_path / "straight")
    assert [row["epoch"] for row in rows(tmp_path / "stopped")] == [1, 2, 3]
    assert not (tmp_path / "stopped" / "state").exists()


def test_the_same_seed_gives_the_same_bits_and_another_does_not(digits, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(digits, tmp_path / name, SMALL, seed=seed)
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    assert rows(tmp_path / "a") != rows(tmp_path / "c")


def test_a_full_bank_holds_every_training_image(digits, tmp_path):
    full = replace(GML, settings={"bank": "full"})
    finished = run(digits, tmp_path / "run", *two_stages(full))
    assert finished[-1].summary["accuracy"] > 0.1
    recipe_student = replace(full, name="student", keys="teacher")
    method = stages.build_method(recipe_student, digits, tmp_path / "run")
    inputs = inputs_of(digits)
    method.eval().prepare(inputs.plain("train").epoch(0))
    assert sorted(method.objective.bank.ids.tolist()) == digits.rows("train").tolist()
    assert method.views == ("class", "query")


def test_a_teacher_is_trained_once(digits, tmp_path):
    first = run(digits, tmp_path / "first", *two_stages(), use_cache=True)
    again = run(digits, tmp_path / "again", *two_stages(replace(GML, settings={"k": 32})), use_cache=True)
    other = run(digits, tmp_path / "other", *two_stages(), use_cache=True, seed=1)
    assert [stage.reused for stage in first + again + other] == [False, False, True, False, False, False]
    torch.testing.assert_close(weights(tmp_path / "again/teacher"), weights(tmp_path / "first/teacher"), rtol=0, atol=0)


def test_preflight_changes_nothing(digits, tmp_path):
    run(digits, tmp_path, *two_stages())
    method = stages.build_method(replace(GML, keys="teacher"), digits, tmp_path)
    inputs = inputs_of(digits)
    loader = inputs.train(GML, method.views)
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    random_state = torch.get_rng_state()
    preflight(GML, method, loader, inputs.plain("test"), CPU, tmp_path)
    torch.testing.assert_close(method.state_dict(), before, rtol=0, atol=0)
    assert torch.get_rng_state().equal(random_state)
    assert not list(tmp_path.glob("*.tmp"))


def test_preflight_stops_a_loss_that_is_not_a_number(digits, tmp_path):
    method = stages.build_method(SMALL, digits, tmp_path)
    with torch.no_grad():
        method.objective.likelihood.centres.fill_(float("nan"))
    inputs = inputs_of(digits)
    with pytest.raises(LongtailError, match="the loss of the first batch is nan"):
        preflight(SMALL, method, inputs.train(SMALL, method.views), inputs.plain("test"), CPU, tmp_path)


def test_a_diverging_run_names_step_and_batch(digits, tmp_path):
    wild = replace(SMALL, method="cross_entropy", model="small_no_norm", epochs=20, optim=Optim(lr=1e5))
    with pytest.raises(LongtailError, match=r"not finite in epoch \d+ at step \d+"):
        run(digits, tmp_path, wild)
    assert json.loads((tmp_path / "nonfinite.json").read_text())["ids"]


def test_a_teacher_of_another_class_list_is_refused(digits, tmp_path):
    run(digits, tmp_path / "teacher", SMALL)
    renamed = replace(digits, classes=tuple(f"digit {c}" for c in digits.classes))
    with pytest.raises(LongtailError, match="differ first at number 0"):
        run(renamed, tmp_path / "student", replace(GML, keys=str(tmp_path / "teacher")))


def test_a_saved_model_answers_as_the_trained_one_did(digits, tmp_path):
    finished = run(digits, tmp_path, replace(SMALL, method="cross_entropy"))[-1]
    model = trained.load(tmp_path)
    test = inputs_of(digits).plain("test")
    counted = stages.count(model.scores, test, 10, CPU)
    assert counted.correct.sum() / counted.n.sum() == pytest.approx(finished.summary["accuracy"])
    images = next(iter(test.epoch(0))).views[0]
    objective = model.method.objective
    expected = prior_free(model.scores(images), objective.log_mass, objective.log_added)
    torch.testing.assert_close(model(images), expected)
    assert model.classes == digits.classes


def test_accumulation_gives_the_gradient_of_the_whole_batch(digits, tmp_path):
    """Exactly so where no batch statistics and no contrast couple the samples."""
    plain = replace(SMALL, model="small_no_norm", method="cross_entropy", epochs=1)
    run(digits, tmp_path / "whole", plain)
    run(digits, tmp_path / "parts", replace(plain, accumulate=3))
    torch.testing.assert_close(weights(tmp_path / "parts"), weights(tmp_path / "whole"), rtol=1e-4, atol=1e-6)


def test_split_loses_no_sample():
    batch = Batch((torch.arange(10),), torch.arange(10), torch.arange(10))
    assert torch.cat([part.ids for part in split(batch, 3)]).equal(batch.ids)


def test_only_the_head_learns_where_that_is_asked(digits, tmp_path):
    run(digits, tmp_path / "features", SMALL)
    head = replace(SMALL, trains="head", start_from=str(tmp_path / "features"), sampler="class-balanced")
    run(digits, tmp_path / "head", head)
    before, after = weights(tmp_path / "features"), weights(tmp_path / "head")
    for name in before:
        if name.startswith("backbone."):
            assert before[name].equal(after[name]), name
    assert trained.load(tmp_path / "head").method.objective.log_mass.unique().numel() == 1
