"""`longtail report`: one page about a run, or about several side by side.

Numbers come from the folders as the runs wrote them; what needs the model (reliability, the sweep of the prior, nearest
samples) from one pass over the test images. Where the images or a bank are gone the page says so and has the rest.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from longtail.answers.neighbours import nearest
from longtail.answers.run import Questions, Run, collected, open_run, questions
from longtail.engine.loop import duration
from longtail.engine.stages import Finished
from longtail.errors import LongtailError
from longtail.files import atomic, make_folder, read_json
from longtail.measure import plots
from longtail.measure.counters import Counters
from longtail.measure.groups import NAMES
from longtail.measure.metrics import HEADLINE, REST, Summary, balanced_accuracy, reliability, spread, where_answers_go
from longtail.measure.page import Figures, Gallery, Page, Picture, Section, Table, render_page
from longtail.measure.per_class import PerClass, read_csv
from longtail.measure.priors import under_strengths
from longtail.prior import log_prior
from longtail.recipe import to_dict

STRENGTHS = tuple(k / 10 for k in range(15))
SHOWN, NEIGHBOURS = 5, 5
WIDE, ENLARGED = 4.7, 1.3  # inches, so that text stays legible on a phone; and how much larger a wide screen shows it
THUMBNAIL = 96  # pixels

RULE = "the last epoch, never a selected one, answered as trained"


@dataclass(frozen=True)
class Group:
    """Runs of one recipe under several seeds: a line in every figure."""

    name: str
    runs: tuple[Run, ...]
    finished: tuple[Finished, ...]
    teachers: tuple[Finished, ...]

    @cached_property
    def per_class(self) -> list[PerClass]:
        return [read_csv(run.folder / "per_class.csv")[0] for run in self.runs]

    @cached_property
    def epochs(self) -> list[dict[str, Any]]:
        """metrics.jsonl of the first seed."""
        path = self.runs[0].folder / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@dataclass(frozen=True)
class Passed:
    """What one pass over the test images found out about the first seed of a group."""

    asked: Questions
    loglik: np.ndarray  # [N, C]
    carried: torch.Tensor  # [C] what makes them the scores as trained
    labels: np.ndarray
    as_trained: PerClass  # with calibration bins and the groups of the answers


def report(folders: Sequence[Path], out: Path | None = None, device: str = "auto") -> tuple[Path, str]:
    """Write the page; also returns its first table for the terminal."""
    groups = _grouped([open_run(folder, device) for folder in folders])
    first = groups[0].runs[0]
    for group in groups:
        for run in group.runs:
            if run.classes != first.classes or not np.array_equal(run.counts, first.counts):
                raise LongtailError(f"{run.folder} was trained on other data than {first.folder}: report them apart")
    if len(groups) > len(plots.COLOURS):
        raise LongtailError(
            f"a figure tells {len(plots.COLOURS)} methods apart, and these are {len(groups)}: give fewer"
        )
    notes: list[str] = []
    passed = _pass(groups, notes)
    headline = _headline(groups)
    page = Page(
        title=" and ".join(dict.fromkeys(group.name for group in groups)) + f" on {first.recipe.data.source}",
        lead=_lead(first, groups, passed, notes),
        sections=[section for section in _sections(groups, passed, headline) if section is not None],
        classes=_class_table(groups),
    )
    out = out or folders[0] / "report.html"
    make_folder(out.parent)
    with atomic(out) as file:
        file.write(render_page(page).encode())
    return out, "\n\n".join(table.text() for table in headline)


def _grouped(runs: Sequence[Run]) -> list[Group]:
    """Runs that differ in the seed alone belong together, by the method's name, and the folder's where those clash."""
    members: dict[str, list[Run]] = {}
    for run in runs:
        if run.model.adjusted:  # it was not trained so: its curves and its hours are the original's
            raise LongtailError(
                f"{run.folder} was adjusted ({run.model.adjusted['what']}): report the run it was made from, and "
                f"measure this one with `longtail evaluate {run.folder}`"
            )
        recipe = to_dict(replace(run.recipe, seed=0, name=""))
        members.setdefault(json.dumps(recipe, sort_keys=True), []).append(run)
    methods = [same[0].model.card["method"] for same in members.values()]
    groups = []
    for method, same in zip(methods, members.values(), strict=True):
        name = method if methods.count(method) == 1 else f"{method} ({same[0].folder.name})"
        finished = tuple(_finished(run.folder) for run in same)
        teachers = tuple(
            _finished(run.folder / stage.name)
            for run in same
            for stage in run.recipe.stages[:-1]
            if (run.folder / stage.name / "result.json").exists()
        )
        groups.append(Group(name, tuple(same), finished, teachers))
    return groups


def _finished(folder: Path) -> Finished:
    if not (folder / "result.json").exists():
        raise LongtailError(f"{folder} holds no finished run (there is no result.json): let it finish, or --resume it")
    return Finished(**read_json(folder / "result.json"))


def _pass(groups: Sequence[Group], notes: list[str]) -> dict[str, Passed]:
    """The first seed of every group answers the test images; nothing where they are not to be had."""
    passed: dict[str, Passed] = {}
    for group in groups:
        run = group.runs[0]
        try:
            here = questions(run)
        except LongtailError as error:
            notes.append(f"Figures that need the test images are left out: {error}.")
            return {}
        loglik, labels = collected(run, here.loader, torch.zeros(len(run.classes)))
        carried = run.model.carried()
        counters = Counters(len(run.classes), groups=torch.from_numpy(run.groups.codes))
        for start in range(0, len(labels), 1024):
            part = slice(start, start + 1024)
            counters.update(torch.from_numpy(loglik[part]) + carried, torch.from_numpy(labels[part]))
        passed[group.name] = Passed(here, loglik, carried, labels, counters.per_class())
    return passed


# ---- what is on the page --------------------------------------------------------------------------------------------


def _lead(first: Run, groups: Sequence[Group], passed: dict[str, Passed], notes: Sequence[str]) -> list[str]:
    counts = first.counts
    present = counts[counts > 0]
    images = f"{counts.sum():,} training images of {len(counts):,} classes: the largest has {present.max():,}, the "
    images += f"smallest {present.min():,}, an imbalance of {present.max() / present.min():.3g}."
    seeds = [len(group.runs) for group in groups]
    several = "" if max(seeds) == 1 else f" Mean ± sample standard deviation over {max(seeds)} seeds."
    tested = f" Measured on the {next(iter(passed.values())).asked.split} images." if passed else ""
    return [
        images,
        f"{first.groups}.",
        f"All numbers are of {RULE}, unless it says otherwise.{tested}{several}",
        *notes,
    ]


def _headline(groups: Sequence[Group]) -> tuple[Table, Table]:
    rows, more = [], []
    for group in groups:
        stages = [(group.name, group.finished)]
        if group.teachers:
            stages.append((f"its teacher ({group.teachers[0].method})", group.teachers))
        for name, finished in stages:
            summaries = [stage.summary for stage in finished]
            rows.append([name, *_cells(summaries, HEADLINE), *_costs(finished)])
            more.append([name, *_cells(summaries, REST)])
            for head in finished[0].second:  # the same weights, answering by their bank
                summaries = [stage.second[head] for stage in finished if head in stage.second]
                rows.append([f"{name}, {head}", *_cells(summaries, HEADLINE), "", "", ""])
                more.append([f"{name}, {head}", *_cells(summaries, REST)])
    return Table(["", *HEADLINE.values(), "M parameters", "epochs", "time"], rows), Table(["", *REST.values()], more)


def _cells(summaries: Sequence[Summary], names: Iterable[str]) -> list[str]:
    values, cells = spread(summaries), []
    for name in names:
        value = values[name]
        deviation = f" ± {100 * value.deviation:.1f}" if value and value.deviation is not None else ""
        cells.append("-" if value is None else f"{100 * value.mean:.1f}{deviation}")
    return cells


def _costs(finished: Sequence[Finished]) -> list[str]:
    hours = float(np.mean([f.hours for f in finished]))
    return [f"{finished[0].parameters / 1e6:.2f}", str(finished[0].epochs), duration(3600 * hours)]


def _sections(
    groups: Sequence[Group], passed: dict[str, Passed], headline: Sequence[Table]
) -> Iterator[Section | None]:
    first = groups[0].runs[0]
    names = [group.name for group in groups]
    accuracies = {group.name: np.stack([table.accuracy for table in group.per_class]) for group in groups}
    spreads = {group.name: spread([stage.summary for stage in group.finished]) for group in groups}
    banks = any(stage.second for group in groups for stage in group.finished)
    yield Section("Headline", f"In per cent, of {RULE}.{_SECOND * banks} Time is of training, one machine.", headline)
    if passed:
        yield Section("Under other priors", _PRIORS, [_under_priors(groups, passed)])
    yield Section(
        "Where the images are, and where the accuracy is",
        "Grey: training images of each class, most frequent first, on a logarithmic scale. Lines: accuracy on the "
        "class's test images.",
        [Figures([plots.counts_and_accuracy(first.counts, accuracies, first.groups, width=WIDE)], ENLARGED)],
    )
    yield Section(
        "Many, medium, few",
        f"Mean accuracy over the classes of a group: {first.groups}.",
        [Figures([plots.group_bars(spreads, WIDE)], ENLARGED)],
    )
    shares = {name: where_answers_go(p.as_trained, first.groups) for name, p in passed.items()}
    if passed:
        yield Section(
            "Where errors go",
            "Of the test images of each group: the share answered rightly, and with which group's classes the others "
            "were answered. A tail that is called head is a prior still in the scores; a tail confused within itself "
            "is a likelihood not learned.",
            [Figures([plots.where_answers_go({n: s for n, s in shares.items() if s is not None}, WIDE)], ENLARGED)],
        )
        yield _trade_off(first, passed, names)
        panels = {"all answers": None} | {f"answers in {name}": code for code, name in enumerate(NAMES)}
        bins = {panel: _bins(passed, first, code) for panel, code in panels.items()}
        yield Section(
            "Is it honest about its confidence?",
            "How often an answer given with some confidence is right; on the dotted line confidence and accuracy "
            "agree. By the group of the answer, not of the true class, which a confidence cannot know. A larger point "
            "has more answers.",
            [Figures([plots.reliability_diagram({p: b}, names) for p, b in bins.items() if b])],
        )
    yield Section("Learning", "By epoch, the first seed of each.", [Figures(_curves(groups))])
    yield _inside(groups)
    yield _gallery(groups, passed)


_SECOND = (
    " Rows named kernel are of the mixture over the bank, a second answer of the same weights, and both of its average "
    "with the classifier; these are answered under a uniform prior."
)
_PRIORS = (
    "The same log-likelihoods, answered under other class mixes: balanced accuracy in per cent. Nothing is retrained, "
    "and a prior is added once. As trained is the published rule; uniform asks about every class equally; train is "
    "right where the images come from the mix of the training set."
)
_SWEEP = (
    "The strength of the training prior that is added at test, from 0 to 1.4: 0 is uniform, 1 is the training mix. "
    "This moves the answers only. It cannot imitate what the strength of the prior in training (alpha) does to the "
    "features, so a run trained at another alpha need not lie on the curve."
)


def _under_priors(groups: Sequence[Group], passed: dict[str, Passed]) -> Table:
    first = groups[0].runs[0]
    train = log_prior(first.counts)
    rows = []
    for name, p in passed.items():
        tables = [p.as_trained]
        for added in (torch.zeros_like(train), train):
            counters = Counters(len(first.classes))
            counters.update(torch.from_numpy(p.loglik) + added, torch.from_numpy(p.labels))
            tables.append(counters.per_class())
        rows.append([name, *(f"{100 * (balanced_accuracy(table) or 0):.1f}" for table in tables)])
    return Table(["", "as trained", "uniform", "train"], rows)


def _trade_off(first: Run, passed: dict[str, Passed], names: list[str]) -> Section | None:
    labels = next(iter(passed.values())).labels
    measured = [
        name for code, name in enumerate(NAMES) if np.isin(labels, np.flatnonzero(first.groups.codes == code)).any()
    ]
    if len(measured) < 2:
        return None
    head, tail = measured[0], measured[-1]
    sweeps = {}
    for name, p in passed.items():
        points = under_strengths(p.loglik, p.labels, first.counts, STRENGTHS, lambda counts: first.groups)
        sweeps[name] = [(s, summary[head] or 0.0, summary[tail] or 0.0) for s, summary in points]
    in_use = {name: _strength(p.carried, log_prior(first.counts)) for name, p in passed.items()}
    return Section(
        "Head against tail", _SWEEP, [Figures([plots.trade_off(sweeps, in_use, (head, tail), names, WIDE)], ENLARGED)]
    )


def _strength(carried_c: torch.Tensor, log_prior_c: torch.Tensor) -> float:
    """s of the s * log prior that is nearest to what a model's scores carry, to a tenth."""
    known = log_prior_c.isfinite() & carried_c.isfinite()
    x, y = (values[known] - values[known].mean() for values in (log_prior_c, carried_c))
    return round(float((x * y).sum() / (x * x).sum().clamp_min(1e-9)), 1)


