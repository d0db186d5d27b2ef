"""docs/results.md, from results/*.json: our number beside the paper's, with seeds, hardware and hours.

Every list of runs, `results/queue_*.yaml`, is a section: its comment is the text, its jobs are the rows, and what has
no result yet is named below the table. conf.py calls this at every build; `python docs/results_page.py` does it alone.
"""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shown import over_seeds, table

from longtail import recipes
from longtail.engine.queue import read_jobs
from longtail.recipes.stated import stated

ROOT = Path(__file__).parents[1]
TITLES = {  # in this order; other lists come behind, under their names
    "paper": "The paper's number",
    "factors": "Other imbalances",
    "first": "30 epochs, crop and flip",
    "equal_budget": "Every method at 40 epochs",
    "ablation": "Ablation",
    "beyond": "Beyond the paper",
    "less_cost": "A cheaper step",
    "distillation": "Distillation",
    "supcon": "Encoder and classifier apart",
}
METRICS = {
    "balanced_accuracy": "accuracy",
    "many": "many",
    "medium": "medium",
    "few": "few",
    "miou": "mIoU",
    "macc": "mAcc",
}
SAME_METHOD = {"none": ("logit_adjusted", "balanced_softmax")}  # as table 8 calls a student without a teacher


@dataclass(frozen=True)
class Group:
    """The seeds of one experiment."""

    name: str
    runs: tuple[dict[str, Any], ...]

    def mean(self, metric: str) -> str:
        values = [run["summary"][metric] for run in self.runs if run["summary"].get(metric) is not None]
        return over_seeds(values) if values else ""

    def second(self) -> str:
        """Of a bank: the mixture's answer and the average of both."""
        found = [run["second"] for run in self.runs if run.get("second")]
        means = [
            statistics.mean(100 * one[name]["balanced_accuracy"] for one in found)
            for name in ("kernel", "both")
            if found
        ]
        return " / ".join(f"{mean:.1f}" for mean in means)


def page(results: Path) -> str:
    sections = [section(path, results) for path in queues(results)]
    costs = dry_runs(results)
    return "\n\n".join([HEAD, *(text for text in sections if text), *([costs] if costs else [])]) + "\n"


HEAD = """# Results

This page is made from the files in `results/` whenever the site is built; no number on it was typed. Ours is always the
last epoch of a run, answered as trained, in per cent on the balanced test set; nothing is chosen on the test split. ±
is the sample standard deviation over seeds, an asterisk marks a row of one seed. Hours are of all that a row needed,
the teacher's or the backbone's own run included, on the hardware below its table, which did other work meanwhile.
*Bank* is what the mixture over the bank answers, and the average of both answers, where there is a bank. *Paper* is the
published number of the same data, method and network; where its epochs or its settings differ from ours that stands
beside it, and it is then no target for this row: look at the order of the rows."""


def queues(results: Path) -> list[Path]:
    found = {path.stem.removeprefix("queue_"): path for path in results.glob("queue_*.yaml")}
    return [found[name] for name in [*TITLES, *sorted(set(found) - set(TITLES))] if name in found]


def section(queue: Path, results: Path) -> str:
    key = queue.stem.removeprefix("queue_")
    groups, missing = grouped(queue, results)
    if not groups:
        return ""
    columns = [name for name in METRICS if any(group.mean(name) for group in groups)]
    head = ["run", *(METRICS[name] for name in columns)]
    with_bank, with_paper = any(g.second() for g in groups), any(paper(g.runs[0]) for g in groups)
    head += ["bank"] * with_bank + ["paper"] * with_paper + ["parameters", "epochs", "hours", "seeds"]
    rows = []
    for group in groups:
        run = group.runs[0]
        row = [f"`{group.name}`", *(group.mean(name) for name in columns)]
        row += [group.second()] * with_bank + [paper(run)] * with_paper
        hours = statistics.mean(hours_of(one, results) for one in group.runs)
        size, seeds = f"{run['parameters'] / 1e6:.2f} M", ", ".join(str(one["seed"]) for one in group.runs)
        rows.append([*row, size, epochs_of(run, results), f"{hours:.2g}", seeds])
    parts = [f"## {TITLES.get(key, key.replace('_', ' ').capitalize())}", intro(queue), table(head, rows)]
    parts += [verdict for group in groups if (verdict := band(group))]
    parts += [curve for group in groups if (curve := temperature(group, results))]
    parts.append(f"{hardware(groups)}" + (f" Not run yet: {', '.join(f'`{m}`' for m in missing)}." if missing else ""))
    return "\n\n".join(parts)


def grouped(queue: Path, results: Path) -> tuple[list[Group], list[str]]:
    """The experiments with a result, in the list's order, and the jobs without one."""
    runs: dict[str, list[dict[str, Any]]] = {}
    missing = []
    for job in read_jobs(queue):
        path = results / f"{job.name}.json"
        if path.exists():
            runs.setdefault(re.sub(r"-s\d+$", "", job.name), []).append(json.loads(path.read_text()))
        else:
            missing.append(job.name)
    return [Group(name, tuple(found)) for name, found in runs.items()], missing


def intro(queue: Path) -> str:
    """The comment that a list begins with, up to the command that works it off."""
    lines = []
    for line in queue.read_text().splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return " ".join(lines)


