"""The demo's GML loss, step by step, on one seed: a refactor must not move it.

    python tests/golden/curve.py        rewrites demo_gml.txt, after a change that is meant to move it

The teacher is stored (`demo_teacher/`, the demo's logit-adjusted run of seed 0): the curve is the student's own.
"""

import contextlib
import io
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

from longtail.demo import demo_stage
from longtail.engine import device, stages
from longtail.engine.logs import Progress, StepLog
from longtail.engine.loop import Interrupted
from longtail.recipe import Data, Recipe

HERE = Path(__file__).parent
CURVE = HERE / "demo_gml.txt"
STEPS = 50


def losses(folder: Path, epochs: int | None = None) -> list[float]:
    """Loss of every step of the demo's student; of its first epochs only, where so many are asked for."""
    found: list[float] = []
    add = StepLog.add

    def noting(log: StepLog, parts, images: int) -> None:
        found.append(float(parts["loss"]))
        add(log, parts, images)

    stage = replace(demo_stage("gml"), keys=str(HERE / "demo_teacher"))
    data = Data("digits-lt", imbalance=50)
    recipe = Recipe(data, (stage,), seed=0, evaluate_every=stage.epochs)
    table, cpu = stages.load_data(data), device.choose("float32", "cpu")
    wanted = epochs or stage.epochs

    def stop_requested() -> int | None:
        return 15 if len(found) >= wanted * 10 else None

    quiet, run = Progress(io.StringIO()), tempfile.TemporaryDirectory(dir=folder)
    with mock.patch.object(StepLog, "add", noting), run as path, contextlib.suppress(Interrupted):
        stages.run(recipe, table, Path(path), cpu, progress=quiet, stop_requested=stop_requested)
    return found


if __name__ == "__main__":
    teacher = HERE / "demo_teacher"
    data = Data("digits-lt", imbalance=50)
    recipe = Recipe(data, (demo_stage("logit_adjusted"),), seed=0, evaluate_every=100)
    if not teacher.exists():
        with tempfile.TemporaryDirectory() as run:
            place = device.choose("float32", "cpu")
            stages.run(recipe, stages.load_data(data), Path(run), place, progress=Progress(io.StringIO()))
            teacher.mkdir()
            for name in ("model.safetensors", "model.json"):
                (teacher / name).write_bytes((Path(run) / name).read_bytes())
    with tempfile.TemporaryDirectory() as folder:
        CURVE.write_text("".join(f"{step} {loss:.9g}\n" for step, loss in enumerate(losses(Path(folder)))))
