"""Operations and bytes of a GML step, counted, and the time that follows from a device's rates.

    python -m benchmarks.cost

Counted operator by operator as torch is asked for them: each is given the longer of the time for its arithmetic and the
time for the bytes it reads and writes, and a launch on a GPU. The rates of a CPU core are measured here, those of GPUs
are their makers' peaks times a guess at how much of them is reached. Where a part has been measured, it stands beside.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from benchmarks import reembed
from benchmarks.harness import RESULTS, median_ms, write_result
from longtail.engine import device
from longtail.models import backbone as backbones


class Work(NamedTuple):
    """One GML step of a data set."""

    name: str
    student: str
    teacher: str
    size: int
    student_views: int
    teacher_views: int
    bank: reembed.Shape
    batch: int = 128


class Rates(NamedTuple):
    name: str
    flops: float  # in a second, bfloat16 products
    bytes: float  # in a second
    launch: float  # seconds an operator costs at least


WORKS = (
    Work("CIFAR-100-LT", "resnet32", "resnet56", 32, 2, 2, reembed.SHAPES[0]),
    Work("ImageNet-LT", "resnext50_32x4d", "resnext101_32x8d", 224, 2, 1, reembed.SHAPES[1]),
    Work("iNaturalist", "resnet50", "resnet152", 224, 2, 1, reembed.SHAPES[2]),
)
ARITHMETIC, MEMORY, LAUNCH = 0.5, 0.8, 4e-6  # of the peak that is reached, and seconds: guesses
PEAKS = {"A100": (312e12, 2.04e12), "H100": (989e12, 3.35e12)}  # 80 GB, SXM; dense bfloat16 and memory


class Counter(TorchDispatchMode):
    """(operations, bytes) of every operator that is not a mere view."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[tuple[float, float]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.operators.append(
                (_flops(func, args, kwargs or {}, out), sum(_bytes(x) for x in (*args, *(kwargs or {}).values(), out)))
            )
        return out


