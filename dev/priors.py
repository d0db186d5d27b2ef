"""What does knowing, or learning, the class mix of a place bring? Recorded runs on tests resampled to seven mixes.

    python dev/priors.py cifar100-lt-30-cross_entropy cifar100-lt-30-gml

Takes the weights under results/runs/, answers the test images once, writes results/priors-NAME.json and rewrites the
tables in docs/priors.md, those of earlier runs too. A run that held images out of training (--hold-out) has its
temperature fitted on them first, as the page advises.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from longtail.answers.run import collected, open_run, questions
from longtail.files import write_json
from longtail.measure.calibrate import fit_temperature
from longtail.measure.priors import under_shifts
from longtail.prior import uniform

ROOT = Path(__file__).parents[1]
SEEDS = tuple(range(10))  # resamples of each mix, so that which images were drawn hardly matters
COLUMNS = ("train", "uniform", "true", "estimated")
START, END = "<!-- results: dev/priors.py writes from here -->", "<!-- to here -->"


def main() -> None:
    for name in sys.argv[1:]:
        write_json(ROOT / f"results/priors-{name}.json", measured(name))
    page = ROOT / "docs/priors.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(START)
    _, _, after = rest.partition(END)
    found = [json.loads(path.read_text()) for path in sorted((ROOT / "results").glob("priors-*.json"))]
    tables = "\n\n".join(table(entry) for entry in found)
    page.write_text(f"{before}{START}\n\n{tables}\n\n{END}{after}", encoding="utf-8")


def measured(name: str) -> dict:
    run = open_run(ROOT / "results/runs" / name, "cpu")
    prior_free = uniform(len(run.classes))
    temperature = None
    if run.recipe.data.val_fraction:
        temperature = fit_temperature(*collected(run, questions(run, split="val").loader, prior_free))
    loglik, labels = collected(run, questions(run, split="test").loader, prior_free)
    rows = under_shifts(loglik / (temperature or 1), labels, run.counts, seeds=SEEDS)
    return {
        "run": name,
        "method": run.model.card["method"],
        "data": run.recipe.data.source,
        "epochs": run.recipe.stages[-1].epochs,
        "temperature": temperature,
        "resamples": len(SEEDS),
        "command": f"python dev/priors.py {name}",
        "rows": [asdict(row) for row in rows],
    }


def table(entry: dict) -> str:
    fitted = entry["temperature"]
    temperature = (
        f"temperature {fitted:.3g}, fitted on val" if fitted else "temperature 1, as it held no val images out"
    )
    lines = [
        f"`{entry['run']}` ({entry['method']} on {entry['data']}, {entry['epochs']} epochs, one seed; {temperature}):",
        "",
        "| test mix | images | train | uniform | true | estimated | estimate's distance |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in entry["rows"]:
        cells = " | ".join(f"{100 * row[column]:.1f}" for column in COLUMNS)
        lines.append(f"| {row['name']} | {row['images']:,} | {cells} | {row['distance']:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
