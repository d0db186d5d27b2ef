"""The lists of runs under results/: every job is a command that exists, with settings its method takes."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from longtail.cli import main
from longtail.data.table import ImageTable, PixelStore
from longtail.engine import stages
from longtail.engine.queue import Job, read_jobs
from longtail.methods import build_objective
from longtail.recipe import from_dict

RESULTS = Path(__file__).parents[2] / "results"
QUEUES = sorted(RESULTS.glob("queue_*.yaml"))
ALL = {job.name for path in QUEUES for job in read_jobs(path)}
NAMED = re.compile(r"\{([\w.-]+)\}")


def jobs_of(path: Path) -> list[Job]:
    """One seed of each."""
    return [job for job in read_jobs(path) if not re.search(r"-s[1-9]\d*$", job.name)]


@pytest.fixture
def small_images(monkeypatch):
    """A class list of CIFAR's size in place of CIFAR, so that nothing is read."""
    labels = np.repeat(np.arange(100), 2).astype(np.int32)
    split = np.tile([0, 2], 100).astype(np.uint8)
    pixels = PixelStore(np.zeros((200, 32, 32, 3), np.uint8), "black")
    table = ImageTable(tuple(f"c{c}" for c in range(100)), labels, split, pixels)
    monkeypatch.setattr(stages, "load_data", lambda *_: table)


@pytest.mark.parametrize("path", QUEUES, ids=lambda path: path.stem)
def test_what_a_job_starts_from_is_another_one(path):
    for job in read_jobs(path):
        for argument in job.arguments:
            for name in NAMED.findall(argument):
                assert name in ALL, f"{job.name} starts from {name}, which no list trains"


@pytest.mark.parametrize("path", QUEUES, ids=lambda path: path.stem)
def test_every_job_resolves_to_a_recipe_whose_settings_its_methods_take(path, small_images, capsys):
    jobs = [job for job in jobs_of(path) if "segmentation" not in job.arguments and "cifar" in " ".join(job.arguments)]
    for job in jobs:
        arguments = [NAMED.sub("runs/earlier", argument) for argument in job.arguments]
        if arguments[0] not in ("train", "reproduce") or "--clip" in arguments:
            continue
        assert main([*arguments, "--print-config"]) == 0, job.name
        recipe = from_dict(json.loads(capsys.readouterr().out))
        assert recipe.data.subset_seed == 0  # the published images
        for stage in recipe.stages:
            build_objective(stage.method, [4] * 100, 8, stage.settings, 8, stage.model)
            assert stage.epochs or stage.start_from
        if "equal_budget" in path.stem:
            last = recipe.stages[-1]
            assert (last.model, last.augment, last.batch_size) == ("resnet32", "autoaugment", 128)
            assert max(stage.epochs for stage in recipe.stages) == 40 or last.start_from == "runs/earlier"
