import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from longtail.data import tails
from longtail.data.benchmarks import cifar, load
from longtail.data.folders import load as load_folder
from longtail.data.inspect import counts_figure, inspect_table, sparkline
from longtail.data.table import ImageTable, PixelStore
from longtail.measure.groups import by_threshold


def pixels(seeds):
    """64 x 64 blobs; the same for the same seed."""
    return np.stack([np.random.default_rng(s).integers(0, 256, (4, 4, 3), dtype=np.uint8) for s in seeds]).repeat(
        16, axis=1).repeat(16, axis=2)  # fmt: skip


def table(seeds, labels, split, groups=None, classes=("a", "b", "c")) -> ImageTable:
    return ImageTable(
        classes, np.array(labels, np.int32), np.array(split, np.uint8), PixelStore(pixels(seeds), "x"),
        None if groups is None else np.array(groups, np.int32), name="mine",
    )  # fmt: skip


def test_counts_of_cifar100_lt():
    counts = tails.exponential(500, 100, 100)
    s = tails.statistics(counts)
    assert (s["largest"], s["smallest"], s["imbalance"]) == (500, 5, 100)
    assert round(s["gini"], 2) == 0.59
    assert round(s["effective_classes"]) == 55
    assert (round(s["head_share"], 2), round(s["tail_share"], 3)) == (0.38, 0.028)
    held = np.sort(counts)[::-1].cumsum() / counts.sum()
    n = s["classes_holding_80_percent"]
    assert held[n - 2] < 0.8 <= held[n - 1]


@given(st.lists(st.integers(0, 2000), min_size=1, max_size=60).filter(any))
def test_statistics_of_any_counts(counts):
    s = tails.statistics(np.array(counts))
    present = np.array([n for n in counts if n])
    differences = np.abs(present[:, None] - present).mean()
    assert s["gini"] == pytest.approx(differences / (2 * present.mean()))
    assert 1 <= s["effective_classes"] <= len(present) + 1e-9
    assert 0 < s["tail_share"] <= s["head_share"] * s["tail_classes"] / s["head_classes"] + 1e-9
    assert 1 <= s["classes_holding_80_percent"] <= len(present)


def test_a_clean_table(tmp_path):
    report = inspect_table(table(range(9), [0] * 6 + [1, 2, 2], [0] * 3 + [2] * 3 + [0] * 3), tmp_path / "out")
    text = report.render()
    assert report.exit_code == 0
    assert "mine: 3 classes, 6 train, 3 test" in text
    assert "largest 3   smallest 1   imbalance 3x" in text
    assert "images: all 64 x 64" in text
    assert "not measured" in text
    assert json.loads((tmp_path / "out" / "inspect.json").read_text()) == report.facts
    with Image.open(tmp_path / "out" / "counts.png") as plot:
        assert plot.size[0] > 500


def test_copies_and_leaks_are_findings_not_problems():
    #          train        | val | test
    seeds = [0, 1, 1, 2, 3, 4, 0, 5, 1, 1, 6]
    labels = [0, 0, 0, 1, 1, 2, 0, 1, 2, 2, 2]
    split = [0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 2]
    report = inspect_table(table(seeds, labels, split, groups=[0, 1, 1, 2, 2, 2, 0, 3, 4, 4, 2]))
    copies = report.facts["copies"]
    assert copies["across"] == {"train and val": 1, "train and test": 4, "val and test": 0}
    assert copies["within"] == {"train": 1, "val": 0, "test": 1}
    assert copies["of_two_classes"] == 4
    assert [[image["image"] for image in group] for group in copies["which"]] in (
        [["x image 0", "x image 6"], ["x image 1", "x image 2", "x image 8", "x image 9"]],
        [["x image 1", "x image 2", "x image 8", "x image 9"], ["x image 0", "x image 6"]],
    )
    assert report.facts["leaking_groups"] == {"groups": 2, "images": 6}
    assert report.exit_code == 0
    assert report.findings == [
        "classes without a val image, so not measured: 1 (c)",
        "classes without a test image, so not measured: 2 (a, b)",
        "pairs of identical images between train and val: 1",
        "pairs of identical images between train and test: 4",
        "train images that repeat another one of train: 1",
        "test images that repeat another one of test: 1",
        "images with an identical one in another class: 4",
        "groups on both sides of a split, which flatters results: 2",
    ]
    assert all(finding in report.render() for finding in report.findings)


