"""The recorded segmentations as a table of the site."""

import importlib.util
import json
from pathlib import Path

import pytest

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


def test_every_job_of_the_queue_has_a_row(pixels):
    from longtail.engine.queue import read_jobs

    jobs = read_jobs(PAGE.parents[1] / "results" / "queue_camvid.yaml")
    assert {job.name.rpartition("-s")[0] for job in jobs} == set(pixels.ROWS)
    teachers = {job.name: word for job in jobs for word in job.arguments if word.startswith("{")}
    names = [job.name for job in jobs]
    for student, teacher in teachers.items():  # of the same seed, and trained before
        assert teacher == f"{{camvid-logit_adjusted-s{student[-1]}}}"
        assert names.index(teacher.strip("{}")) < names.index(student)
