"""The pages that are made from the code and from results/: one a method, the method table, the measured numbers.

Called by conf.py at every build; nothing it writes is kept in the repository.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
import statistics
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from pixels import camvid
from shown import over_seeds, table

import longtail
import longtail.methods
from longtail.engine.queue import read_jobs
from longtail.methods import METHODS, settings_of
from longtail.methods.published import Published
from longtail.recipe import Stage

ROOT = Path(__file__).parents[1]
COLUMNS = ("likelihood", "samples", "prior", "numerator", "weight")
GROUPS = ("many", "medium", "few")
CONTENTS = {
    "Use it": ("start", "choose", "tutorial", "data", "evaluate", "priors", "use", "pitfalls"),
    "Understand it": ("template", "methods/index", "results", "reproduce"),
    "Beyond one label an image": ("segmentation", "vision_language"),
    "Build on it": ("extend", "api", "scale", "cost", "reliability"),
}
BENCHMARK = {"source": "cifar100-lt", "imbalance": 100}  # where methods are compared
COMPARED = ("paper", "first", "equal_budget")  # the lists of runs that compare them


def write_pages(docs: Path) -> None:
    pages = {"index": methods_index(), **{name: method_page(row) for name, row in METHODS.items()}}
    _write_all(docs / "methods", pages)
    parts = {
        "api": api(),
        "contents": contents(docs),
        "method_table": method_table("methods/"),
        "measured": measured_table("methods/"),
        "cost": cost_table(),
        "less_cost": less_cost_table(),
        "less_accuracy": less_accuracy_table(),
        "camvid": camvid(ROOT / "results"),
        "text": clip_table("methods/"),
        "text_costs": clip_costs(),
    }
    _write_all(docs / "_generated", parts)


def _write_all(folder: Path, pages: dict[str, str]) -> None:
    """Only what changed, so that a second build has little to do."""
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.md"):
        if old.stem not in pages:
            old.unlink()
    for name, text in pages.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def contents(docs: Path) -> str:
    """The site's table of contents: the pages that are there, in the order in which they are read."""
    parts = []
    for caption, pages in CONTENTS.items():
        there = "\n".join(page for page in pages if (docs / f"{page}.md").exists())
        parts.append(f"```{{toctree}}\n:caption: {caption}\n:hidden:\n\n{there}\n```\n")
    return "\n".join(parts)


# ---- the Python API -----------------------------------------------------------------------------------------------

# What else is public, for loops and evaluations of one's own.
MODULES = {
    "longtail.data": ("load",),
    "longtail.template": ("add_prior", "cross_entropy", "cross_entropy_with_numerator", "class_log_mean_exp"),
    "longtail.prior": ("log_prior", "uniform", "prior_free", "from_file", "to_file"),
    "longtail.measure.counters": ("Counters",),
    "longtail.measure.metrics": ("summarise", "render"),
    "longtail.measure.per_class": ("read_csv", "write_csv"),
    "longtail.measure.groups": ("by_threshold", "by_terciles"),
    "longtail.measure.priors": ("estimate_prior", "answers", "shifted_prior", "resample"),
    "longtail.measure.logits": ("load", "adjust", "save"),
}


def api() -> str:
    verbs = [name for name in longtail.__all__ if name not in ("data", "methods")]
    parts = ["## Verbs", *(entry("lt", getattr(longtail, name)) for name in verbs)]
    parts += ["## Objectives", OBJECTIVES]
    for module, names in MODULES.items():
        parts += [f"## {module}", *(entry("", getattr(importlib.import_module(module), name)) for name in names)]
    return "\n\n".join(parts)


OBJECTIVES = """`lt.methods` has the objective of every [method](methods/index.md) under its name: a torch module,
`objective(features, labels, ids) -> Losses`, made from class counts and the width of the features. `lt.methods.METHODS`
is the table. Settings are on the methods' pages."""


def entry(prefix: str, thing: Any) -> str:
    """Name, signature, and the docstring as it stands, its example as code."""
    text = inspect.cleandoc(thing.__doc__ or "")
    text = re.sub(r"^( *>>> .*(?:\n.+)*)", r"```pycon\n\1\n```", text, flags=re.MULTILINE)
    name = f"{prefix}.{thing.__name__}" if prefix else thing.__name__
    return f"### {name}\n\n```python\n{signature(thing, name)}\n```\n\n{text}"


