"""What `import longtail as lt` offers: every verb has types and an example, and every example is true."""

import doctest
import inspect
import subprocess
import sys
import typing

import numpy as np
import pytest
import torch
from PIL import Image

import longtail as lt
from longtail import api
from longtail.data.splits import hold_out
from longtail.engine.stages import load_data
from longtail.errors import LongtailError

VERBS = [name for name in lt.__all__ if name not in ("data", "methods")]
SLOW = {"compare"}  # four trainings, each a process


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in VERBS])
def test_the_example_of_a_verb_is_true(name, here):
    verb = getattr(lt, name)
    examples = doctest.DocTestFinder(recurse=False).find(verb, name, globs={})
    assert examples, f"lt.{name} has no example"
    assert examples[0].examples, f"lt.{name} has no example"
    said: list[str] = []
    failed = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples[0], out=said.append).failed
    assert not failed, "".join(said)


@pytest.mark.parametrize("name", VERBS)
def test_every_argument_and_answer_of_a_verb_has_a_type(name):
    verb = getattr(api, name)
    hints = typing.get_type_hints(verb)
    assert hints.keys() == {*inspect.signature(verb).parameters, "return"}


@pytest.fixture
def begun(monkeypatch):
    """What would be trained: recipe, table and device; nothing is."""
    found = []

    def stop(recipe, table, out, place, **more):
        found.append((recipe, table, place))
        raise InterruptedError

    monkeypatch.setattr(api, "train_run", stop)

    def begin(*data, **dials):
        with pytest.raises(InterruptedError):
            lt.train(*data, "cross_entropy", quiet=True, device="cpu", **dials)
        return found[-1]

    return begin


def test_a_table_is_recorded_as_what_it_is(begun):
    cut = {"imbalance": 10, "profile": "step", "subset_seed": 3}
    recipe, table, _ = begun(lt.data.load("digits-lt", **cut))
    assert {name: getattr(recipe.data, name) for name in cut} == cut
    again = load_data(recipe.data)
    assert recipe.data.source == "digits-lt"
    assert np.array_equal(again.images.pixels, table.images.pixels)
    digits = lt.data.load("digits-lt", imbalance=1)
    for recipe, _, _ in (begun(digits.take(np.arange(900))), begun(digits, imbalance=4), begun(hold_out(digits)[0])):
        assert recipe.data.source == "digits-lt (in Python)"  # no name loads these again
    assert recipe.data.imbalance is None


def test_settings_are_what_happens(begun):
    recipe, table, place = begun("digits-lt", settings={"precision": "float32", "data.imbalance": 5, "seed": 4})
    assert (recipe.precision, place.dtype, recipe.seed) == ("float32", torch.float32, 4)
    assert np.array_equal(load_data(recipe.data).labels, table.labels)
    assert recipe.data.imbalance == 5


def test_training_has_the_dials_of_its_verb(begun, tmp_path):
    said = {"imbalance": 8, "tail": "step", "subset_seed": 2, "data_root": tmp_path}
    recipe, table, _ = begun("digits-lt", **said)
    assert (recipe.data.profile, recipe.data.subset_seed, recipe.data.root) == ("step", 2, str(tmp_path))
    assert np.unique(table.counts()).tolist() == [15, 124]
    (tmp_path / "list.csv").write_text("image,kind\n" + "".join(f"{i}.png,{'ab'[i % 2]}\n" for i in range(8)))
    for i in range(8):
        Image.new("RGB", (80, 80), (i, 0, 0)).save(tmp_path / f"{i}.png")
    recipe, _, _ = begun(tmp_path / "list.csv", label_column="kind", on_bad_image="skip", pretrained=False)
    assert (recipe.data.label_column, recipe.data.on_bad_image) == ("kind", "skip")
    with pytest.raises(LongtailError, match="no stage that starts from an earlier one"):
        lt.train("digits-lt", "cross_entropy", first_stage="runs/first")
    with pytest.raises(LongtailError, match="has no columns"):
        lt.train(lt.data.load("digits-lt"), label_column="kind")


def test_scores_are_kept_where_that_is_asked(here):
    assert lt.evaluate("runs/plain", device="cpu").scores is None
    done = lt.evaluate("runs/plain", save_scores=True, device="cpu")
    assert (done.save(here / "out") / "scores.npz").exists()


def test_importing_costs_nothing_until_something_is_asked_for():
    code = "import sys, longtail as lt; assert 'predict' in dir(lt); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'evalute'"):
        getattr(lt, "evalute")  # noqa: B009


def test_gml_in_a_loop_of_ones_own_learns():
    """Features, labels and ids in, per-sample losses out: no image, no engine, no run folder."""
    torch.manual_seed(0)
    counts = [60, 20, 4]
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    inputs = torch.randn(len(labels), 8) + 2 * torch.eye(3, 8)[labels]
    network, gml = torch.nn.Linear(8, 16), lt.methods.gml(counts=counts, dim=16, k=32)
    optimiser = torch.optim.SGD([*network.parameters(), *gml.parameters()], lr=0.1)
    losses = []
    for _ in range(30):
        features = network(inputs)
        loss = gml(features, labels, torch.arange(len(labels)), keys=features.detach()).per_sample.mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_a_run_that_is_loaded_is_a_plain_module(here):
    model = lt.load("runs/digits")
    assert isinstance(model, torch.nn.Module)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    images = torch.randn(3, 3, 16, 16)
    loglik = model(images)
    assert loglik.shape == (3, 10)
    torch.testing.assert_close(model(images[:1]), loglik[:1], atol=1e-5, rtol=1e-5)
    assert model(images, "kernel").shape == (3, 10)
