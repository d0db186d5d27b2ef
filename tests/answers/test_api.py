"""What `import longtail as lt` offers: every verb has types and an example, and every example is true."""

import doctest
import inspect
import subprocess
import sys
import typing

import pytest
import torch

import longtail as lt
from longtail import api

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
