"""Several ranks are one process that has all images: the same losses, the same banks, every image counted once."""

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from curves import DATA, GML, PLAIN, curve, curve_with_an_empty_bank, curves
from launch import on_ranks

from longtail.engine import device as devices
from longtail.engine import dist, stages
from longtail.engine.logs import Progress
from longtail.errors import LongtailError
from longtail.models.backbone import build
from longtail.recipe import Optim, Recipe, Stage

CPU = devices.choose("float32", "cpu")


def largest_gap(a: dict[str, Any], b: dict[str, Any]) -> float:
    assert len(a["losses"]) == len(b["losses"]) > 0
    return max(abs(x - y) for x, y in zip(a["losses"], b["losses"], strict=True))


def agree(ranks: list[dict[str, Any]]) -> None:
    """Every rank has the same weights and bank to the bit, without either being sent around."""
    first = ranks[0]
    assert all(rank["weights"] == first["weights"] and rank["bank"] == first["bank"] for rank in ranks)
    assert all(rank["losses"] == first["losses"] for rank in ranks)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    recipe = Recipe(DATA, (replace(PLAIN, epochs=15),))
    stages.run(recipe, stages.load_data(DATA), folder, CPU, progress=Progress(StringIO()))
    return folder


def test_fifty_steps_of_cross_entropy_and_gml(teacher: Path) -> None:
    """In float32, from a start at which training does not amplify what rounding leaves (see the test in float64)."""
    gml = replace(GML, keys=str(teacher), start_from=str(teacher), optim=Optim(lr=0.001))
    sharded = replace(gml, settings=gml.settings | {"shard_bank": True})
    alone = on_ranks(1, curves, PLAIN, gml)[0]
    two = on_ranks(2, curves, PLAIN, gml, sharded)
    for number, reference in enumerate([alone[0], alone[1], alone[1]]):
        agree([rank[number] for rank in two])
        assert len(reference["losses"]) == 50
        assert largest_gap(two[0][number], reference) < 1e-5
        assert two[0][number]["rows"][-1]["accuracy"] == pytest.approx(reference["rows"][-1]["accuracy"], abs=0.01)


FEW = {
    "sharded bank, learned temperature": replace(GML, settings={"k": 97, "learn_tau": True, "shard_bank": True}),
    "full bank, sharded": replace(GML, settings={"bank": "full", "shard_bank": True}),
    "uneven shares, momentum keys": replace(GML, batch_size=61, keys="momentum"),
    "accumulated": replace(PLAIN, accumulate=3),
}
ALL = FEW | {
    "learned temperature": replace(GML, settings={"k": 96, "learn_tau": True}),
    "full bank": replace(GML, settings={"bank": "full"}),
    "momentum keys": replace(GML, keys="momentum"),
    "one batch, larger than the data": replace(GML, batch_size=5000),
}


@pytest.mark.parametrize(
    ("world", "variants", "epochs"),
    [
        (2, FEW, 1),
        pytest.param(2, ALL, 10, marks=pytest.mark.slow),
        pytest.param(3, ALL, 10, marks=pytest.mark.slow),
    ],
)
def test_the_arithmetic_is_the_same(world: int, variants: dict[str, Stage], epochs: int) -> None:
    """In float64, where nothing hides behind rounding."""
    some = [replace(stage, epochs=epochs) for stage in variants.values()]
    alone = on_ranks(1, curves_in_float64, *some)[0]
    several = on_ranks(world, curves_in_float64, *some)
    for number, name in enumerate(variants):
        agree([rank[number] for rank in several])
        gap = largest_gap(several[0][number], alone[number])
        if name == "accumulated":  # the parts are cut otherwise, and have the same mean
            gap = abs(several[0][number]["rows"][-1]["loss"] - alone[number]["rows"][-1]["loss"])
        assert gap < (1e-7 if epochs > 1 else 1e-11), name


def curves_in_float64(*some):
    return curves(*some, dtype=torch.float64)


def test_batchnorm_normalises_by_share_and_its_running_statistics_agree() -> None:
    """What is promised with BatchNorm: ranks agree on everything; one rank alone has other batch statistics."""
    stage = replace(GML, model="small", keys="momentum", epochs=2)
    alone, two = on_ranks(1, curve, stage)[0], on_ranks(2, curve, stage)
    agree(two)
    assert largest_gap(two[0], alone) > 1e-5
    assert two[0]["rows"][-1]["accuracy"] is not None


def test_a_step_may_leave_a_term_out() -> None:
    """The first batches hold no class that has a place in the bank."""
    alone, two = on_ranks(1, curve_with_an_empty_bank, GML)[0], on_ranks(2, curve_with_an_empty_bank, GML)
    agree(two)
    assert alone["some_unused"]
    assert largest_gap(two[0], alone) < 1e-11
    assert not on_ranks(2, curve, replace(GML, epochs=1))[0]["some_unused"]


def test_a_batch_smaller_than_the_ranks_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(dist, "world", lambda: 8)
    with pytest.raises(LongtailError, match="a batch of 4 images cannot be shared by 8 ranks x 1 steps"):
        stages.Inputs.of(Recipe(DATA, (PLAIN,)), stages.load_data(DATA), CPU).train(
            replace(PLAIN, batch_size=4), ("class",)
        )


def test_batchnorm_is_synchronised_between_gpus_only() -> None:
    class Holder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = build("small")

    method = Holder()
    before = dict(method.named_parameters())
    dist.synchronise_batchnorm(method)
    after = dict(method.named_parameters())
    assert sum(isinstance(module, torch.nn.SyncBatchNorm) for module in method.modules()) == 3
    assert before.keys() == after.keys()
    assert all(before[name] is after[name] for name in before)  # the optimiser may have them already
    with pytest.raises(AssertionError, match="between GPUs only"):
        on_ranks(2, curve, replace(PLAIN, model="small", sync_batchnorm=True))
