"""A finished run as one JSON file under `results/`: where tables, pages and pictures take their numbers from."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from longtail.errors import LongtailError
from longtail.files import read_json, write_json

KEPT = ("metrics.jsonl", "per_class.csv", "model.safetensors", "model.json", "bank.safetensors")
KEPT += ("open_clip_config.json", "corpus.jsonl")  # of a small CLIP, which `--clip` takes from there


def record(run: Path, name: str, results: Path = Path("results"), keep_weights: bool = True) -> dict[str, Any]:
    """Write `results/NAME.json`, and beside it `results/runs/NAME/` with config, log, counts and the final weights."""
    if not (run / "result.json").exists():
        raise LongtailError(f"{run} holds no finished run (there is no result.json): let it finish, or --resume it")
    config, last = (_for_anybody(read_json(run / name), run.parent) for name in ("config.json", "result.json"))
    config = {**config, "command": repeatable(config["command"])}
    recipe = config["recipe"]
    paths = [run / stage["name"] / "result.json" for stage in recipe["stages"][:-1]]  # in the order of their training
    earlier = [_for_anybody(read_json(path), run.parent) for path in paths if path.exists()]
    entry = {
        "name": name,
        "method": last["method"],
        "model": last["model"],
        "data": recipe["data"],
        "seed": recipe["seed"],
        "epochs": last["epochs"],
        "summary": last["summary"],
        "second": last.get("second", {}),
        "rule": "last epoch, answered as trained",
        "parameters": last["parameters"],
        "hours": last["hours"],
        "stages": [*earlier, last],
        "keys": recipe["stages"][-1]["keys"],
        "start_from": recipe["stages"][-1]["start_from"],
        "command": config["command"],
        "environment": config["environment"],
    }
    results.mkdir(parents=True, exist_ok=True)
    write_json(results / f"{name}.json", entry)
    folder = results / "runs" / name
    folder.mkdir(parents=True, exist_ok=True)
    for file in KEPT:
        if (run / file).exists() and (keep_weights or not file.endswith(".safetensors")):
            shutil.copyfile(run / file, folder / file)
    write_json(folder / "config.json", config)
    write_json(folder / "result.json", last)  # it is a finished run, which `longtail report` takes
    return entry


def _for_anybody(values: dict[str, Any], runs: Path) -> dict[str, Any]:
    """The folder that all runs are in is called `runs` wherever it lies, as in the name of a CLIP that is in it."""
    text, home = json.dumps(values), str(Path.home())
    for here in {str(runs), str(runs).replace(home, "~", 1)} - {"."}:
        text = re.sub(rf"(?<![\w./-]){re.escape(json.dumps(here)[1:-1])}/", "runs/", text)
    return json.loads(text)


def repeatable(command: list[str]) -> list[str]:
    """The command as anybody would type it: without the folder it wrote to here and without `--resume`."""
    program = Path(command[0])
    words, kept = iter(command[1:]), ["python", "-m", f"longtail.{program.stem}"] if program.suffix else ["longtail"]
    for word in words:
        if word == "--out":
            next(words, None)
        elif word != "--resume" and not word.startswith("--out="):
            kept.append(word)
    return kept
