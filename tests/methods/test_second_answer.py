"""The mixture over the bank and the average of both answers are measured beside the head's own."""

from dataclasses import replace

import pytest
import torch
from squares import squares

from longtail.contrast.bank import Bank
from longtail.data.splits import hold_out
from longtail.engine import second_answer, stages, trained
from longtail.engine.device import choose
from longtail.engine.inputs import Inputs
from longtail.engine.logs import Progress
from longtail.files import read_json
from longtail.prior import prior_free
from longtail.recipe import Data, Optim, Recipe, Stage

COUNTS = [24, 12, 6, 2]
PLACE = choose("float32", "cpu")


def gml(**more) -> Stage:
    settings = {"k": 32, "k_m": 2, "embed": 8}
    stage = Stage("train", "gml", settings, "small", epochs=1, batch_size=16, optim=Optim(lr=0.05), keys="momentum")
    return replace(stage, **more)


def run(table, folder, **more) -> stages.Finished:
    recipe = Recipe(Data("squares"), (gml(**more),), precision="float32")
    quiet = Progress(open("/dev/null", "w"))  # noqa: SIM115
    return stages.run(recipe, table, folder, PLACE, progress=quiet)[-1]


@pytest.mark.parametrize("with_val", [False, True])
def test_a_run_with_a_bank_has_three_answers(tmp_path, with_val):
    table = squares(COUNTS)
    if with_val:
        table, _ = hold_out(table, "val", 0.3)
    done = run(table, tmp_path)
    assert set(done.second) == {"kernel", "both"}
    assert read_json(tmp_path / "result.json")["second"] == done.second
    model = trained.load(tmp_path)
    assert ("kernel_weight" in model.card) == with_val
    weight = model.card.get("kernel_weight", 0.5)

    # The same by hand, from what was saved.
    images, labels = [], []
    for batch in Inputs.of(Recipe(Data("squares"), (gml(),)), table, PLACE).plain("test").epoch(0):
        images.append(batch.views[0])
        labels.append(batch.labels)
    truth, objective = torch.cat(labels), model.method.objective
    with torch.no_grad():
        features = model.method.backbone(torch.cat(images))
        kernel = objective.kernel_loglik(features)
        head = prior_free(objective.scores(features), objective.log_mass, objective.log_added)
    for name, scores in {"kernel": kernel, "both": (1 - weight) * head + weight * kernel}.items():
        accuracy = (scores.argmax(1) == truth).double().mean().item()
        assert done.second[name]["accuracy"] == pytest.approx(accuracy, abs=1e-9), name


def test_without_a_bank_or_a_head_there_is_none(tmp_path):
    table = squares(COUNTS)
    assert run(table, tmp_path / "plain", method="logit_adjusted", settings={}, keys="").second == {}
    encoder = gml(name="encoder", settings={"k": 32, "gamma": 0.0}, answers=False)
    assert run(table, tmp_path / "encoder", **{f: getattr(encoder, f) for f in ("settings", "answers")}).second == {}


def test_a_class_of_which_the_bank_holds_nothing_is_the_heads_alone():
    cosine, kernel = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, -torch.inf]])
    for weight, first in ((0.0, 1.0), (0.25, 1.5), (1.0, 3.0)):
        assert second_answer.average(cosine, kernel, weight).tolist() == [[first, 2.0]]


def test_an_empty_bank_answers_nothing():
    class Holder:
        objective = type("O", (), {"bank": Bank.ring(COUNTS, 32, 2, 4)})()

    assert not second_answer.has_bank(Holder())  # type: ignore[arg-type]
