"""A comparison gives all methods the same budget, keeps what is done, and names what failed."""

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

from longtail import cli
from longtail.comparison import DIALS, _data, _lengths, compare
from longtail.engine import queue, stages
from longtail.engine.queue import Outcome
from longtail.errors import LongtailError
from longtail.recipe import Data, from_dict
from longtail.record import record

DIALS_SAID = {"model": "small", "device": "cpu"}


@pytest.fixture
def in_this_process(monkeypatch, tmp_path):
    """Cells without a process each, which is the queue's affair; `broken` names those that fail."""
    broken: set[str] = set()
    begun: list[str] = []

    def run(job, runs, results):
        begun.append(job.name)
        if job.name in broken:
            return Outcome(job, "failed", "no space left")
        code = cli.main([*job.arguments, "--out", str(runs / job.name), "--resume"])
        assert code == 0
        record(runs / job.name, job.name, results, keep_weights=job.weights)
        return Outcome(job, "done")

    monkeypatch.setattr(queue, "_run", run)
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return broken, begun


def test_a_teacher_counts_in_a_total_budget_and_not_in_a_stage_budget():
    table = stages.load_data(Data("digits-lt", imbalance=50))
    methods = ["cross_entropy", "gml", "crt", "posthoc_adjusted"]
    total = _lengths("digits-lt", table, methods, 60, "total", {"model": "small"})
    assert total == {"cross_entropy": 120, "gml": 60, "crt": 107, "posthoc_adjusted": 120}
    assert set(_lengths("digits-lt", table, methods, 60, "stage", {"model": "small"}).values()) == {60}


def test_one_table_one_figure_failed_cells_named_and_carried_on(in_this_process, capsys):
    broken, begun = in_this_process
    broken.add("gml-s1")
    command = ["compare", "digits-lt", "--methods=cross_entropy,gml", "--seeds=2", "--epochs=1", "--model=small"]
    assert cli.main([*command, "--out=cmp"]) == 2
    said = capsys.readouterr()
    assert "1 of 4 cells failed and the rest is kept; the first: gml-s1, no space left" in said.err
    assert said.err.count("\n") == 1
    table = (Path("cmp") / "comparison.txt").read_text()
    assert table in said.out + "\n"
    plain, student = (line.split() for line in table.splitlines()[1:3])
    assert plain[0] == "cross_entropy"
    assert plain[-3] == "2"  # epochs: as many as teacher and student take together
    assert "2 (1 + 1)" in table
    assert " ".join(student[-3:]) == "1 of 2"
    assert "±" in " ".join(plain)
    assert "failed: gml-s1: no space left" in table
    assert Path("cmp/comparison.png").stat().st_size > 10_000

    broken.clear()
    begun.clear()
    assert cli.main([*command, "--out=cmp"]) == 0
    assert begun == ["gml-s1"]  # what is done is not done again
    found = json.loads(Path("cmp/comparison.json").read_text())
    assert [row["seeds"] for row in found["rows"]] == [[0, 1], [0, 1]]
    assert found["failed"] == found["left"] == []
    assert found["rows"][1]["epochs"] == [1, 1]
    assert found["rows"][1]["hours"] > 0


def test_a_dial_that_a_cell_does_not_have_is_refused_before_any_cell(in_this_process):
    _, begun = in_this_process
    for name in ("modle", "pretrained", "teacher"):
        with pytest.raises(LongtailError, match=f"a comparison has no dial '{name}'; "):
            compare("digits-lt", ["cross_entropy"], seeds=1, dials={name: "x"})
    assert not begun
    assert {*DIALS} <= inspect.signature(cli.train).parameters.keys()


def test_a_comparison_is_of_the_data_its_cells_train_on(in_this_process):
    dials = DIALS_SAID | {"tail": "step", "imbalance": 10, "subset_seed": 1, "precision": "float32"}
    compare("digits-lt", ["cross_entropy"], seeds=1, epochs=1, out=Path("cmp"), dials=dials)
    recipe = json.loads(Path("cmp/runs/cross_entropy-s0/config.json").read_text())["recipe"]
    data = from_dict(recipe).data
    assert data == _data("digits-lt", dials)
    assert (data.profile, data.imbalance, data.subset_seed) == ("step", 10, 1)


def test_another_comparison_in_the_same_folder_is_refused(in_this_process):
    compare("digits-lt", ["cross_entropy"], seeds=1, epochs=1, out=Path("cmp"), dials=DIALS_SAID)
    with pytest.raises(LongtailError, match=r"holds another comparison .* choose another --out"):
        compare("digits-lt", ["cross_entropy"], seeds=1, epochs=2, out=Path("cmp"), dials=DIALS_SAID)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--methods", "glm"], "did you mean 'gml'"),
        (["--methods", ","], "takes a method and a seed"),
        (["--methods", "gml", "--seeds", "0"], "takes a method and a seed"),
        (["--methods", "gml", "--budget", "time"], "--budget is one of total, stage"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, monkeypatch, capsys, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["compare", "digits-lt", *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_as_a_person_types_it(tmp_path):
    command = [sys.executable, "-m", "longtail", "compare", "digits-lt", "--methods", "cross_entropy,gml"]
    command += ["--seeds", "1", "--epochs", "2", "--model", "small"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "* one seed" in ran.stdout
    assert (tmp_path / "runs/compare/digits-lt/comparison.png").exists()
