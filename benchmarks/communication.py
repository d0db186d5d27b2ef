"""What the ranks tell each other in a step: measured between two processes on this machine, modelled for GPUs.

    python -m benchmarks.communication

Four things travel. Gradients are averaged (all-reduce). The batch's keys reach every bank (all-gather of B rows). With
`shard_bank` the embedded bank is gathered and its gradient summed (k rows each way). And one number says whether
somebody was asked to stop. The model is the ring's: an all-reduce of n bytes on W ranks takes
2 (W - 1) (latency + n / (W bandwidth)), an all-gather half of that. Nothing is taken off for what hides behind the
backward pass, so the modelled times are upper bounds as far as their assumptions hold.
"""

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.harness import write_result
from longtail.engine.dist import gather, largest
from longtail.methods import build_objective
from longtail.models import backbone as backbones


@dataclass(frozen=True)
class Shape:
    """What of a recipe decides how much travels."""

    model: str
    classes: int
    key_dim: int  # of the teacher's features
    k: int
    batch: int = 128
    embed: int | None = None

    def bytes(self) -> dict[str, int]:
        backbone: Any = backbones.build(self.model)
        least = np.full(self.classes, 2)
        settings = {"k": 2 * self.classes, "embed": self.embed}  # the bank is not sent, so a small one counts the same
        objective = build_objective("gml", least, backbone.dim, settings, self.key_dim)
        learnt = [p for part in (backbone, objective) for p in part.parameters() if p.requires_grad]
        embed: int = self.embed or backbone.dim // 2
        return {
            "gradients": 4 * sum(p.numel() for p in learnt),
            "keys": self.batch * (4 * self.key_dim + 8 + 8),  # feature, label, id
            "bank": 4 * self.k * embed,  # sharded alone; there and back
            "stop": 8,
        }


SHAPES = {
    "CIFAR-100-LT, ResNet-32": Shape("resnet32", 100, key_dim=64, k=4096),
    "ImageNet-LT, ResNet-50": Shape("resnet50", 1000, key_dim=2048, k=16384),
    "iNaturalist 2018, ResNet-50": Shape("resnet50", 8142, key_dim=2048, k=65536),
}


@dataclass(frozen=True)
class Network:
    world: int
    latency_us: float  # of one hop
    gigabytes: float  # a second and rank, one way

    def milliseconds(self, sent: dict[str, int], shard: bool) -> dict[str, float]:
        def ring(size: int) -> float:
            """One way round: W - 1 hops of a W-th of the bytes each."""
            return (self.world - 1) * (self.latency_us / 1e3 + size / self.world / self.gigabytes / 1e6)

        once = {"gradients": 2 * ring(sent["gradients"]), "keys": 3 * ring(0) + ring(sent["keys"])}
        once["stop"] = 2 * ring(8)
        return once | ({"bank": 3 * ring(sent["bank"])} if shard else {})


# Assumed, not measured: what such links are sold as, at half of it.
NETWORKS = {
    "8 GPUs of one machine, NVLink": Network(8, latency_us=10, gigabytes=150),
    "64 GPUs of 8 machines, 100 Gbit/s each GPU": Network(64, latency_us=20, gigabytes=6),
}


def main(repeats: int = 15) -> None:
    sent = {name: shape.bytes() for name, shape in SHAPES.items()}
    measured = between_two(sent["CIFAR-100-LT, ResNet-32"], repeats)
    print("two gloo ranks on this machine, CIFAR-100-LT with ResNet-32, median ms a step")
    for name, value in measured.items():
        print(f"  {name:12s} {sent['CIFAR-100-LT, ResNet-32'][name] / 1e6:8.3f} MB {value:8.2f} ms")
    modelled: dict[str, Any] = {}
    for where, network in NETWORKS.items():
        print(f"{where}: {network.latency_us:.0f} us a hop, {network.gigabytes:.0f} GB/s (assumed)")
        for name, sizes in sent.items():
            ms = network.milliseconds(sizes, shard=True)
            modelled[f"{where}: {name}"] = ms
            parts = ", ".join(f"{part} {value:.2f}" for part, value in ms.items())
            print(f"  {name:30s} {parts} ms")
    write_result("communication", {"bytes": sent, "measured_ms": measured, "modelled_ms": modelled})


def between_two(sizes: dict[str, int], repeats: int) -> dict[str, float]:
    """Median milliseconds of each exchange between two processes."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        answers = context.SimpleQueue()
        arguments = [(rank, f"file://{folder}/meet", sizes, repeats, answers) for rank in range(2)]
        processes = [context.Process(target=_rank, args=given) for given in arguments]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        return answers.get()


def _rank(rank: int, meet: str, sizes: dict[str, int], repeats: int, answers: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", meet, rank=rank, world_size=2)
    gradients = torch.zeros(sizes["gradients"] // 4)
    features, labels = torch.zeros(64, sizes["keys"] // 128 // 4 - 4), torch.zeros(64, dtype=torch.int64)
    bank = torch.zeros(sizes["bank"] // 8 // 128, 128)

    def sharded() -> None:
        rows = gather(bank, [len(bank)] * 2)
        dist.all_reduce(rows)

    functions: dict[str, Callable[[], Any]] = {
        "gradients": lambda: dist.all_reduce(gradients),
        "keys": lambda: [gather(column, [64, 64]) for column in (features, labels, labels)],
        "bank": sharded,
        "stop": lambda: largest(0),
    }
    times: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(3 + repeats):
        for name, function in functions.items():
            start = time.perf_counter()  # waiting for the other counts, so it is no matter of processor time
            function()
            if turn >= 3:
                times[name].append(1e3 * (time.perf_counter() - start))
    if rank == 0:
        answers.put({name: statistics.median(values) for name, values in times.items()})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
