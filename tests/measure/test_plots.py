"""What is drawn, read back from the figure: the numbers given, in the order promised, nothing for what is missing."""

import subprocess
import sys

import numpy as np
import pytest

from longtail.measure import plots
from longtail.measure.groups import by_threshold
from longtail.measure.metrics import Spread


def test_matplotlib_is_loaded_on_use_and_pyplot_never():
    code = """
import sys, numpy as np
from longtail.measure import plots
assert "matplotlib" not in sys.modules
plots.curves({"loss": {"gml": ([1, 2], [3.0, 2.0])}})
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_classes_are_sorted_by_count_and_unmeasured_ones_leave_a_gap():
    counts = np.array([20, 500, 5, 100])
    accuracy = np.array([0.3, 0.9, np.nan, 0.6])
    figure = plots.counts_and_accuracy(counts, {"gml": accuracy}, by_threshold(counts))
    bars, axis = figure.axes
    np.testing.assert_allclose(axis.lines[0].get_ydata(), [90, 60, 30, np.nan])
    heights = bars.collections[0].get_paths()[0].vertices[:, 1]
    assert set(np.unique(heights)) >= {5, 20, 100, 500}
    assert [text.get_text() for text in axis.texts] == ["many", "medium", "few"]


def test_many_classes_are_smoothed_over_measured_neighbours_only():
    accuracy = np.where(np.arange(300) % 3 == 0, np.nan, 0.5)
    figure = plots.counts_and_accuracy(np.arange(300, 0, -1), {"gml": np.stack([accuracy, accuracy + 0.1])})
    _, axis = figure.axes
    np.testing.assert_allclose(axis.lines[0].get_ydata(), 55)
    assert len(axis.collections) == 1  # the band of two seeds


def test_group_bars_carry_their_numbers_and_omit_what_was_not_measured():
    summary = {
        "balanced_accuracy": Spread(0.4, 0.01),
        "many": Spread(0.6, 0.02),
        "medium": Spread(0.3, None),
        "few": None,
    }
    figure = plots.group_bars({"gml": summary})
    assert [text.get_text() for text in figure.axes[0].texts] == ["40.0", "60.0", "30.0"]


def test_reliability_leaves_out_empty_bins():
    bins = np.array([[0, 0, 0], [10, 4, 5.0], [30, 27, 26.0]])
    figure = plots.reliability_diagram({"all": {"gml": bins}})
    line = figure.axes[0].lines[1]
    np.testing.assert_allclose(line.get_xydata(), [[50, 40], [100 * 26 / 30, 90]])


def test_trade_off_rings_the_strength_in_use():
    points = [(0.0, 0.5, 0.3), (0.5, 0.55, 0.2), (1.0, 0.6, 0.1)]
    figure = plots.trade_off({"gml": points}, marked=0.5)
    ring = figure.axes[0].lines[1]
    np.testing.assert_allclose(ring.get_xydata(), [[55, 20]])


def test_where_answers_go_stacks_to_a_hundred():
    shares = np.array([[0.6, 0.2, 0.1, 0.1], [0.4, 0.4, 0.1, 0.1], [np.nan] * 4])
    bars = plots.where_answers_go({"gml": shares}).axes[0].patches
    ends = [bar.get_x() + bar.get_width() for bar in bars]
    np.testing.assert_allclose(ends[3:8:4], 100)


def test_more_methods_than_colours_are_refused():
    with pytest.raises(AssertionError, match="fewer"):
        plots.counts_and_accuracy(np.array([3, 2]), {str(i): np.array([0.5, 0.5]) for i in range(8)})


def test_saved_picture(tmp_path):
    plots.save(plots.curves({"loss": {"gml": ([1, 2], [3.0, 2.0])}}), tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