def paper(run: dict[str, Any]) -> str:
    """The published number of a recipe, or of the same data, method and network; the nearest in epochs."""
    if (recipe := recipe_of(run)) is not None:
        stage = run["stages"][-1]["stage"]
        numbers = stated(recipes.find(recipe)).of_stage(stage, recipes.build(recipe).stages[-1].name == stage)
        of_all = [number.value for number in numbers if number.metric == "accuracy"]
        return "".join(f"{value:g}{' (other settings)' * ('--set' in run['command'])}" for value in of_all)
    rows = json.loads((ROOT / "results/published/paper.json").read_text())["rows"]
    data = run["data"]
    same = [
        row
        for row in rows
        if run["method"] in SAME_METHOD.get(row["method"], (row["method"],))
        and (row["data"], row.get("imbalance"), row["model"]) == (data["source"], data.get("imbalance"), run["model"])
        and "accuracy" in row
    ]
    if not same:
        return ""
    row = min(same, key=lambda row: abs((row.get("epochs") or 0) - run["epochs"]))
    epochs = row.get("epochs")
    return f"{row['accuracy']}" + (f" ({epochs} epochs)" if epochs and epochs != run["epochs"] else "")


def recipe_of(run: dict[str, Any]) -> str | None:
    command = run["command"]
    return command[2] if command[1:2] == ["reproduce"] and command[2] in recipes.RECIPES else None


def before(run: dict[str, Any], results: Path) -> dict[str, Any] | None:
    """The recorded run that this one started from: its teacher, or its backbone."""
    path = run.get("keys") or run.get("start_from") or ""
    file = results / f"{Path(path).name}.json"
    return json.loads(file.read_text()) if "/" in path and file.exists() else None


def hours_of(run: dict[str, Any], results: Path) -> float:
    earlier = before(run, results)
    return sum(stage["hours"] for stage in run["stages"]) + (hours_of(earlier, results) if earlier else 0.0)


def epochs_of(run: dict[str, Any], results: Path) -> str:
    """Of each stage, the earliest first."""
    earlier = before(run, results)
    own = [str(stage["epochs"]) for stage in run["stages"] if stage["epochs"]]
    return " + ".join([epochs_of(earlier, results), *own] if earlier else own)


def band(group: Group) -> str:
    """Where a row is a recipe as it stands: whether its number came out."""
    recipe = recipe_of(group.runs[0])
    if recipe is None or "--set" in group.runs[0]["command"]:
        return ""
    stage = group.runs[0]["stages"][-1]["stage"]
    expected = stated(recipes.find(recipe)).of_stage(stage, recipes.build(recipe).stages[-1].name == stage)
    lines = [number.verdict(run["summary"]) for run in group.runs for number in expected]
    return "\n".join(f"`{group.name}`: {line}." for line in lines)


def temperature(group: Group, results: Path) -> str:
    """The curve of a learned tau_g, as eleven of its points."""
    path = results / "runs" / group.runs[0]["name"] / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    found = [(row["epoch"], row["tau_g"]) for row in rows if "tau_g" in row]
    if not found:
        return ""
    picked = [found[round(i * (len(found) - 1) / 10)] for i in range(11)] if len(found) > 11 else found
    points = table(["epoch", *(str(epoch) for epoch, _ in picked)], [["tau_g", *(f"{tau:.3f}" for _, tau in picked)]])
    return f"How tau_g moved in `{group.name}`:\n\n{points}"


def hardware(groups: list[Group]) -> str:
    places = {
        (run["environment"]["device"], run["environment"]["threads"], run["environment"]["versions"]["torch"])
        for group in groups
        for run in group.runs
    }
    said = (
        f"{device}, {threads} thread{'s' * (threads > 1)}, torch {torch}" for device, threads, torch in sorted(places)
    )
    return f"Hardware: {'; '.join(said)}."


def dry_runs(results: Path) -> str:
    """What the recipes cost whose images are not here."""
    rows, places = [], set()
    for path in sorted((results / "dry_runs").glob("*.json")):
        cost = json.loads(path.read_text())
        batches = {stage.name: stage.batch_size for stage in recipes.build(cost["recipe"]).stages}
        places.add(f"{cost['environment']['device']} ({cost['precision']})")
        for stage in cost["stages"]:
            bank = " x ".join(f"{n:,}" for n in stage["bank"])
            batch, own = stage["batch_size"], batches[stage["stage"]]
            used = stage.get("processor_seconds_a_step")
            rows.append(
                [
                    f"`{cost['recipe']}`",
                    f"{stage['stage']}, {stage['method']}",
                    stage["model"],
                    f"{cost['classes']:,}",
                    bank,
                    f"{batch}" + (f" of {own}" if batch != own else ""),
                    str(cost["environment"]["threads"]),
                    f"{stage['seconds_a_step']:.1f}",
                    "" if used is None else f"{used:.1f}",
                    f"{stage['peak_gb']:.1f}",
                ]
            )
    if not rows:
        return ""
    head = ["recipe", "stage", "network", "classes", "bank", "batch", "threads", "seconds a step", "processor seconds"]
    return (
        "## At full shape\n\nTwo steps of recipes whose images are not at hand, on generated ones: all but the "
        "pixels, and the sentences and weights of a CLIP, is the real thing. The batch is what fits on the machine "
        "that measured, beside the recipe's where it is another. Processor seconds are this process's, of all threads, "
        "where they were recorded: the machine did other work meanwhile. Memory is the process's too, without its "
        f"loader's.\n\n{table([*head, 'GB at most'], rows)}\n\nHardware: {'; '.join(sorted(places))}."
    )


def write(docs: Path, results: Path = ROOT / "results") -> None:
    text, path = page(results), docs / "results.md"
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


if __name__ == "__main__":
    write(ROOT / "docs")
