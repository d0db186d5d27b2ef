"""What is recorded under results/bench reaches what was to be reached. Nothing is timed here."""

import json

import pytest

from benchmarks.__main__ import NAMES, Line, lines
from benchmarks.harness import RESULTS


def test_every_benchmark_has_been_run_and_names_its_machine():
    for name in NAMES:
        assert json.loads((RESULTS / f"{name}.json").read_text())["machine"]["cpu"], name


def test_every_target_is_reached():
    found = list(lines())
    assert not [str(line) for line in found if not line.reached]
    assert sum(line.at_most is not None or line.at_least is not None for line in found) >= 12


def test_a_table_of_what_is_there(tmp_path):
    assert list(lines(tmp_path)) == []
    (tmp_path / "step.json").write_text(json.dumps({"ratio": 1.3, "target": 1.15}))
    (line,) = lines(tmp_path)
    assert not line.reached
    assert str(line).split()[-5:] == ["x", "at", "most", "1.15", "NO"]


@pytest.mark.parametrize(("line", "end"), [(Line("a", 1.0), "x"), (Line("a", 2.0, at_least=1.5), "at least 1.5  yes")])
def test_a_line_without_a_bound_has_no_verdict(line, end):
    assert str(line).endswith(end)
