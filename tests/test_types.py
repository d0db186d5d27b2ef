"""What a user's type checker sees: every name of the public API, with types, in pyright's strict mode."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

SCRIPT = """
from pathlib import Path
from typing import assert_type

import numpy as np
import torch
from torch import Tensor

import longtail as lt
from longtail.measure.metrics import Summary, render
from longtail.prior import log_prior
from longtail.template import add_prior, class_log_mean_exp, cross_entropy, cross_entropy_with_numerator
from longtail.types import Counts, Losses

table = lt.data.load("my_images/")
counts: Counts = table.counts()
run = lt.train(table, method="gml", out=Path("runs/first"), settings={"k_m": 8})
done = lt.evaluate(run, prior={"okapi": 0.5, "cat": 0.5})
assert_type(done.summary, Summary)
assert_type(done.counts, np.ndarray)
print(render({"first": done.summary}))
for answer in lt.predict(run, ["a.jpg", Path("b.jpg"), np.zeros((8, 8, 3), np.uint8)], prior="uniform", top=3):
    assert_type(answer.answer, str)
path, parity = lt.export(run, "first.onnx")
assert_type(path, Path)
assert_type(lt.adjust("scores.npz").what, str)
assert_type(lt.compare("my_images/", ["gml", "crt"]).failed, tuple[tuple[str, str], ...])

model = lt.load("runs/first")
loglik: Tensor = model(torch.zeros(1, 3, 32, 32))
loss = cross_entropy(add_prior(loglik, log_prior(counts)), torch.zeros(1, dtype=torch.long))
assert_type(loss, Tensor)
mixture = class_log_mean_exp(torch.zeros(2, 6), torch.arange(6) // 2, 3)
assert_type(cross_entropy_with_numerator(mixture[:, 0], mixture), Tensor)

gml = lt.methods.gml(counts, 64, k=128, learn_tau=True)
losses: Losses = gml(torch.zeros(2, 64), torch.zeros(2, dtype=torch.long), torch.arange(2), keys=torch.zeros(2, 64))
assert_type(losses.per_sample, Tensor)
assert_type(gml.scores(torch.zeros(2, 64)), Tensor)
assert_type(gml.log_mass, Tensor)
print([row.paper for row in lt.methods.METHODS.values()])
"""

MISTAKES = """
import longtail as lt

lt.train("my_images/", epochs="many")
lt.methods.gml([1, 2], 64, gama=1.0)
"""


@pytest.fixture(scope="module")
def complaints(tmp_path_factory) -> dict[str, list[dict]]:
    """Of both scripts in one go, because most of the time goes into reading torch."""
    if shutil.which("pyright") is None:
        pytest.skip("needs pyright")
    folder = tmp_path_factory.mktemp("user")
    (folder / "right.py").write_text(SCRIPT)
    (folder / "wrong.py").write_text(MISTAKES)
    settings = {"typeCheckingMode": "strict", "pythonVersion": "3.11", "extraPaths": [str(ROOT)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = ["pyright", "--pythonpath", sys.executable, "--outputjson", "right.py", "wrong.py"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    found: dict[str, list[dict]] = {"right.py": [], "wrong.py": []}
    for one in json.loads(ran.stdout)["generalDiagnostics"]:
        found[Path(one["file"]).name].append(one)
    return found


def test_a_script_of_the_whole_api_has_no_unknown_type(complaints):
    assert (ROOT / "longtail/py.typed").exists()
    lines = [f"{one['range']['start']['line']}: {one['message']}" for one in complaints["right.py"]]
    assert not lines, "\n".join(lines)


def test_a_mistake_is_seen_before_it_is_run(complaints):
    assert [one["range"]["start"]["line"] for one in complaints["wrong.py"]] == [3, 4]
