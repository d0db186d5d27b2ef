"""Rewrite what README.md takes from results/: the table between its markers, and the picture.

python dev/readme.py
"""

import json
from pathlib import Path

from longtail.engine.loop import duration
from longtail.measure import plots
from longtail.measure.groups import by_threshold
from longtail.measure.per_class import read_csv

ROOT = Path(__file__).parents[1]
ROWS = {
    "cifar100-lt-30-cross_entropy": "plain cross-entropy",
    "cifar100-lt-30-logit_adjusted": "logit-adjusted",
    "cifar100-lt-30-gml": "GML",
}
START, END = "<!-- results: dev/readme.py writes from here -->", "<!-- to here -->"


def main() -> None:
    results = {name: json.loads((ROOT / f"results/{name}.json").read_text()) for name in ROWS}
    readme = ROOT / "README.md"
    before, _, rest = readme.read_text().partition(START)
    _, _, after = rest.partition(END)
    readme.write_text(f"{before}{START}\n{table(results)}\n{END}{after}")
    accuracies = {}
    for name, label in ROWS.items():
        counts, _, train_counts = read_csv(ROOT / f"results/runs/{name}/per_class.csv")
        accuracies[label] = counts.accuracy
    figure = plots.counts_and_accuracy(train_counts, accuracies, by_threshold(train_counts))
    plots.save(figure, ROOT / "docs/_static/tail.png")


def table(results: dict) -> str:
    columns = ["", "all", "many", "medium", "few", "parameters", "epochs", "hours", "command"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name, label in ROWS.items():
        run = results[name]
        numbers = " | ".join(f"{100 * run['summary'][key]:.1f}" for key in ("accuracy", "many", "medium", "few"))
        command = " ".join(run["command"])
        teacher = " + teacher's" if run["keys"] else ""
        lines.append(
            f"| {label} | {numbers} | {run['parameters'] / 1e6:.2f} M | {run['epochs']}{teacher} "
            f"| {run['hours']:.2f} | `{command}` |"
        )
    run, teacher = results["cifar100-lt-30-gml"], results["cifar100-lt-30-logit_adjusted"]
    where = run["environment"]
    lines += [
        "",
        f"CIFAR-100-LT, imbalance 100, ResNet-32, seed {run['seed']}, one run each; top-1 % on the balanced test, "
        f"{run['rule']}. {where['device']}, {where['threads']} thread, torch {where['versions']['torch']}, on a "
        f"machine busy with other work. GML's teacher is the run above it ({duration(3600 * teacher['hours'])}).",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
