"""Experiments by name: what their docstrings state, what their settings are, and the verdict at the end."""

import re

import pytest

from longtail import recipes
from longtail.cli import main
from longtail.errors import LongtailError
from longtail.recipe import Data, Optim, Recipe, Stage
from longtail.recipes.stated import PLAIN, Expected, stated
from longtail.reproduce import recipe_of


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_a_docstring_states_command_cost_and_number(name):
    statement, recipe = stated(recipes.find(name)), recipes.build(name)
    assert recipe.name == name
    assert re.search(rf"longtail reproduce {name}\b", statement.fields["Command"])
    assert statement.expected["Expected"], f"{name}: no number in {statement.fields['Expected']!r}"
    for stage, numbers in statement.expected.items():
        assert stage == "Expected" or stage.lower() in [s.name for s in recipe.stages[:-1]]
        for number in numbers:
            assert 0 < number.low <= number.value <= number.high <= (1 if number.metric in PLAIN else 100)


def small(preset: str = "paper") -> Recipe:
    """The digits, for seconds.

    Command: longtail reproduce small
    Data: in scikit-learn
    Hardware: any
    Time: seconds
    Expected: 50.0 (0.0 to 100.0), few 1.0 (0.0 to 0.5)
    Teacher: 50.0 (0.0 to 100.0)
    """
    student = Stage("student", "gml", {"k": 64}, "small", epochs=2, batch_size=32, optim=Optim(lr=0.02), keys="teacher")
    teacher = Stage("teacher", "logit_adjusted", model="small", epochs=2, batch_size=32, optim=Optim(lr=0.02))
    return Recipe(Data("digits-lt"), (teacher, student), name="small")


def test_a_stage_at_a_time(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(recipes.RECIPES, "small", small)
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "small", "--stage", "teacher"]) == 0
    assert re.search(r"^teacher: accuracy [\d.]+: inside 0 to 100; the paper has 50$", capsys.readouterr().out, re.M)
    assert main(["reproduce", "small", "--teacher", "runs/small-teacher"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^student: accuracy [\d.]+: inside 0 to 100; the paper has 50$", said, re.M)
    assert re.search(r"^student: few [\d.]+: (in|out)side 0 to 0.5; the paper has 1$", said, re.M)
    # Both stages in one command, and once more when it is done: the same answer, nothing trained again.
    assert main(["reproduce", "small", "--out", "runs/both"]) == 0
    assert main(["reproduce", "small", "--out", "runs/both", "--resume"]) == 0
    apart, together = tmp_path / "runs/small", tmp_path / "runs/both"
    assert (apart / "per_class.csv").read_text() == (together / "per_class.csv").read_text()


def test_inside_and_outside():
    number = Expected("accuracy", 53.0, 52.0, 54.5)
    assert "inside" in number.verdict({"accuracy": 0.5196})  # 52.0 as it is printed
    assert "outside" in number.verdict({"accuracy": 0.5194})
    assert "not measured" in number.verdict({})
    assert "inside" in Expected("tau_g", 0.05, 0.04, 0.06).verdict({"tau_g": 0.0449})


def test_mistakes_are_one_sentence():
    with pytest.raises(LongtailError, match="did you mean 'cifar100-lt-100-200'"):
        recipe_of("cifar100-lt-100-20")
    with pytest.raises(LongtailError, match="give its run with --teacher"):
        recipe_of("cifar100-lt-100-200", stage="student")
    with pytest.raises(LongtailError, match="no stage 'tacher'; did you mean 'teacher'"):
        recipe_of("cifar100-lt-100-200", stage="tacher")


def test_the_authors_script_is_another_preset():
    paper, authors = (recipe_of("cifar100-lt-100-400", preset=p).stages[-1] for p in ("paper", "authors"))
    assert (paper.batch_size, paper.optim.lr, paper.settings["learn_tau"]) == (64, 0.05, False)
    assert (authors.batch_size, authors.optim.lr, authors.settings["learn_tau"]) == (128, 0.1, True)
    assert paper.optim.steps_at == (0.8, 0.9)
    assert authors.optim.steps_at == (321 / 400, 361 / 400)
