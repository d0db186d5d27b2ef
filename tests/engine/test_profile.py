"""`--profile` times the loop itself: its parts add up to the step, and what it hangs in is taken out again."""

import re
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from longtail.cli import main
from longtail.engine import device as devices
from longtail.engine import profile as profiling
from longtail.engine.inputs import Inputs
from longtail.engine.stages import load_data
from longtail.methods import build_objective
from longtail.methods.method import Method
from longtail.models.backbone import build
from longtail.models.teacher import Teacher
from longtail.recipe import Data, Recipe, Stage

CPU = devices.choose("float32", "cpu")
STAGE = Stage(
    method="gml", model="small", batch_size=32, augment="shift", epochs=50, settings={"k": 64, "kd_weight": 1}
)


class Slow(nn.Module):
    """A teacher that takes 20 ms."""

    dim = 8

    def forward(self, images):
        time.sleep(0.02)
        return images.flatten(1)[:, :8]


def milliseconds(table: str) -> dict[str, float]:
    return {name: float(ms) for name, ms in re.findall(r"^  (\w+) +([\d.]+) ms", table, re.MULTILINE)}


@pytest.fixture(scope="module")
def made():
    table = load_data(Data("digits-lt", imbalance=50))
    inputs = Inputs.of(Recipe(Data("digits-lt"), (STAGE,)), table, CPU)
    backbone = build("small")
    head = build_objective("logit_adjusted", table.counts(), 8, {}).likelihood
    objective = build_objective("gml", table.counts(), backbone.dim, STAGE.settings, 8)
    method = Method(backbone, objective, Teacher(Slow(), head))
    return method, inputs.train(STAGE, method.views)


def test_every_part_is_timed_and_they_add_up(made):
    method, loader = made
    hooks_before = len(method._forward_hooks), len(method.backbone._forward_hooks), loader.views
    table = profiling.profile(STAGE, method, loader, CPU)
    found = milliseconds(table)
    assert set(found) == {*profiling.PARTS, "step"}
    assert 18 <= found["teacher"] <= 0.9 * found["step"]
    assert sum(v for k, v in found.items() if k != "step") == pytest.approx(found["step"], abs=1)
    shares = [float(share) for share in re.findall(r"([\d.]+)%", table)]
    assert sum(shares) == pytest.approx(100, abs=1)
    rate = float(re.search(r"(\d+) images/s", table)[1])
    assert rate == pytest.approx(32e3 / found["step"], rel=0.02)
    assert hooks_before == (len(method._forward_hooks), len(method.backbone._forward_hooks), loader.views)


def test_a_loader_shorter_than_the_profile_begins_again(made):
    _, loader = made
    assert len(loader) < profiling.WARMUP + profiling.STEPS
    starts = []
    few = profiling._FewSteps(loader, 2 * len(loader) + 1, lambda: starts.append(0))
    batches = list(few.epoch(0))
    assert len(batches) == len(few) == 2 * len(loader) + 1
    assert torch.equal(batches[0].labels, next(iter(loader.epoch(0))).labels)
    assert torch.equal(batches[len(loader)].labels, next(iter(loader.epoch(1))).labels)


def test_accumulated_parts_are_added(made):
    method, loader = made
    table = profiling.profile(replace(STAGE, accumulate=2), method, loader, CPU)
    assert milliseconds(table)["teacher"] >= 36


def test_from_the_command_line_and_nothing_is_left(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "digits-lt", "--model", "small", "--method", "gml", "--profile"]) == 0
    shown = capsys.readouterr().out
    assert "profile of teacher" in shown
    assert "profile of student" in shown
    assert "images/s" in shown
    assert not any(tmp_path.iterdir())
