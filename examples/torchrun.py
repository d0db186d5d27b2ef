"""The same training on one process and on two: the same images in the same batches, and the same bank on both ranks.

    python examples/torchrun.py

On GPUs you would only type the second command, with `--nproc-per-node` as many as there are; on several machines add
`--nnodes` and `--rdzv-endpoint` (docs/scale.md). Here both run on the CPU. The network has no BatchNorm, whose
statistics are each process's own, so that the two losses can be compared.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

TARGET = 0.85  # balanced accuracy that both must reach
SAME = 1e-3  # relative difference of the first epoch's loss: rounding, and no more

TRAIN = "train digits-lt --method gml --model small_no_norm --epochs 30 --batch-size 32 --lr 0.003 --device cpu"
TRAIN += " --precision float32 --set optim.kind=adamw --set teacher.optim.kind=adamw --set kd_weight=0"
RUNS = "runs/torchrun"
ONE = [sys.executable, "-m", "longtail"]
TWO = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "longtail"]


def run(launcher: list[str], out: str) -> tuple[list[float], float]:
    """Train, and return the loss of every epoch and the balanced accuracy of the last."""
    cache = {"LONGTAIL_CACHE": f"{RUNS}/cache"}  # where the second run finds its teacher
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **cache}
    subprocess.run([*launcher, *TRAIN.split(), "--out", out, "--resume"], check=True, env=environment)
    epochs = [json.loads(line) for line in Path(out, "metrics.jsonl").read_text().splitlines()]
    return [epoch["loss"] for epoch in epochs], epochs[-1]["balanced_accuracy"]


one, alone = run(ONE, f"{RUNS}/one")
two, together = run(TWO, f"{RUNS}/two")
print(f"\n{'epoch':>5s}  one process  two processes")
for epoch in (1, 2, 5, 10, 30):
    print(f"{epoch:5d}  {one[epoch - 1]:11.5f}  {two[epoch - 1]:13.5f}")
print(f"balanced accuracy {alone:.3f} and {together:.3f}")
assert abs(one[0] - two[0]) < SAME * one[0], "the first epochs differ by more than rounding"
assert min(alone, together) > TARGET, f"{min(alone, together):.3f} is below {TARGET}"