def signature(thing: Any, name: str) -> str:
    """One line where it fits a page, else one line an argument."""
    said = inspect.signature(thing)
    arguments, star = [], False
    for parameter in said.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            arguments.append("*")
        star = star or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        arguments.append(argument(parameter))
    returns = "" if said.return_annotation is said.empty else f" -> {kind(said.return_annotation)}"
    line = f"{name}({', '.join(arguments)}){returns}"
    if len(line) <= 84:
        return line
    return f"{name}(\n" + "".join(f"    {each},\n" for each in arguments) + f"){returns}"


def argument(parameter: inspect.Parameter) -> str:
    star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = f"{star}{parameter.name}"
    if parameter.annotation is not parameter.empty:
        text += f": {kind(parameter.annotation)}"
    return text if parameter.default is parameter.empty else f"{text} = {parameter.default!r}"


def kind(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


# ---- methods ------------------------------------------------------------------------------------------------------


def module_of(row: Published) -> ModuleType:
    """The file a row stands in."""
    for found in pkgutil.iter_modules(longtail.methods.__path__, "longtail.methods."):
        module = importlib.import_module(found.name)
        if any(value is row for value in vars(module).values()):
            return module
    raise AssertionError(f"{row.name} is in no file of longtail/methods")


def method_table(folder: str) -> str:
    """The table of the field, each row linked to its page."""
    head = ["method", *COLUMNS, "stages"]
    rows = [
        [f"[{row.name}]({folder}{row.name}.md)", *(getattr(row, c) for c in COLUMNS), str(len(stages_of(row)))]
        for row in METHODS.values()
    ]
    return table(head, rows)


def methods_index() -> str:
    toctree = "\n".join(METHODS)
    return f"""# Methods

Every method is the [same formula](../template.md) with other arguments. A row is a file in `longtail/methods/`, a
column is an argument. *Samples* are the points a class's likelihood is made of, *prior* is what training added to the
scores, *numerator* says whether the log-mean-exp is exact or bounded by Jensen's inequality, *weight* is what
multiplies the loss of a sample.

{method_table("")}

Which one to take for your data is on [another page](../choose.md).

```{{toctree}}
:hidden:

{toctree}
```
"""


def method_page(row: Published) -> str:
    module = module_of(row)
    source = Path(inspect.getfile(module)).relative_to(ROOT).as_posix()
    title, body = _docstring(module)
    elsewhere = inspect.getmodule(row.objective)
    assert elsewhere is not None
    if not elsewhere.__name__.startswith("longtail.methods."):  # the arithmetic stands in another folder
        body = "\n\n".join([body, *_docstring(elsewhere)])
    facts = table(["", ""], [[column, getattr(row, column)] for column in ("paper", *COLUMNS)])
    return f"""# {row.name}

{title}

{body}

{when(row.name)}

## Its row

{facts}

## Stages

{stages_text(row)}

## Settings

{settings_table(row)}

Set one on the command line with `--set name=value`.

## Our number beside the published one

{numbers(row.name)}

## The file

<details><summary><code>{source}</code></summary>

```{{literalinclude}} ../../{source}
:language: python
```

</details>
"""


def _docstring(module: ModuleType) -> tuple[str, str]:
    """First sentence and the rest, which is Markdown as it stands."""
    title, _, body = inspect.cleandoc(module.__doc__ or "").partition("\n\n")
    return title.replace("\n", " "), re.sub(r" {4,}(\(eq\.)", r"    \1", body)  # a page is narrower than a file


def when(name: str) -> str:
    said = yaml.safe_load((ROOT / "docs/when.yaml").read_text())[name]
    return f"## When to use it\n\n{said['use']}\n\n## When not to use it\n\n{said['not']}"


def stages_of(row: Published) -> tuple[Stage, ...]:
    return row.stages(Stage(method=row.name, epochs=90))


def stages_text(row: Published) -> str:
    """What one command trains, in order."""
    lines = []
    for stage in stages_of(row):
        said = [f"`{stage.method}`"]
        said.append("the head alone, on frozen features" if stage.trains == "head" else "backbone and head")
        said += [f"starting from the stage `{stage.start_from}`"] * bool(stage.start_from)
        said += [KEYS.get(stage.keys, f"keys from the stage `{stage.keys}`")] * bool(stage.keys)
        said += [f"sampler {stage.sampler}"] * (stage.sampler != "instance")
        said.append(f"{stage.epochs / 90:.2g} of the epochs" if stage.epochs not in (0, 90) else "all epochs")
        if stage.epochs == 0:
            said[-1] = "no training"
        said += ["does not answer"] * (not stage.answers)
        lines.append(f"{len(lines) + 1}. **{stage.name}**: {', '.join(said)}")
    return "\n".join(lines)


KEYS = {"momentum": "keys from a moving average of itself", "frozen": "keys from itself as it starts"}


def settings_table(row: Published) -> str:
    """Name, default, and the comment that stands beside it in the code."""
    source = inspect.getsource(row.objective)
    rows = []
    for name, default in settings_of(row.name).items():
        comment = re.search(rf"^\s*{name}:[^#\n]*#\s*(.*)$", source, re.MULTILINE)
        shown = f"{default:.4g}" if isinstance(default, float) else repr(default)
        rows.append([f"`{name}`", f"`{shown}`", comment[1] if comment else ""])
    return table(["setting", "default", ""], rows) if rows else "There is nothing to set."


# ---- numbers ------------------------------------------------------------------------------------------------------


def runs() -> list[list[dict[str, Any]]]:
    """The recorded runs of classifiers, those that differ by their seed alone together."""
    groups = defaultdict(list)
    for path in sorted((ROOT / "results").glob("*.json")):
        entry = json.loads(path.read_text())
        if isinstance(entry, dict) and {"method", "summary", "seed"} <= entry.keys() and "accuracy" in entry["summary"]:
            groups[re.sub(rf"[-_](s|seed)?{entry['seed']}$", "", entry["name"])].append(entry)
    return list(groups.values())


def published() -> list[dict[str, Any]]:
    return json.loads((ROOT / "results/published/paper.json").read_text())["rows"]


def numbers(method: str) -> str:
    """A row an experiment: what is published of it and what was measured here, either of which may be missing."""
    ours = [group for group in runs() if group[0]["method"] == method]
    rows = []
    for row in published():
        if row["method"] == method and "accuracy" in row:
            same = [group for group in ours if _is_experiment(group[0], row)]
            ours = [group for group in ours if group not in same]
            model = row["model"] + (f" from {row['teacher']}" if row.get("teacher") else "")
            where = [_data(row), model, str(row["epochs"] or "")]
            theirs = f"{_published(row)}, table {row['table']}"
            rows += [[*where, theirs, _measured(group), _name(group)] for group in same] or [[*where, theirs, "", ""]]
    for group in ours:
        run = group[0]
        rows.append([_data(run["data"]), run["model"], str(run["epochs"]), "", _measured(group), _name(group)])
    if not rows:
        return "None is recorded in `results/` yet, and the paper of GML has none."
    head = ["data", "model", "epochs", "published", "ours", "run"]
    return f"{table(head, rows)}\n\nPublished: in the paper of GML. {CAPTION}"


CAPTION = (
    "Accuracy on the balanced test set in per cent, in brackets that of the many-, medium- and few-shot classes. Ours "
    "is always the last epoch, answered as trained; ± is the sample standard deviation over seeds, an asterisk marks a "
    "single seed."
)


def measured_table(folder: str) -> str:
    """The comparison's own benchmark, best first."""
    compared = {job.name for queue in COMPARED for job in read_jobs(ROOT / f"results/queue_{queue}.yaml")}
    groups = [group for group in runs() if group[0]["name"] in compared]
    if not groups:
        return "No run of the comparison is recorded in `results/` yet."
    groups.sort(key=lambda group: -_mean(group, "accuracy"))
    rows = [
        [
            f"[{group[0]['method']}]({folder}{group[0]['method']}.md)",
            group[0]["model"],
            str(group[0]["epochs"]),
            _measured(group),
            f"{sum(stage['hours'] for run in group for stage in run['stages']) / len(group):.2g}",
            _name(group),
        ]
        for group in groups
    ]
    head = ["method", "model", "epochs", "accuracy (many / medium / few)", "hours", "run"]
    return f"{table(head, rows)}\n\n{CAPTION} Hours are of the run's own stages; a teacher has its own row."


def _bench(name: str) -> dict[str, Any]:
    return json.loads((ROOT / f"results/bench/{name}.json").read_text())


def cost_table() -> str:
    """Counted work, the time predicted from it, and what was measured."""
    cost = _bench("cost")
    devices = [rates["name"] for rates in cost["rates"]]
    rows = []
    for row in cost["rows"]:
        cells = [f"{row['gflop']:,.0f}", f"{row['gbyte']:,.1f}", *(_ms(row["ms"][device]) for device in devices)]
        measured = "" if row["measured_ms"] is None else _ms(row["measured_ms"])
        rows.append([row["work"], row["part"], *cells, measured])
    head = ["", "part", "GFLOP", "GB", *(f"{device}, ms" for device in devices), "measured on the core, ms"]
    core, guesses = cost["rates"][0], cost["guesses"]
    peaks = (f"{name} {f / 1e12:,.0f} TFLOP/s and {b / 1e12:.2f} TB/s" for name, (f, b) in cost["peaks"].items())
    caption = (
        f"The core ({cost['machine']['cpu']}) was measured to reach {core['flops'] / 1e9:,.0f} GFLOP/s in bfloat16 "
        f"products and {core['bytes'] / 1e9:.1f} GB/s. Of the GPUs' peaks ({', '.join(peaks)}) a share of "
        f"{guesses['arithmetic']:g} of the arithmetic and {guesses['memory']:g} of the bandwidth is assumed, and "
        f"{guesses['launch_us']:g} µs for every operator; none of that was measured."
    )
    return f"{table(head, rows)}\n\n{caption}"


def less_cost_table() -> str:
    """What embedding less of the bank, and asking the teacher less, were measured to save."""
    shapes = _bench("reembed")["shapes"]
    bank = [[way, *(_ms(shape["ms"][way]) for shape in shapes)] for way in shapes[0]["ms"]]
    less = _bench("less_teacher")
    steps = [[r["name"], _ms(r["step_ms"]), _ms(r["with_asking_ms"]), f"{r['ratio']:.2f}"] for r in less["rows"]]
    asked = f"with what was asked before, over {less['epochs']} epochs, ms"
    return "\n\n".join(
        [
            table(["ms of the contrast term, one core", *(shape["name"] for shape in shapes)], bank),
            table(["CIFAR-100-LT, batch 128, one core", "step, ms", asked, "times the first"], steps),
        ]
    )


LESS = {  # runs of results/queue_less_cost.yaml, and what was timed under which name
    "less-online": ("every key, every view of the teacher", "three views, asked online"),
    "less-teacher-class_online": ("`keys_of=class`", "class view alone, asked online"),
    "less-teacher-class_once": ("`keys_of=class cached_views=8`", "class view, asked once"),
    "less-teacher-full_once": ("`bank=full cached_views=8`", "full bank, KD asked once"),
    "less-teacher-full2_once": ("`bank=full bank_views=2 cached_views=8`", "full bank of 2 views, KD asked once"),
    "less-bank-bf16": ("`bank_dtype=bfloat16`", "all, bank in bfloat16"),
    "less-bank-turns4": ("`reembed=turns`", "a quarter in turns"),
    "less-bank-in_use4": ("`reembed=in_use`", "a quarter in use"),
}


def less_accuracy_table() -> str:
    """What paying less costs in accuracy, beside what it saves."""
    recorded = {re.sub(r"-s\d+$", "", group[0]["name"]): group for group in runs()}
    steps = {row["name"]: row["ratio"] for row in _bench("less_teacher")["rows"]}
    banks = _bench("reembed")["shapes"]
    rows = []
    for name, (setting, timed) in LESS.items():
        if name in recorded:
            of_step = f"{steps[timed]:.2f}" if timed in steps else ""
            of_bank = [f"{s['ms'][timed] / s['ms']['all, float32']:.2f}" if timed in s["ms"] else "" for s in banks]
            group = recorded[name]
            rows.append([setting, _measured(group), str(len(group)), of_step, *of_bank])
    if not rows:
        return "No run is recorded in `results/` yet."
    head = ["", "accuracy (many / medium / few)", "seeds", "step", *(f"term, {shape['name']}" for shape in banks)]
    about = (
        "CIFAR-100-LT of imbalance 100, a ResNet-20 taught by a ResNet-32, 30 epochs. *Step* is times a step without a "
        "teacher, *term* the contrast term times that of the whole bank in float32, both from the tables above."
    )
    return f"{table(head, rows)}\n\n{about} {CAPTION}"


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def clip_table(folder: str) -> str:
    """Runs that begin with a CLIP, which has seen other images too, beside the paper's on CLIP's own weights."""
    groups = [g for g in runs() if BENCHMARK.items() <= g[0]["data"].items() and _of_clip(g)]
    if not groups:
        return "No run is recorded in `results/` yet."
    theirs = {row["method"]: row["accuracy"] for row in published() if row["model"] == "clip:RN50"}
    rows = [
        [
            f"[{group[0]['method']}]({folder}{group[0]['method']}.md)",
            _measured(group),
            f"{sum(stage['hours'] for run in group for stage in run['stages']) / len(group):.2g}",
            f"{theirs.get(group[0]['method'], '')}",
            _name(group),
        ]
        for group in sorted(groups, key=lambda group: _mean(group, "accuracy"))
    ]
    head = ["method", "CIFAR-100-LT 100, small CLIP", "hours", "paper: ImageNet-LT, CLIP's ResNet-50", "run"]
    return f"{table(head, rows)}\n\n{CAPTION}"


def clip_costs() -> str:
    """What `longtail reproduce NAME --dry-run` found of the recipes of table 4."""
    rows = []
    for path in sorted((ROOT / "results/dry_runs").glob("*-clip-*.json")):
        found = json.loads(path.read_text())
        (stage,) = found["stages"]
        rows.append(
            [
                f"`{found['recipe']}`",
                f"{stage['parameters'] / 1e6:.0f} M",
                f"{found['classes']:,} x {stage['bank'][0] // found['classes']}",
                str(stage["batch_size"]),
                str(found["environment"]["threads"]),
                f"{stage['processor_seconds_a_step']:.1f} s",
                f"{stage['peak_gb']:.1f} GB",
            ]
        )
    if not rows:
        return "No dry run is recorded in `results/dry_runs/` yet."
    head = ["recipe", "parameters", "classes x sentences", "images", "threads", "a step", "memory"]
    return f"{table(head, rows)}\n\nProcessor seconds, of all threads, for a few images in place of the recipe's batch."


def _of_clip(group: list[dict[str, Any]]) -> bool:
    return group[0]["model"].startswith("clip:")


def _is_experiment(run: dict[str, Any], row: dict[str, Any]) -> bool:
    data = run["data"]
    return (data["source"], run["model"], run["epochs"]) == (row["data"], row["model"], row["epochs"]) and (
        "imbalance" not in row or data["imbalance"] == row["imbalance"]
    )


def _name(group: list[dict[str, Any]]) -> str:
    return f"`{group[0]['name']}`" + (f" and {len(group) - 1} more" if len(group) > 1 else "")


def _data(data: dict[str, Any]) -> str:
    """Of a run's data, or of a published row."""
    name = data.get("source") or data["data"]
    return name + (f" {data['imbalance']:g}" if data.get("imbalance") else "")


def _published(row: dict[str, Any]) -> str:
    groups = [f"{row[name]}" for name in GROUPS if name in row]
    return f"{row['accuracy']}" + (f" ({' / '.join(groups)})" if groups else "")


def _measured(group: list[dict[str, Any]]) -> str:
    by_group = [f"{_mean(group, name):.1f}" for name in GROUPS if group[0]["summary"].get(name) is not None]
    accuracy = over_seeds([run["summary"]["accuracy"] for run in group])
    return accuracy + (f" ({' / '.join(by_group)})" if by_group else "")


def _mean(group: list[dict[str, Any]], name: str) -> float:
    return 100 * statistics.mean(run["summary"][name] for run in group)