def _bins(passed: dict[str, Passed], run: Run, code: int | None) -> dict[str, np.ndarray]:
    members = None if code is None else run.groups.codes == code
    bins = {name: reliability(p.as_trained, members) for name, p in passed.items()}
    return {name: b for name, b in bins.items() if b is not None and b[:, 0].any()}


def _curves(groups: Sequence[Group]) -> list[Any]:
    panels = {"training loss": "loss", "balanced accuracy, %": "balanced_accuracy", "few, %": "few"}
    figures = []
    for title, key in panels.items():
        scale = 1 if key == "loss" else 100
        lines = {group.name: _column(group.epochs, key, scale) for group in groups}
        if lines := {name: line for name, line in lines.items() if line[0]}:
            figures.append(plots.curves({title: lines}, names=[group.name for group in groups]))
    return figures


def _column(epochs: Sequence[dict[str, Any]], key: str, scale: float = 1) -> tuple[list[float], list[float]]:
    rows = [(row["epoch"], scale * row[key]) for row in epochs if row.get(key) is not None]
    return [x for x, _ in rows], [y for _, y in rows]


def _inside(groups: Sequence[Group]) -> Section | None:
    """tau_g and the bank, where a method has them."""
    learned = {group.name: _column(group.epochs, "tau_g") for group in groups}
    learned = {name: line for name, line in learned.items() if line[0]}
    names = [group.name for group in groups]
    figures, text = [], []
    if learned:
        figures.append(plots.curves({"mixture temperature": learned}, names=names))
        text.append(
            "The mixture's temperature tau_g, learned from samples other than the query's own (the paper's figure)."
        )
    with_bank = [group.runs[0] for group in groups if "kernel" in group.runs[0].model.heads]
    if with_bank:
        bank: Any = with_bank[0].model.method.objective.bank
        order = np.argsort(-with_bank[0].counts, kind="stable")
        slots, filled = bank.segments.offsets.diff().cpu().numpy()[order], bank.filled_counts().cpu().numpy()[order]
        figures.append(plots.bank_fill(slots, filled))
        text.append(f"The bank holds {filled.sum():,} of {slots.sum():,} samples at the end of training.")
        if not learned:
            tau: Any = with_bank[0].model.method.objective.log_tau
            text.append(f"tau_g was fixed at {float(tau.exp()):.3g}.")
    return Section("Inside the mixture", " ".join(text), [Figures(figures)]) if figures else None


