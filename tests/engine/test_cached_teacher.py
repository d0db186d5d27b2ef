"""A teacher is asked once about a picture that can be made again: the run is that of one which is asked always."""

import io
from dataclasses import replace

import pytest
import torch

from longtail.data.batch_augment import named
from longtail.data.loader import draw
from longtail.engine import device as devices
from longtail.engine import stages, trained
from longtail.engine.inputs import Inputs
from longtail.engine.logs import Progress
from longtail.engine.loop import Interrupted
from longtail.errors import LongtailError
from longtail.methods.method import Method
from longtail.models.teacher import Teacher
from longtail.recipe import Data, Optim, Recipe, Stage

CPU = devices.choose("float32", "cpu")
SMALL = Stage(model="small", epochs=3, batch_size=64, augment="shift", optim=Optim(lr=0.05), method="logit_adjusted")
STUDENT = replace(SMALL, name="student", method="gml", keys="teacher", cached_views=2)
WAYS = {
    "ring": {"k": 64, "kd_weight": 1.0, "keys_of": "class"},
    "full": {"bank": "full", "bank_views": 2, "kd_weight": 1.0},
    "full, no distillation": {"bank": "full", "bank_views": 1},
    "own key view": {"k": 64, "kd_weight": 1.0, "learn_tau": True},
}


@pytest.fixture(scope="module")
def digits():
    return stages.load_data(Data("digits-lt", imbalance=50))


@pytest.fixture(scope="module")
def teacher(digits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher")
    run(digits, folder, replace(SMALL, name="teacher", epochs=1))
    return folder


def run(table, folder, *run_stages, stop_after=None):
    steps = iter(range(10**9))
    return stages.run(
        Recipe(Data("digits-lt", imbalance=50), run_stages, evaluate_every=3),
        table,
        folder,
        CPU,
        progress=Progress(io.StringIO()),
        stop_requested=lambda: 15 if stop_after is not None and next(steps) >= stop_after else None,
        use_cache=False,
    )


def student(teacher, way):
    return replace(STUDENT, keys=str(teacher), settings=WAYS[way])


def weights(folder):
    return trained.load(folder).method.state_dict()


def test_a_picture_is_a_function_of_row_and_turn_alone():
    views, rows = named(["autoaugment", "autoaugment"]), torch.tensor([7, 3, 7])
    one = draw(views, 1, 5, torch.arange(3), rows, pictures=4)
    assert torch.equal(one[0][0], one[0][2])
    assert not torch.equal(one[0][0], one[0][1])
    assert not torch.equal(one[1][0], one[1][2])  # the other view is a new one at every place
    later = draw(views, 1, 9, torch.arange(50, 53), rows.flip(0), pictures=4)
    assert torch.equal(later[0], one[0].flip(0))
    assert not torch.equal(draw(views, 1, 6, torch.arange(3), rows, pictures=4)[0], one[0])
    assert torch.equal(draw(views, 1, 5, torch.arange(3))[1], one[1])


def test_what_was_remembered_is_what_the_teacher_says_of_the_view_in_training(digits, teacher, tmp_path):
    stage = student(teacher, "ring")
    inputs = Inputs.of(Recipe(Data("digits-lt", imbalance=50), (stage,)), digits, CPU)
    method = stages.build_method(stage, digits, tmp_path)
    stages._prepare(stage, method, inputs)
    for epoch in range(4):
        for batch in inputs.train(stage, method.views).epoch(epoch):
            assert batch.picture == epoch % 2
            for recalled, said in zip(
                method.key_encoder.recall(batch.ids, batch.picture), method.key_encoder(batch.views[0]), strict=True
            ):
                torch.testing.assert_close(recalled, said, rtol=1e-4, atol=1e-5)


def test_distillation_is_from_prior_free_scores_whatever_the_teacher_was_trained_with(digits, tmp_path):
    run(digits, tmp_path, replace(SMALL, name="teacher", method="cross_entropy", epochs=1))
    method = stages.build_method(student(tmp_path, "ring"), digits, tmp_path)
    model, images = trained.load(tmp_path), torch.randn(4, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(method.key_encoder(images)[1], model(images))
        assert not torch.allclose(model(images), model.scores(images))


@pytest.mark.parametrize("way", WAYS)
def test_the_run_is_that_of_a_teacher_that_is_asked_at_every_step(digits, teacher, tmp_path, monkeypatch, way):
    stage, asked = student(teacher, way), []
    forward = Teacher.forward
    monkeypatch.setattr(Teacher, "forward", lambda self, images: asked.append(len(images)) or forward(self, images))
    run(digits, tmp_path / "once", stage)
    rows, steps = len(digits.rows("train")), 3 * (len(digits.rows("train")) // 64)
    before = 2 * rows + 64 * 2  # both pictures of all images; before that, a trial step and its bank
    assert before - 64 <= sum(asked) <= before + (steps * 64 if way == "own key view" else 0)
    if "bank_views" in WAYS[way]:
        return  # its bank is made of what is remembered, so there is no other way

    monkeypatch.setattr(Method, "remember", lambda *_: None)
    run(digits, tmp_path / "always", stage)
    torch.testing.assert_close(weights(tmp_path / "once"), weights(tmp_path / "always"), rtol=1e-2, atol=1e-3)


def test_a_full_bank_of_cached_views_holds_each_image_so_often(digits, teacher, tmp_path):
    run(digits, tmp_path, student(teacher, "full"))
    bank = trained.load(tmp_path).method.objective.bank
    rows = digits.rows("train")
    assert sorted(bank.ids.tolist()) == sorted([*rows.tolist(), *rows.tolist()])
    assert torch.equal(bank.segments.class_of_row, torch.from_numpy(digits.labels[bank.ids.numpy()]).long())
    first = bank.ids.argsort(stable=True)
    assert not torch.equal(bank.features[first[0]], bank.features[first[1]])  # two pictures of one image


@pytest.mark.parametrize("way", ["ring", "full"])
def test_a_stopped_run_carries_on_to_the_bit(digits, teacher, tmp_path, way):
    stage = student(teacher, way)
    run(digits, tmp_path / "straight", stage)
    with pytest.raises(Interrupted):
        run(digits, tmp_path / "stopped", stage, stop_after=5)
    run(digits, tmp_path / "stopped", stage)
    torch.testing.assert_close(weights(tmp_path / "stopped"), weights(tmp_path / "straight"), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("changes", "settings", "sentence"),
    [
        ({"keys": "momentum"}, WAYS["ring"], "a frozen teacher"),
        ({}, {"k": 64}, "nothing here asks it"),
        ({}, {"bank": "full", "bank_views": 3}, "say cached_views=3 or more"),
        ({}, {"k": 64, "kd_weight": 1.0, "mixup": 0.2}, "mixed ones"),
        ({}, {"k": 64, "bank_views": 1}, "say bank='full'"),
        ({}, {"k": 64, "keys_of": "query"}, "key or class"),
        ({}, {"bank": "full", "keys_of": "class"}, "fills a ring"),
    ],
)
def test_a_mistake_is_one_sentence(digits, teacher, changes, settings, sentence):
    stage = replace(STUDENT, **{"keys": str(teacher), "settings": settings} | changes)
    with pytest.raises(LongtailError, match=sentence):
        stages.check(Recipe(Data("digits-lt", imbalance=50), (stage,)), digits)
