"""docs/results.md says what results/ say: seeds together, the paper's number beside ours, what is still to be run."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def results_page():
    sys.path.insert(0, str(ROOT / "docs"))  # as Sphinx has it
    spec = importlib.util.spec_from_file_location("results_page", ROOT / "docs/results_page.py")
    assert spec
    assert spec.loader
    module = sys.modules["results_page"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def record(folder: Path, name: str, accuracy: float, **more) -> None:
    run = {
        "name": name,
        "method": "gml",
        "model": "resnet32",
        "data": {"source": "cifar100-lt", "imbalance": 100.0},
        "seed": 0,
        "epochs": 40,
        "summary": {
            "accuracy": accuracy,
            "balanced_accuracy": accuracy,
            "many": accuracy,
            "medium": accuracy,
            "few": accuracy,
        },
        "parameters": 470_004,
        "stages": [{"stage": "student", "epochs": 40, "hours": 0.5}],
        "keys": "",
        "command": ["longtail", "train", "cifar100-lt"],
        "environment": {"device": "a processor", "threads": 1, "versions": {"torch": "2.15.0"}},
    }
    (folder / f"{name}.json").write_text(json.dumps(run | more))


def row(text: str, name: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| `{name}` |"))
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_seeds_are_one_row_with_their_deviation_and_a_teachers_hours_count(results_page, tmp_path):
    (tmp_path / "queue_ablation.yaml").write_text(
        "# What this list is for.\njobs:\n- {name: gml, run: train x, seeds: 3}\n- {name: teacher, run: train x}\n"
        "- {name: never, run: train x}\n"
    )
    for seed, accuracy in enumerate((0.40, 0.41, 0.42)):
        second = {"kernel": {"balanced_accuracy": accuracy - 0.02}, "both": {"balanced_accuracy": accuracy + 0.01}}
        record(tmp_path, f"gml-s{seed}", accuracy, seed=seed, keys="results/runs/teacher", second=second)
    record(tmp_path, "teacher", 0.38, method="logit_adjusted", stages=[{"stage": "train", "epochs": 30, "hours": 0.25}])
    text = results_page.page(tmp_path)
    assert "## Ablation\n\nWhat this list is for." in text
    cells = row(text, "gml")
    assert cells[1] == "41.0 ± 1.0"
    assert "39.0 / 42.0" in cells  # the mixture, and both
    assert "53.0 (200 epochs)" in cells
    assert cells[-3:] == ["30 + 40", "0.75", "0, 1, 2"]
    assert row(text, "teacher")[1] == "38.0\\*"
    assert "a processor, 1 thread, torch 2.15.0" in text
    assert "Not run yet: `never`" in text


@pytest.mark.parametrize(
    ("accuracy", "changed", "says"), [(0.53, [], "inside"), (0.5, [], "outside"), (0.5, ["x"], "")]
)
def test_a_recipe_as_it_stands_says_whether_its_number_came_out(results_page, tmp_path, accuracy, changed, says):
    (tmp_path / "queue_paper.yaml").write_text("jobs:\n- {name: paper, run: reproduce cifar100-lt-100-200}\n")
    command = ["longtail", "reproduce", "cifar100-lt-100-200", *(["--set", *changed] if changed else [])]
    record(tmp_path, "paper", accuracy, epochs=200, command=command)
    text = results_page.page(tmp_path)
    assert ("52 to 54.5" in text) == bool(says)
    assert not says or says in text
    assert ("53 (other settings)" if changed else "53") in row(text, "paper")


def test_a_learned_temperature_has_its_curve(results_page, tmp_path):
    (tmp_path / "queue_ablation.yaml").write_text("jobs:\n- {name: learned, run: train x}\n")
    record(tmp_path, "learned", 0.4)
    (tmp_path / "runs/learned").mkdir(parents=True)
    lines = [json.dumps({"epoch": e, "tau_g": 0.1 - 0.001 * e}) for e in range(1, 41)]
    (tmp_path / "runs/learned/metrics.jsonl").write_text("\n".join(lines))
    text = results_page.page(tmp_path)
    assert "| epoch | 1 |" in text
    assert "| tau_g | 0.099 |" in text
    assert "| 0.060 |" in text


def test_costs_at_full_shape_are_a_table(results_page, tmp_path):
    stage = {"stage": "student", "method": "gml", "model": "resnet50", "batch_size": 8, "bank": [65536, 2048]}
    stages = [stage | {"seconds_a_step": 61.24, "processor_seconds_a_step": 20.5, "peak_gb": 5.5}]
    stages.append(stages[0] | {"stage": "teacher", "bank": [], "batch_size": 128})
    del stages[1]["processor_seconds_a_step"]
    cost = {"recipe": "inat18-100", "classes": 8142, "precision": "bfloat16", "stages": stages}
    cost["environment"] = {"device": "a processor", "threads": 2}
    (tmp_path / "dry_runs").mkdir()
    (tmp_path / "dry_runs/inat18-100.json").write_text(json.dumps(cost))
    text = results_page.page(tmp_path)
    assert "| 8 of 128 | 2 | 61.2 | 20.5 | 5.5 |" in text
    assert "| 128 | 2 | 61.2 |  | 5.5 |" in text
    assert row(text, "inat18-100")[1:5] == ["student, gml", "resnet50", "8,142", "65,536 x 2,048"]
    assert "Hardware: a processor (bfloat16)." in text


def test_every_dry_run_here_is_named_after_its_recipe_and_is_on_the_page(results_page):
    results = ROOT / "results"
    assert not list((results / "bench").glob("*dry*"))
    text = results_page.dry_runs(results)
    for path in (results / "dry_runs").glob("*.json"):
        assert json.loads(path.read_text())["recipe"] == path.stem
        assert f"| `{path.stem}` |" in text


def test_every_job_of_the_lists_here_is_a_run_or_still_to_be_done(results_page):
    for queue in results_page.queues(ROOT / "results"):
        groups, missing = results_page.grouped(queue, ROOT / "results")
        assert groups or missing
        assert "`longtail queue" in queue.read_text()