def _flops(func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> float:
    if func.overloadpacket is torch.ops.aten.convolution_backward:  # torch's own formula forgets the groups
        grad, _, weight, *_, (to_input, to_weight, _) = args
        return 2 * grad.numel() * weight[0].numel() * (to_input + to_weight)
    formula = flop_registry.get(func.overloadpacket)
    return formula(*args, **kwargs, out_val=out) if formula else 0


def _bytes(x: Any) -> int:
    if isinstance(x, torch.Tensor):
        return x.numel() * x.itemsize
    return sum(map(_bytes, x)) if isinstance(x, (list, tuple)) else 0


def counted(function: Callable[[], Any], times: float) -> list[tuple[float, float]]:
    """As if on so many times more samples."""
    with Counter() as counter:
        function()
    return [(flops * times, size * times) for flops, size in counter.operators]


def network(name: str, size: int, images: int, *, learns: bool) -> list[tuple[float, float]]:
    with torch.device("meta"):
        model = backbones.build(name).to(torch.bfloat16).train(learns).requires_grad_(learns)
        x = torch.empty(4, 3, size, size, dtype=torch.bfloat16)
    return counted(lambda: model(x).sum().backward() if learns else model(x), images / 4)


def parts_of(work: Work) -> dict[str, list[tuple[float, float]]]:
    return {
        "student": network(work.student, work.size, work.student_views * work.batch, learns=True),
        "teacher": network(work.teacher, work.size, work.teacher_views * work.batch, learns=False),
        "contrast": counted(reembed.contrast(work.bank, {}, autocast=True), 1),
        "optimiser": [(0, 24 * parameters(work))],  # weight, gradient and momentum read, two of them written
    }


def parameters(work: Work) -> int:
    with torch.device("meta"):
        network = backbones.count_parameters(backbones.build(work.student))
    width, embed = work.bank.width, work.bank.embed
    return network + 2 * width * (width + embed) + work.bank.classes * width


def seconds(operators: list[tuple[float, float]], rates: Rates) -> float:
    return sum(max(flops / rates.flops, size / rates.bytes, rates.launch) for flops, size in operators)


def this_core() -> Rates:
    """What a core reaches in a large product, and in adding two tensors that fit no cache."""
    a, b = (torch.randn(2048, 2048).bfloat16() for _ in range(2))
    x, y = (torch.randn(2**25) for _ in range(2))
    product, adding = median_ms(lambda: a @ b, 10), median_ms(lambda: torch.add(x, 1, out=y), 10)
    return Rates("CPU core", 2 * 2048**3 / product * 1e3, 8 * 2**25 / adding * 1e3, 0.0)


def measured_ms() -> dict[tuple[str, str], float]:
    """What the other benchmarks have measured of these parts on one thread of this machine."""
    found: dict[tuple[str, str], float] = {}
    for shape in _result("reembed").get("shapes", []):
        found[shape["name"], "contrast"] = shape["ms"]["all, autocast"]
    if step := _result("step"):
        found["CIFAR-100-LT", "teacher"] = step["ms"]["of it: teacher"]
    for row in _result("less_teacher").get("rows", []):
        if row["name"] == "three views, asked online":
            found["CIFAR-100-LT", "step"] = row["step_ms"]
    return found


def _result(name: str) -> dict[str, Any]:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def student_ms(work: Work, images: int = 4) -> float:
    """Forward and backward on a few images, as if on the batch."""
    place = device.choose()
    model: nn.Module = backbones.build(work.student).to(memory_format=place.memory_format)  # type: ignore[call-overload]
    x = torch.randn(images, 3, work.size, work.size).contiguous(memory_format=place.memory_format)

    def step() -> None:
        with place.autocast():
            loss = model(x).float().sum()
        loss.backward()

    return median_ms(step, 10, warmup=2) * work.student_views * work.batch / images


@contextmanager
def saying(what: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    print(f"  {what}: {time.perf_counter() - start:.0f} s", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    device.choose()
    core = this_core()
    devices = [core, *(Rates(n, f * ARITHMETIC, b * MEMORY, LAUNCH) for n, (f, b) in PEAKS.items())]
    measured, rows = measured_ms(), []
    for work in WORKS:
        with saying(f"{work.name} measured"):
            measured[work.name, "student"] = student_ms(work, 64 if work.size == 32 else 4)
        parts = parts_of(work)
        parts["step"] = [operator for part in list(parts.values()) for operator in part]
        for part, operators in parts.items():
            row = {"work": work.name, "part": part, "operators": len(operators)}
            row |= {"gflop": sum(f for f, _ in operators) / 1e9, "gbyte": sum(b for _, b in operators) / 1e9}
            row["ms"] = {rates.name: 1e3 * seconds(operators, rates) for rates in devices}
            row["measured_ms"] = measured.get((work.name, part))
            rows.append(row)
            cells = "".join(f"{ms:12,.1f}" for ms in row["ms"].values())
            real = f"{row['measured_ms']:12,.1f}" if row["measured_ms"] else ""
            print(f"{work.name:14s}{part:11s}{row['gflop']:12,.0f}{row['gbyte']:10,.1f}{cells}{real}", flush=True)
    off = [row["measured_ms"] / row["ms"]["CPU core"] for row in rows if row["measured_ms"]]
    print(
        f"measured over predicted on this core: {min(off):.2f} to {max(off):.2f}, median {statistics.median(off):.2f}"
    )
    guesses = {"arithmetic": ARITHMETIC, "memory": MEMORY, "launch_us": 1e6 * LAUNCH}
    rates = [r._asdict() for r in devices]
    works = [work._asdict() | {"bank": work.bank._asdict()} for work in WORKS]
    print(write_result("cost", {"guesses": guesses, "peaks": PEAKS, "rates": rates, "works": works, "rows": rows}))


if __name__ == "__main__":
    main()