def _gallery(groups: Sequence[Group], passed: dict[str, Passed]) -> Section | None:
    group = next((group for group in groups if "kernel" in group.runs[0].model.heads and group.name in passed), None)
    if group is None:
        return None
    run, asked = group.runs[0], passed[group.name].asked
    rows = _tail_rows(run, asked)
    images: dict[int, torch.Tensor] = {}
    for batch in asked.loader.epoch(0):
        images |= {row: batch.views[0][place] for place, row in enumerate(batch.ids.tolist()) if row in rows}
    rows = [row for row in rows if row in images]  # one that cannot be read was skipped
    stack = torch.stack([images[row] for row in rows])
    with torch.no_grad(), run.device.autocast():
        answers = run.model(stack).argmax(1).tolist()
    shown = []
    for row, answer, near in zip(rows, answers, nearest(run, stack, NEIGHBOURS), strict=True):
        true = int(asked.table.labels[row])
        verdict = "right" if answer == true else f"answered {run.classes[answer]}"
        question = Picture(_thumbnail(asked, row), run.classes[true], f"{run.counts[true]:,} in training; {verdict}")
        samples = [
            Picture(_thumbnail(asked, row), run.classes[c], f"{similarity:.2f}", alike=c == true)
            for row, c, similarity in near
        ]
        shown.append((question, samples))
    text = (
        f"{group.name}: test images of rare classes and the samples in the bank that are nearest to them, by the "
        "cosine of their embeddings. A mixture answers with the class whose samples are near."
    )
    return Section("What the model compares with", text, [Gallery(shown)])


