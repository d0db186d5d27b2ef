"""Short trainings on the digits whose loss is written down step by step, on any number of ranks."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from longtail.contrast.bank import Bank
from longtail.data.loader import Loader
from longtail.data.table import ImageTable
from longtail.engine import device as devices
from longtail.engine import dist, loop, stages
from longtail.engine.inputs import Inputs
from longtail.engine.logs import Progress, StepLog
from longtail.engine.preflight import preflight
from longtail.recipe import Data, Optim, Recipe, Stage
from longtail.types import Batch

DATA = Data("digits-lt", imbalance=50)
PLAIN = Stage(
    method="cross_entropy", model="small_no_norm", epochs=10, batch_size=64, augment="shift", optim=Optim(lr=0.05)
)
GML = replace(PLAIN, method="gml", keys="frozen", settings={"k": 96, "k_m": 2})


class Recorded(StepLog):
    """The total batch's loss of every step, as all ranks together have it."""

    losses: list[float] = []  # noqa: RUF012  (of the process)

    def add(self, parts: Any, images: int) -> None:
        super().add(parts, images)
        total = dist.sum_over_ranks(torch.tensor([parts["loss"].item() * images, images], dtype=torch.float64))
        self.losses.append((total[0] / total[1]).item())


@cache
def digits() -> ImageTable:
    return stages.load_data(DATA)


class In:
    """A loader whose images come in another precision."""

    def __init__(self, dtype: torch.dtype, loader: Loader) -> None:
        self.dtype, self.loader = dtype, loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return len(self.loader)

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        for batch in self.loader.epoch(epoch, start_step):
            yield batch._replace(views=tuple(view.to(self.dtype) for view in batch.views))


def curves(*stages_: Stage, dtype: torch.dtype = torch.float32) -> list[dict[str, Any]]:
    return [curve(stage, dtype) for stage in stages_]


def curve(stage: Stage, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Losses of all steps, and checksums of what ranks have to agree on."""
    loop.StepLog, Recorded.losses = Recorded, []  # type: ignore[misc]
    device = devices.choose("float32", "cpu")
    table = digits()
    inputs = Inputs.of(Recipe(DATA, (stage,)), table, device)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        method = stages.build_method(stage, table, folder).to(dtype)
        method.join(dist.ranks())
        loader = In(dtype, inputs.train(stage, method.views))
        test, every = In(dtype, inputs.plain("test")), In(dtype, inputs.plain("train"))
        passed = preflight(stage, method, loader, test, device, folder)
        with torch.no_grad():
            method.eval().prepare(every.epoch(0))
        loop.train(
            stage,
            method,
            loader,
            device,
            folder,
            seed=0,
            evaluate=lambda method: {"accuracy": accuracy(method, test, table)},
            evaluate_every=5,
            progress=Progress(StringIO()),
            some_unused=bool(dist.largest(passed.some_unused)),
        )
        rows = (folder / "metrics.jsonl").read_text().splitlines() if dist.is_main() else []
        rows = [json.loads(row) for row in rows]
    return {
        "losses": Recorded.losses,
        "weights": checksum(method.state_dict()),
        "bank": checksum({k: v for k, v in method.state_dict().items() if ".bank." in k}),
        "rows": rows,
        "some_unused": passed.some_unused,
    }


def accuracy(method: Any, test: Loader, table: ImageTable) -> float:
    counted = stages.count(method.eval().scores, test, table.num_classes, devices.choose("float32", "cpu"))
    assert counted.n.sum() == len(table.rows("test"))  # every image once, whatever the number of ranks
    return float(counted.correct.sum() / counted.n.sum())


def checksum(tensors: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def curve_with_an_empty_bank(stage: Stage) -> dict[str, Any]:
    """Preflight and the first two steps enqueue nothing."""
    enqueue, calls = Bank.enqueue, iter(range(10**9))

    def later(bank: Bank, *tensors: torch.Tensor) -> None:
        if next(calls) >= 3:
            enqueue(bank, *tensors)

    Bank.enqueue = later
    try:
        return curve(replace(stage, epochs=2), torch.float64)
    finally:
        Bank.enqueue = enqueue
