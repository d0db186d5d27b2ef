"""The truth about a table before anything is trained on it: its tail, its files, its copies and its leaks.

Every image is decoded once. What would spoil a training is a problem, and the exit code 1; what is worth knowing,
duplicates among it, is a finding.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from longtail.data import tails
from longtail.data.decode import BadImage
from longtail.data.duplicates import digest, near_copies, perceptual_hash
from longtail.data.parallel import for_rows
from longtail.data.splits import leaking_groups
from longtail.data.table import SPLITS, ImageTable
from longtail.measure.groups import NAMES, Groups, by_terciles, by_threshold
from longtail.wording import number_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LISTED = 100  # of each kind of finding, how many inspect.json names


@dataclass(frozen=True)
class Report:
    facts: dict[str, Any]  # what inspect.json holds; the text below is made of nothing else

    @property
    def problems(self) -> list[str]:
        """What would spoil a training."""
        facts = self.facts
        problems = []
        if bad := facts["unreadable"]["images"]:
            first = facts["unreadable"]["which"][0]
            problems.append(f"images that cannot be used: {bad:,}, all in inspect.json; {first}")
        if not facts["images"]["train"]:
            problems.append("there is no training image")
        elif facts["classes"] - len(facts["without_images"]["train"]) < 2:
            problems.append("only one class has training images")
        return problems

    @property
    def findings(self) -> list[str]:
        facts = self.facts
        findings = []
        for split, missing in facts["without_images"].items():
            if missing and facts["images"][split]:
                so = "not learned" if split == "train" else "not measured"
                findings.append(f"classes without a {split} image, so {so}: {len(missing):,} ({_some(missing)})")
        copies = facts["copies"]
        for splits, n in copies["across"].items():
            if n:
                findings.append(f"pairs of identical images between {splits}: {n:,}")
        for split, n in copies["within"].items():
            if n:
                findings.append(f"{split} images that repeat another one of {split}: {n:,}")
        if n := copies["of_two_classes"]:
            findings.append(f"images with an identical one in another class: {n:,}")
        for split, n in facts["near_copies"]["images"].items():
            if n:
                share = _percent(n / facts["images"][split])
                findings.append(f"{split} images with a near-copy in train, which flatters results: {n:,} ({share})")
        if leaks := facts["leaking_groups"]:
            findings.append(f"groups on both sides of a split, which flatters results: {leaks['groups']:,}")
        return findings

    @property
    def exit_code(self) -> int:
        return int(bool(self.problems))

    def render(self) -> str:
        facts, tail = self.facts, self.facts["tail"]
        sizes = ", ".join(f"{n:,} {split}" for split, n in facts["images"].items() if n)
        lines = [f"{facts['name']}: {_classes(facts['classes'])}, {sizes or 'no images'}"]
        if tail:
            lines += [
                f"largest {tail['largest']:,}   smallest {tail['smallest']:,}   imbalance {tail['imbalance']:.3g}x   "
                f"Gini {tail['gini']:.2f}   effective classes {tail['effective_classes']:.0f}",
                f"the largest {_classes_hold(tail['head_classes'])} {_percent(tail['head_share'])} of the images, "
                f"the rarest {_classes_hold(tail['tail_classes'])} {_percent(tail['tail_share'])}",
                " | ".join(f"{g['name']} ({g['bounds']}) {_classes(g['classes'])}" for g in facts["groups"]),
                sparkline(np.array(facts["counts"]["train"])),
            ]
        if facts["pixels"]:
            low, middle, high = (" x ".join(map(str, side)) for side in facts["pixels"].values())
            lines.append(f"images: all {low}" if low == high else f"images: {low} to {high}, median {middle}")
        lines.append(_test_split(facts))
        lines += [f"PROBLEM  {problem}" for problem in self.problems]
        lines += [f"finding  {finding}" for finding in self.findings]
        if not self.problems + self.findings:
            lines.append("checks: every image decodes, no copies, no leaks, every class present in every split")
        return "\n".join([*lines, *_verdict(tail, np.array(facts["counts"]["train"]))])


def inspect_table(
    table: ImageTable, out: str | Path | None = None, *, groups: Groups | None = None, progress: bool = True
) -> Report:
    """Look at every image; with `out`, write inspect.json and counts.png there. `groups` are terciles of the classes,
    for the benchmarks their thresholds, unless given."""
    counts = table.counts()
    groups = groups or (by_threshold if table.loaded is not None else by_terciles)(counts)
    seen = _look(table, progress)
    good = np.flatnonzero(seen.shapes[:, 0])
    report = Report(
        {
            "name": table.name,
            "classes": table.num_classes,
            "images": {split: len(table.rows(split)) for split in SPLITS},
            "tail": tails.statistics(counts),
            "groups": [
                {"name": name, "bounds": groups.bounds[code], "classes": int((groups.codes == code).sum())}
                for code, name in enumerate(NAMES)
            ],
            "pixels": _pixels(seen.shapes[good]),
            "without_images": {
                split: [table.classes[c] for c in np.flatnonzero(table.counts(split) == 0)] for split in SPLITS
            },
            "unreadable": {"images": len(seen.bad), "which": list(seen.bad.values())},
            "copies": _copies(table, seen.digests, good),
            "near_copies": _near_copies(table, seen, good),
            "leaking_groups": leaking_groups(table),
            "counts": {split: table.counts(split).tolist() for split in SPLITS},
            "class_names": list(table.classes),
        }
    )
    if out is not None:
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "inspect.json").write_text(json.dumps(report.facts, indent=1, ensure_ascii=False), encoding="utf-8")
        counts_figure(counts, groups).savefig(folder / "counts.png", dpi=144)
    return report


class Seen(NamedTuple):
    shapes: np.ndarray  # int32 [N, 2] height and width, 0 where unreadable
    digests: np.ndarray  # S16 [N]
    hashes: np.ndarray  # uint8 [N, 16]
    bad: dict[int, str]  # row -> why it cannot be used


def _look(table: ImageTable, progress: bool) -> Seen:
    n = len(table)
    seen = Seen(np.zeros((n, 2), np.int32), np.zeros(n, "S16"), np.zeros((n, 16), np.uint8), {})

    def look(row: int) -> None:
        try:
            image = table.images.decode(row)
        except BadImage as error:
            seen.bad[row] = str(error)
        else:
            seen.shapes[row] = image.shape[:2]
            seen.digests[row] = digest(image)
            seen.hashes[row] = perceptual_hash(image)

    for_rows(n, look, "looking at every image", progress)
    return seen._replace(bad=dict(sorted(seen.bad.items())))


def _pixels(shapes: np.ndarray) -> dict[str, list[int]]:
    """Width and height of the smallest, the median and the largest image by area."""
    if not len(shapes):
        return {}
    order = np.argsort(shapes.prod(axis=1, dtype=np.int64), kind="stable")
    places = {"smallest": 0, "median": len(order) // 2, "largest": -1}
    return {name: shapes[order[place]][::-1].tolist() for name, place in places.items()}


def _copies(table: ImageTable, digests: np.ndarray, good: np.ndarray) -> dict[str, Any]:
    _, inverse, total = np.unique(digests[good], return_inverse=True, return_counts=True)
    rows = good[total[inverse] > 1]
    _, content = np.unique(inverse[total[inverse] > 1], return_inverse=True)
    sets = content.max(initial=-1) + 1
    of_split = {
        split: np.bincount(content[table.split[rows] == code], minlength=sets) for code, split in enumerate(SPLITS)
    }
    of_two_classes = np.zeros(sets, bool)
    first = np.full(sets, -1)
    first[content[::-1]] = rows[::-1]
    of_two_classes[content[table.labels[rows] != table.labels[first[content]]]] = True
    order = np.argsort(content, kind="stable")
    listed = np.split(rows[order], np.searchsorted(content[order], np.arange(1, sets)))[:LISTED]
    return {
        "across": {
            f"{one} and {other}": int((of_split[one] * of_split[other]).sum())
            for one, other in (("train", "val"), ("train", "test"), ("val", "test"))
        },
        "within": {split: int(np.maximum(n - 1, 0).sum()) for split, n in of_split.items()},
        "of_two_classes": int(of_two_classes[content].sum()),
        "which": [[_describe(table, row) for row in group] for group in listed if len(group)],
    }


def _near_copies(table: ImageTable, seen: Seen, good: np.ndarray) -> dict[str, Any]:
    """Images of val and test that have a near-copy in train; copies are told of elsewhere."""
    train = good[table.split[good] == SPLITS.index("train")]
    images, which = {}, []
    for split in ("val", "test"):
        held_out = good[table.split[good] == SPLITS.index(split)]
        held_out = held_out[~np.isin(seen.digests[held_out], seen.digests[train])]
        found = list(near_copies(table.images, seen.hashes, held_out, train))
        images[split] = len(found)
        found.sort(key=lambda pair: -pair[2])
        which += [[_describe(table, a), _describe(table, b), round(c, 4)] for a, b, c in found[:LISTED]]
    return {"images": images, "which": which}


def _describe(table: ImageTable, row: int) -> dict[str, str]:
    label = table.classes[table.labels[row]]
    return {"image": table.images.name(int(row)), "class": label, "split": SPLITS[table.split[row]]}


def _test_split(facts: dict[str, Any]) -> str:
    split = next((split for split in ("test", "val") if facts["images"][split]), None)
    if split is None:
        return "no test split: training holds out a share of each class"
    counts = np.array(facts["counts"][split])
    low, high = counts[counts > 0].min(), counts.max()
    if low == high:
        return f"{split} split: balanced, {number_of(high, 'image')} a class: plain accuracy is balanced accuracy"
    return f"{split} split: imbalanced {high / low:.3g}x: read balanced accuracy beside plain accuracy"


_METHOD_COSTS = {
    "cross_entropy": " (there is no tail to speak of)",
    "gml": " (teacher and student), or --method logit_adjusted at about a third of the time",
}


def _verdict(tail: dict[str, Any], counts: np.ndarray) -> list[str]:
    if not tail:
        return []
    few = tail["classes_under_5"]
    words, method = tails.verdict(counts)
    lines = [f"verdict: {words}; 80 % of the training images are in {_classes(tail['classes_holding_80_percent'])}"]
    if few:
        lines.append(
            f"classes of fewer than 5 images: {few:,}; merge them with a related class, or report their answers as of "
            f"low confidence; leaving them out would only hide them"
        )
    return [*lines, f"suggested: --method {method}{_METHOD_COSTS[method]}"]


def sparkline(counts: np.ndarray, width: int = 60) -> str:
    """Sorted class counts on a log scale, from one image to the most."""
    ordered = np.sort(counts)[::-1]
    if len(ordered) > width:
        ordered = ordered[np.linspace(0, len(ordered) - 1, width).round().astype(int)]
    heights = np.log1p(ordered) / np.log1p(max(ordered.max(), 1)) * 8
    return "".join(" ▁▂▃▄▅▆▇█"[int(np.ceil(height))] for height in heights)


def counts_figure(counts: np.ndarray, groups: Groups) -> "Figure":
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    order = np.argsort(-counts, kind="stable")
    present = counts[counts > 0]
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axis = figure.add_subplot()
    floor, edges = 0.7, np.arange(len(counts) + 1) + 0.5
    for code, (name, colour) in enumerate(zip(NAMES, ("#0072B2", "#56B4E9", "#E69F00"), strict=True)):
        here = groups.codes[order] == code
        if here.any():
            label = f"{name} ({groups.bounds[code]}): {here.sum():,}"
            heights = np.where(here, np.maximum(counts[order], floor), np.nan)
            axis.stairs(heights, edges, baseline=floor, fill=True, color=colour, label=label)
    largest = max(counts.max(initial=1), 1)
    axis.set_yscale("log")
    axis.set_ylim(floor, largest * 1.4)
    steps = (1, 2, 5) if largest < 300 else (1,)
    axis.yaxis.set_major_locator(LogLocator(subs=steps))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_xlim(0.5, len(counts) + 0.5)
    axis.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=[1, 2, 5, 10]))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.set_xlabel("classes, from most to fewest training images")
    axis.set_ylabel("training images")
    axis.spines[["top", "right"]].set_visible(False)
    if len(present):
        empty = f", {len(counts) - len(present):,} without" if len(present) < len(counts) else ""
        axis.set_title(
            f"{counts.sum():,} training images of {_classes(len(present))}{empty}; "
            f"imbalance {present.max() / present.min():.3g}x",
            loc="left",
            fontsize=10,
        )
    if axis.patches:
        figure.legend(title="classes", alignment="left", loc="outside right upper", frameon=False, fontsize=9)
    return figure


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _classes(n: int) -> str:
    return number_of(n, "class")


def _classes_hold(n: int) -> str:
    return "class holds" if n == 1 else f"{n:,} classes hold"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"
