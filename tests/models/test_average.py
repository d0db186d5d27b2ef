"""The moving average of weights: what it holds, when it answers, and that it survives a restart."""

import copy

import pytest
import torch
from torch import nn

from longtail.models.average import WeightAverage


def test_it_is_the_exponential_mean_of_every_floating_tensor():
    torch.manual_seed(0)
    module = nn.BatchNorm1d(3)
    average = WeightAverage([module], decay=0.5)
    expected = [t.detach().clone() for t in (*module.parameters(), module.running_mean, module.running_var)]
    for step in range(1, 30):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.normal_()
        module(torch.randn(8, 3))
        average.update()
        decay = min(0.5, (1 + step) / (10 + step))
        now = (*module.parameters(), module.running_mean, module.running_var)
        expected = [decay * e + (1 - decay) * t.detach() for e, t in zip(expected, now, strict=True)]
    with average.in_place():
        found = [t.detach().clone() for t in (*module.parameters(), module.running_mean, module.running_var)]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_the_last_steps_weights_are_back_afterwards_also_after_an_error():
    module = nn.Linear(2, 2)
    average = WeightAverage([module], decay=0.9)
    with torch.no_grad():
        module.weight += 1
    before = module.weight.detach().clone()
    with average.in_place():
        assert not torch.equal(module.weight, before)
    assert torch.equal(module.weight, before)
    with pytest.raises(KeyError), average.in_place():
        raise KeyError
    assert torch.equal(module.weight, before)


def test_a_copy_averages_the_copys_weights():
    """Preflight tries a step on a copy of the method."""
    owner = nn.ModuleDict({"net": nn.Linear(2, 2)})
    owner["average"] = WeightAverage([owner["net"]], decay=0.9)
    trial = copy.deepcopy(owner)
    with torch.no_grad():
        trial["net"].weight += 1
    trial["average"].update()
    with owner["average"].in_place():
        torch.testing.assert_close(owner["net"].weight, trial["net"].weight - 1)
    assert owner["average"].steps == 0
