"""Which augmentation feeds which view of a sample, recipe by recipe, as papers and authors have it."""

import importlib
import re

import numpy as np
import pytest

from longtail.cli import main
from longtail.data.batch_augment import VIEWS
from longtail.methods import build_objective
from longtail.recipe import Data, Recipe, Stage
from longtail.recipes import RECIPES
from longtail.recipes.change import change
from longtail.recipes.imagenet_lt import imagenet_lt_90


def views_of(stage):
    objective = build_objective(stage.method, np.full(20, 500), 8, stage.settings, 8, stage.model)
    return {view: stage.views.get(view, stage.augment) for view in objective.student_views + objective.key_views}


@pytest.mark.parametrize(
    ("recipe", "views"),
    [
        ("cifar100-lt-100-200", {"class": "autoaugment", "query": "autoaugment", "key": "autoaugment"}),
        ("imagenet-lt-90", {"class": "randaugment", "query": "sim", "key": "sim"}),
        ("imagenet-lt-bcl", {"class": "randaugment", "query": "sim", "key": "sim"}),
        ("imagenet-lt-momentum", {"class": "randaugment", "query": "sim", "key": "sim"}),
        ("imagenet-lt-logit-adjusted", {"class": "randaugment"}),
        ("inat18-100", {"class": "sim", "query": "sim", "key": "sim"}),
    ],
)
def test_views_of_a_recipe(recipe, views):
    assert views_of(RECIPES[recipe]().stages[-1]) == views


def test_the_authors_preset_stacks():
    assert views_of(imagenet_lt_90("authors").stages[-1]) == {
        "class": "randaugment",
        "query": "randstack",
        "key": "randstack",
    }


@pytest.mark.parametrize(
    ("method", "views"),
    [
        ("paco", {"class": "autoaugment", "key": "simclr"}),
        ("bcl", {"class": "autoaugment", "query": "simclr", "key": "simclr"}),
    ],
)
def test_a_docstring_says_how_to_set_the_authors_views(method, views):
    source = importlib.import_module(f"longtail.methods.{method}").__doc__
    said = re.findall(r"--set (views\.\w+=\w+)", source or "")
    recipe = Recipe(Data("cifar100-lt"), (Stage(method=method, augment="autoaugment"),))
    assert views_of(change(recipe, said).stages[-1]) == views


@pytest.mark.parametrize("name", RECIPES)
def test_every_view_of_every_recipe_exists(name):
    recipe = RECIPES[name]()
    for stage in () if recipe.pixels else recipe.stages:
        assert set(views_of(stage).values()) <= set(VIEWS)


def test_views_are_set_by_name_and_a_wrong_name_is_answered(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    train = ["train", "digits-lt", "--method", "gml", "--model", "small", "--dry-run"]
    assert main([*train, "--set", "views.key=weak"]) == 0
    assert main([*train, "--set", "views.kye=weak"]) == 2
    assert "there is no view 'kye'; did you mean 'key'?" in capsys.readouterr().err
