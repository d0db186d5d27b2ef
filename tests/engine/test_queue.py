"""A list of runs is worked off, carried on and recorded; what fails is named and takes nothing with it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from longtail.engine import queue
from longtail.engine.queue import Job, read_jobs, work
from longtail.engine.stages import Finished
from longtail.errors import LongtailError
from longtail.record import record

TINY = "train digits-lt --model small --epochs 1 --device cpu"


def write(path, text):
    path.write_text(text)
    return path


def test_seeds_become_jobs_and_braces_the_folder_of_an_earlier_one(tmp_path):
    file = write(
        tmp_path / "queue.yaml",
        f"jobs:\n- {{name: a, run: {TINY}, seeds: 2, weights: false}}\n- name: b\n  run: {TINY} --teacher {{a-s1}}\n",
    )
    first, second, last = read_jobs(file)
    assert (first.name, second.name, last.name) == ("a-s0", "a-s1", "b")
    assert second.arguments[-2:] == ("--seed", "1")
    assert not first.weights
    assert last.weights
    assert last.arguments[-1] == "{a-s1}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("jobs: 3", "no list named `jobs`"),
        ("- name: a", "no list named `jobs`"),
        ("jobs:\n- name: a", "has a `name` and a `run`"),
        ("jobs:\n- {name: a, run: train x, sedes: 3}", "has a `name` and a `run`"),
        ("jobs:\n- {name: a/b, run: train x}", "cannot be a file's name"),
        ("jobs:\n- {name: a, run: train x}\n- {name: a, run: train y}", "two jobs named 'a'"),
        ("jobs: [", "cannot read the queue"),
    ],
)
def test_a_queue_that_is_none_is_refused(tmp_path, text, says):
    with pytest.raises(LongtailError, match=says):
        read_jobs(write(tmp_path / "queue.yaml", text))


def test_done_is_recorded_and_skipped_and_a_failure_takes_nothing_with_it(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))
    jobs = [
        Job("plain", (*TINY.split(), "--method", "logit_adjusted")),
        Job("unknown", (*TINY.split(), "--method", "no_such_method")),
        Job("mistyped", (*TINY.split(), "--epoch", "3")),
        Job("orphan", (*TINY.split(), "--method", "gml", "--teacher", "{nobody}")),
        Job("student", (*TINY.split(), "--method", "gml", "--teacher", "{plain}"), weights=False),
    ]
    runs, results = tmp_path / "runs", tmp_path / "results"
    outcomes = {outcome.job.name: outcome for outcome in work(jobs, runs, results, say=lambda line: None)}
    assert {name: outcome.how for name, outcome in outcomes.items()} == {
        "plain": "done",
        "unknown": "failed",
        "mistyped": "failed",
        "orphan": "failed",
        "student": "done",
    }
    assert "no_such_method" in outcomes["unknown"].why
    assert "exit code 2: Unrecognized options: --epoch, 3 (all of it in " in outcomes["mistyped"].why
    assert "no finished run of 'nobody'" in outcomes["orphan"].why
    assert json.loads((results / "student.json").read_text())["summary"]["accuracy"] > 0
    assert (results / "runs/plain/model.safetensors").exists()
    teacher = str(results / "runs/plain")
    command = ["longtail", *TINY.split(), "--method", "gml", "--teacher", teacher]
    assert json.loads((results / "student.json").read_text())["command"] == command
    assert json.loads((results / "runs/student/config.json").read_text())["command"] == command
    assert not (results / "runs/student/model.safetensors").exists()

    again = work(jobs, runs, results, say=lambda line: None)
    assert [outcome.how for outcome in again] == ["skipped", "failed", "failed", "failed", "skipped"]
    assert "2 skipped, 3 failed" in queue.summary(again, jobs)


def test_a_teacher_whose_weights_are_on_another_machine_is_trained_again_and_not_recorded_again(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))
    teacher = Job("teacher", (*TINY.split(), "--method", "logit_adjusted"), weights=False)
    student = Job("student", (*TINY.split(), "--method", "gml", "--teacher", "{teacher}"), weights=False)
    results, said = tmp_path / "results", []
    work([teacher], tmp_path / "there", results, say=said.append)
    recorded = (results / "teacher.json").read_bytes()
    outcomes = work([teacher, student], tmp_path / "here", results, say=said.append)
    assert [outcome.how for outcome in outcomes] == ["skipped", "done"]
    assert "[2/2] teacher: again, for its weights are not here and student needs them" in said
    assert (results / "teacher.json").read_bytes() == recorded
    assert not (results / "runs/teacher/model.safetensors").exists()


def test_a_teacher_is_found_where_its_record_is_kept(tmp_path):
    kept = tmp_path / "results/runs/plain"
    kept.mkdir(parents=True)
    (kept / "model.safetensors").write_bytes(b"")
    assert queue._resolved("--teacher={plain}", tmp_path / "runs", tmp_path / "results") == f"--teacher={kept}"


def test_terminated_the_run_writes_a_checkpoint_and_the_queue_carries_on(tmp_path):
    """The signal reaches the queue alone, as from a service manager."""
    file = write(
        tmp_path / "queue.yaml", f"jobs:\n- {{name: long, run: {TINY} --method cross_entropy --epochs 3000}}\n"
    )
    command = [sys.executable, "-m", "longtail", "queue", str(file), "--runs", str(tmp_path / "runs")]
    command += ["--results", str(tmp_path / "results")]
    log, state = tmp_path / "runs/long.log", tmp_path / "runs/long/state"

    def start_and_stop(epochs: int) -> str:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        try:
            deadline = time.monotonic() + 120
            while not (log.exists() and f"epoch {epochs:3d}/3000" in log.read_text()):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            return process.communicate(timeout=120)[0]
        finally:
            process.kill()

    assert "1 job: 1 stopped" in start_and_stop(2)
    assert any(state.iterdir())
    assert not (tmp_path / "results/long.json").exists()
    done = log.read_text().count("epoch ")
    assert "1 job: 1 stopped" in start_and_stop(done + 2)
    assert "carrying on from epoch" in log.read_text()


def test_a_record_has_the_stages_in_the_order_they_were_trained(tmp_path):
    run, results = tmp_path / "run", tmp_path / "results"
    names = ("teacher", "encoder", "classifier")
    recipe = {"data": {}, "seed": 0, "stages": [{"name": name, "keys": "", "start_from": ""} for name in names]}
    for name in names:
        folder = run if name == "classifier" else run / name
        folder.mkdir(parents=True, exist_ok=True)
        done = {"stage": name, "method": "gml", "model": "small", "epochs": 1, "parameters": 1, "hours": 0.5}
        (folder / "result.json").write_text(json.dumps(done | {"summary": {}}))
    config = {"recipe": recipe, "command": ["longtail", "reproduce", "x"], "environment": {}}
    (run / "config.json").write_text(json.dumps(config))
    entry = record(run, "three", results)
    assert [stage["stage"] for stage in entry["stages"]] == list(names)
    assert json.loads((results / "three.json").read_text()) == entry
    assert json.loads((results / "runs/three/result.json").read_text()) == entry["stages"][-1]


def test_every_recorded_run_is_a_finished_one(tmp_path):
    """So that `longtail report` takes it."""
    results = Path(__file__).parents[2] / "results"
    for folder in (results / "runs").iterdir():
        last = json.loads((results / f"{folder.name}.json").read_text())["stages"][-1]
        assert Finished(**json.loads((folder / "result.json").read_text())) == Finished(**last), folder.name