def test_near_copies_across_splits():
    t = table([*range(40), 3, 41], [0, 1] * 21, [0] * 40 + [2] * 2, classes=("a", "b"))
    t.images.pixels[40] = np.clip(t.images.pixels[40] * 0.9 + 9, 0, 255).astype(np.uint8)
    report = inspect_table(t)
    assert report.facts["near_copies"]["images"] == {"val": 0, "test": 1}
    copy, original, correlation = report.facts["near_copies"]["which"][0]
    assert (copy["image"], original["image"]) == ("x image 40", "x image 3")
    assert correlation > 0.99
    assert "near-copy in train, which flatters results: 1 (50 %)" in report.render()


def test_unreadable_files_are_problems_with_their_names(tmp_path):
    for i in range(6):
        folder = tmp_path / "data" / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels([i])[0]).save(folder / f"{i}.png")
    for name, content in (("a/broken.png", b"no image"), ("b/empty.jpg", b"")):
        (tmp_path / "data" / name).write_bytes(content)
    report = inspect_table(load_folder(tmp_path / "data"))
    assert report.exit_code == 1
    assert len(report.facts["unreadable"]["which"]) == 2
    assert (
        "PROBLEM  images that cannot be used: 2, all in inspect.json; a/broken.png cannot be decoded" in report.render()
    )
    assert report.facts["pixels"]["smallest"] == [64, 64]


@pytest.mark.parametrize(
    ("labels", "split", "problem"),
    [([0, 1], [2, 2], "there is no training image"), ([0, 0], [0, 0], "only one class has training images")],
)
def test_nothing_to_learn_is_a_problem(labels, split, problem):
    report = inspect_table(table([0, 1], labels, split))
    assert problem in report.problems[0]
    assert report.exit_code == 1
    assert report.render()


def test_missing_classes_are_reported_and_shift_nothing():
    report = inspect_table(table([0, 1, 2], [0, 2, 1], [0, 0, 2]))
    assert report.facts["counts"]["train"] == [1, 0, 1]
    assert report.facts["without_images"]["train"] == ["b"]
    assert "classes without a train image, so not learned: 1 (b)" in report.findings
    assert "classes without a test image, so not measured: 2 (a, c)" in report.findings
    assert report.exit_code == 0


def test_a_class_that_holds_everything_is_said_in_plain_words():
    text = inspect_table(table([0, 1], [0, 0], [0, 0])).render()
    assert "the largest class holds 100 % of the images, the rarest class holds 100 %" in text


@pytest.mark.parametrize("profile", sorted(tails.PROFILES))
@pytest.mark.parametrize(("largest", "classes", "imbalance"), [(500, 100, 100), (1000, 8142, 500), (3, 2, 1.5)])
def test_the_picture_has_all_in_it(profile, largest, classes, imbalance):
    counts = np.append(tails.PROFILES[profile](largest, classes, imbalance), 0)
    figure = counts_figure(counts, by_threshold(counts))
    figure.draw_without_rendering()
    frame = figure.bbox
    (axis,), (legend,) = figure.axes, figure.legends
    for part in (legend, axis.title, axis.xaxis.label, axis.yaxis.label):
        box = part.get_window_extent()
        assert frame.x0 <= box.x0 <= box.x1 <= frame.x1, f"{part} is cut off"
        assert frame.y0 <= box.y0 <= box.y1 <= frame.y1, f"{part} is cut off"
    assert not legend.get_window_extent().overlaps(axis.get_window_extent())
    heights = np.nansum([steps.get_data().values for steps in axis.patches], axis=0)
    assert heights.tolist() == [*counts[:-1], 0.7], "an empty class has a bar"
    assert f"of {classes:,} classes, 1 without; imbalance" in axis.get_title("left")


def test_digits_have_the_benchmarks_groups():
    text = inspect_table(load("digits-lt")).render()
    assert "many (> 100) 1 class | medium (20 to 100) 4 classes | few (< 20) 5 classes" in text
    assert "test split: balanced, 50 images a class" in text
    assert "--method gml" in text


@pytest.mark.parametrize(
    "classes", [pytest.param(range(100), marks=pytest.mark.slow), (1, 2, 35, 52, 55, 72, 96)], ids=["all", "with pairs"]
)
def test_cifar100_as_it_is(shared_data, classes):
    """Its ten pairs of identical images between train and test are known; they do not spoil a training."""
    full = cifar(100, shared_data)
    report = inspect_table(full.take(np.flatnonzero(np.isin(full.labels, classes))))
    assert report.facts["copies"]["across"]["train and test"] == 10
    assert report.facts["unreadable"]["images"] == 0
    assert "pairs of identical images between train and test: 10" in report.findings
    assert report.exit_code == 0


def test_sparkline_falls_with_the_counts():
    line = sparkline(np.array([1000, 100, 10, 1, 0]))
    assert len(line) == 5
    assert line[0] == "█"
    assert line[-1] == " "
    assert list(line) == sorted(line, reverse=True)
    assert len(sparkline(np.arange(8142))) == 60
