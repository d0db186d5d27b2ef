"""Rewrite what README.md takes from results/: the table between its markers, and the picture. Rows without a run wait.

python dev/readme.py
"""

import json
import textwrap
from pathlib import Path
from typing import Any

from longtail.measure import plots
from longtail.measure.groups import Groups, by_threshold
from longtail.measure.per_class import read_csv

ROOT = Path(__file__).parents[1]
ROWS = {
    "cifar100-lt-30-cross_entropy": "plain cross-entropy",
    "cifar100-lt-30-logit_adjusted": "logit-adjusted",
    "cifar100-lt-30-gml": "GML",
}
START, END = "<!-- results: dev/readme.py writes from here -->", "<!-- to here -->"


def main(root: Path = ROOT) -> None:
    results = {
        name: json.loads((root / f"results/{name}.json").read_text())
        for name in ROWS
        if (root / f"results/{name}.json").exists()
    }
    accuracies = {}
    for name in results:
        counts, _, train_counts = read_csv(root / f"results/runs/{name}/per_class.csv")
        accuracies[ROWS[name]] = counts.accuracy
    groups = by_threshold(train_counts)
    plots.save(plots.counts_and_accuracy(train_counts, accuracies, groups), root / "docs/_static/tail.png")
    readme = root / "README.md"
    before, _, rest = readme.read_text().partition(START)
    _, _, after = rest.partition(END)
    readme.write_text(f"{before}{START}\n{table(results, groups)}\n{END}{after}")


def table(results: dict[str, dict[str, Any]], groups: Groups) -> str:
    """Accuracy of all and of the three groups; what a run cost; and, below, the commands to repeat it."""
    columns = ["", "all", "many", "medium", "few", "parameters", "epochs", "hours"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name, run in results.items():
        numbers = " | ".join(f"{100 * run['summary'][key]:.1f}" for key in ("accuracy", "many", "medium", "few"))
        taught = " + the teacher's" if run["keys"] and len(run["stages"]) == 1 else ""
        hours = sum(stage["hours"] for stage in run["stages"])
        size = f"{run['parameters'] / 1e6:.2f} M"
        lines.append(f"| {ROWS[name]} | {numbers} | {size} | {run['epochs']} | {hours:.2f}{taught} |")
    last = list(results.values())[-1]
    where = last["environment"]
    caption = (
        f"CIFAR-100-LT, imbalance 100, ResNet-32, seed {last['seed']}, one run each: top-1 in per cent on the balanced "
        f"test, {last['rule']}. Classes: {str(groups).removesuffix(' classes')}. {where['device']}, {where['threads']} "
        f"thread, torch {where['versions']['torch']}, beside other work."
    )
    if last["keys"]:
        caption += " GML's teacher is the logit-adjusted run."
    lines += [
        "",
        textwrap.fill(caption, 119),
        "",
        "```",
        *(" ".join(run["command"]) for run in results.values()),
        "```",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
