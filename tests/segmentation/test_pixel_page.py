"""The recorded segmentations as a table of the site."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from longtail import recipes
from longtail.recipes.change import change
from longtail.segmentation.recipes import settings_for

PAGE = Path(__file__).parents[2] / "docs" / "pixels.py"


@pytest.fixture
def pixels(monkeypatch):
    monkeypatch.syspath_prepend(str(PAGE.parent))  # as Sphinx has it
    spec = importlib.util.spec_from_file_location("pixels", PAGE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_row_an_experiment_with_its_spread_over_seeds(pixels, tmp_path):
    assert "None of the runs" in pixels.camvid_table(tmp_path)

    def record(name, miou):
        summary = dict.fromkeys(pixels.COLUMNS, 0.25) | {"miou": miou}
        (tmp_path / f"{name}.json").write_text(json.dumps({"summary": summary, "epochs": 50, "hours": 0.5}))

    for name, miou in (("gml-0.2-s0", 0.40), ("gml-0.2-s1", 0.42), ("gml-0.2-cls-1-s0", 0.1), ("gml-0-s0", 0.3)):
        record(f"camvid-{name}", miou)
    lines = pixels.camvid_table(tmp_path).splitlines()
    assert lines[0] == "|  | seeds | mIoU | mAcc | aAcc | many | medium | few | hours |"
    assert [line.split(" | ")[:3] for line in lines[2:5]] == [
        ["| GML, alpha 0", "1", "30.0\\*"],
        ["| GML, alpha 0.2", "2", "41.0 ± 1.4"],
        ["| GML, alpha 0.2, 1 in the classifier's loss", "1", "10.0\\*"],
    ]
    assert "50 epochs each" in lines[-1]


def test_curves_of_alpha_are_numbers_where_they_were_drawn(pixels, tmp_path):
    assert pixels.camvid(tmp_path, tmp_path) == pixels.camvid_table(tmp_path)
    moved = [(0.0, 0.50, 0.60), (0.1 + 0.1, 0.52, 0.66), (1.0, 0.40, 0.80)]
    trained = [(0.2, 0.50, 0.70), (1.0, 0.40, 0.80)]
    sweeps = {"gml": {"trained": trained, "moved": moved}, "logit_adjusted": {"trained": trained[1:], "moved": moved}}
    (tmp_path / "camvid.json").write_text(json.dumps(sweeps))
    (tmp_path / "camvid-iou.png").write_bytes(b"")
    text = pixels.camvid(tmp_path, tmp_path)
    assert "| 0 |  | 50.0 |  | 60.0 |" in text
    assert "| 0.2 | 50.0 | 52.0 | 70.0 | 66.0 |" in text
    assert "at most 2.0 points of mIoU and 4.0 of mAcc apart" in text
    assert "_static/camvid-iou.png" in text
    assert "camvid-masks.png" not in text
    assert "logit_adjusted" not in text  # trained at one alpha, it has no curve to be compared with


def test_the_settings_of_the_papers_figure_are_the_recipes():
    page = (PAGE.parent / "segmentation.md").read_text(encoding="utf-8")
    said = re.findall(r"--set (student\.\w+)=A", page)
    student = change(recipes.build("ade20k"), [f"{name}=0.5" for name in said]).stages[-1]
    assert student.settings == settings_for("gml", 0.5, 8192)


def test_every_job_of_the_queue_has_a_row(pixels):
    from longtail.engine.queue import read_jobs

    jobs = read_jobs(PAGE.parents[1] / "results" / "queue_camvid.yaml")
    assert {job.name.rpartition("-s")[0] for job in jobs} == set(pixels.ROWS)
    teachers = {job.name: word for job in jobs for word in job.arguments if word.startswith("{")}
    names = [job.name for job in jobs]
    for student, teacher in teachers.items():  # of the same seed, and trained before
        assert teacher == f"{{camvid-logit_adjusted-s{student[-1]}}}"
        assert names.index(teacher.strip("{}")) < names.index(student)