def _tail_rows(run: Run, asked: Questions) -> list[int]:
    """The first test image of five rare classes, evenly through the group few (or through all classes without one)."""
    rows = asked.table.rows(asked.split)
    labels = asked.table.labels[rows]
    order = np.argsort(run.counts, kind="stable")
    measured = np.isin(order, labels)
    rare = order[measured & (run.groups.codes[order] == NAMES.index("few"))]
    rare = rare if len(rare) else order[measured]
    chosen = rare[np.unique(np.linspace(0, len(rare) - 1, min(SHOWN, len(rare))).astype(int))]
    return [int(rows[np.flatnonzero(labels == c)[0]]) for c in chosen]


def _thumbnail(asked: Questions, row: int) -> bytes:
    picture = Image.fromarray(asked.table.images.decode(row))
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    file = io.BytesIO()
    small = max(picture.size) <= 64
    picture.save(file, "PNG" if small else "JPEG", **({} if small else {"quality": 80}))
    return file.getvalue()


def _class_table(groups: Sequence[Group]) -> dict[str, Any]:
    """Columns and rows of the table of all classes, for the page's script."""
    run = groups[0].runs[0]
    names = [group.name for group in groups]
    accuracies = {group.name: np.stack([table.accuracy for table in group.per_class]).mean(0) for group in groups}
    names = list(accuracies)
    columns = ["class", "group", "training", "test", *(f"{name}, %" for name in names)]
    if len(names) > 1:
        columns.append(f"{names[-1]} minus {names[0]}")
    rows = []
    for c, name in enumerate(run.classes):
        values = [_rounded(100 * accuracies[method][c]) for method in names]
        difference = [_rounded(100 * (accuracies[names[-1]][c] - accuracies[names[0]][c]))] if len(names) > 1 else []
        n = int(groups[0].per_class[0].n[c])
        rows.append([name, run.groups.name(c), int(run.counts[c]), n, *values, *difference])
    return {"columns": columns, "rows": rows}


def _rounded(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 1)
