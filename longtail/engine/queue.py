"""A list of runs, worked off one at a time: carries on after being cut off, skips what is done, keeps what it finishes.

    jobs:
      - name: lt100-logit_adjusted           # results/lt100-logit_adjusted.json, and its log and weights beside it
        run: train cifar100-lt --method logit_adjusted --epochs 40
        seeds: 3                             # NAME-s0, NAME-s1, NAME-s2, each with its --seed
      - name: lt100-gml
        run: train cifar100-lt --method gml --epochs 40 --teacher {lt100-logit_adjusted-s0}

A `run` may also begin with the name of a module, as `longtail.small_clip` is one: it takes --out and --resume too.

`{NAME}` is what is kept of an earlier job under results/, so that a student may run on another day than its teacher and
on another machine, and names a folder that everybody has; the folder of its run where no weights are kept, and where
that is not on this machine the job runs again, for its weights alone. A run is a process of its own, so that one which
fails takes nothing with it.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from longtail.errors import LongtailError
from longtail.record import record
from longtail.wording import number_of

_NAMED = re.compile(r"\{([\w.-]+)\}")
_KEYS = {"name", "run", "seeds", "weights"}
_STOPPED = {128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGTERM}


@dataclass(frozen=True)
class Job:
    name: str
    arguments: tuple[str, ...]  # of `longtail`, or of a module of it; without --out and --resume
    weights: bool = True  # are the final ones kept under results/?

    @property
    def of_module(self) -> bool:
        return self.arguments[0].startswith("longtail.")

    @property
    def command(self) -> str:
        return shlex.join(("python", "-m", *self.arguments) if self.of_module else ("longtail", *self.arguments))


@dataclass(frozen=True)
class Outcome:
    job: Job
    how: str  # done, skipped, failed or stopped
    why: str = ""


def read_jobs(path: str | Path) -> list[Job]:
    path = Path(path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise LongtailError(f"cannot read the queue {path}: {str(error).splitlines()[0]}") from None
    entries = content.get("jobs") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise LongtailError(f"{path} is no queue: it has no list named `jobs`")
    jobs = [job for number, entry in enumerate(entries, 1) for job in _jobs_of(entry, f"{path}, job {number}")]
    names = [job.name for job in jobs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise LongtailError(f"{path}: there are two jobs named {twice[0]!r}; a result can be only one's")
    return jobs


def _jobs_of(entry: Any, where: str) -> list[Job]:
    if not isinstance(entry, dict) or not {"name", "run"} <= entry.keys() or not entry.keys() <= _KEYS:
        raise LongtailError(f"{where}: a job has a `name` and a `run`, and may have {', '.join(sorted(_KEYS))}")
    name, seeds = str(entry["name"]), entry.get("seeds")
    if not re.fullmatch(r"[\w.-]+", name):
        raise LongtailError(f"{where}: {name!r} cannot be a file's name; use letters, digits, '-', '_' and '.'")
    arguments, weights = tuple(shlex.split(str(entry["run"]))), bool(entry.get("weights", True))
    if seeds is None:
        return [Job(name, arguments, weights)]
    seeds = range(seeds) if isinstance(seeds, int) else seeds
    return [
        Job(f"{name}-s{seed}", (*(a.replace("{seed}", str(seed)) for a in arguments), "--seed", str(seed)), weights)
        for seed in seeds
    ]


def work(
    jobs: Sequence[Job],
    runs: Path,
    results: Path = Path("results"),
    say: Callable[[str], None] = print,
) -> list[Outcome]:
    """Run what has no result yet, in order. A signal to this process reaches the run, which writes a checkpoint."""
    outcomes, named = [], {job.name: job for job in jobs}
    for number, job in enumerate(jobs, 1):
        if (results / f"{job.name}.json").exists():
            outcomes.append(Outcome(job, "skipped", "has a result"))
            continue
        recorded = [named[n] for n in _needed(job) if n in named and (results / f"{n}.json").exists()]
        again = [earlier for earlier in recorded if _folder(earlier.name, runs, results) is None]
        for earlier in again:
            say(f"[{number}/{len(jobs)}] {earlier.name}: again, for its weights are not here and {job.name} needs them")
        outcome = Outcome(job, "done")
        for one in (*again, job):
            if outcome.how == "done":
                say(f"[{number}/{len(jobs)}] {one.name}: {one.command}")
                outcome = replace(_run(one, runs, results), job=job)
        outcomes.append(outcome)
        say(f"[{number}/{len(jobs)}] {job.name}: {outcome.how}{f', {outcome.why}' if outcome.why else ''}")
        if outcome.how == "stopped":
            break
    return outcomes


def _run(job: Job, runs: Path, results: Path) -> Outcome:
    folder, log = runs / job.name, runs / f"{job.name}.log"
    try:
        arguments = [_resolved(argument, runs, results) for argument in job.arguments]
    except LongtailError as error:
        return Outcome(job, "failed", str(error))
    runs.mkdir(parents=True, exist_ok=True)
    module = [] if job.of_module else ["longtail"]
    command = [sys.executable, "-m", *module, *arguments, "--out", str(folder), "--resume"]
    with open(log, "a", encoding="utf-8") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        code = _wait(process)
    if code in _STOPPED:
        return Outcome(job, "stopped", f"carry on with the same command; {log} is its log")
    if code:
        return Outcome(job, "failed", f"exit code {code}: {_last_line(log)}")
    if not (results / f"{job.name}.json").exists():  # what is recorded stays: another machine rounds otherwise
        record(folder, job.name, results, keep_weights=job.weights)
    return Outcome(job, "done")


def _wait(process: subprocess.Popen[bytes]) -> int:
    """SIGTERM to this process is passed on; SIGINT reaches the whole terminal by itself."""
    previous = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue
    finally:
        signal.signal(signal.SIGTERM, previous)


def _needed(job: Job) -> list[str]:
    """The jobs that it starts from."""
    return [name for argument in job.arguments for name in _NAMED.findall(argument)]


def _resolved(argument: str, runs: Path, results: Path) -> str:
    """`{NAME}` becomes a folder with that job's final weights."""

    def folder(match: re.Match[str]) -> str:
        if (place := _folder(match[1], runs, results)) is None:
            raise LongtailError(f"there is no finished run of {match[1]!r}, which this job starts from")
        return str(place)

    return _NAMED.sub(folder, argument)


def _folder(name: str, runs: Path, results: Path) -> Path | None:
    places = (results / "runs" / name, runs / name)
    return next((place for place in places if (place / "model.safetensors").exists()), None)


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    if lines and lines[-1].startswith("╰"):  # a box about a mistyped flag, which says first what is wrong
        top = max((number for number, line in enumerate(lines) if line.startswith("╭")), default=-1)
        lines = [lines[top + 1].strip("│ ")]
    return f"{lines[-1]} (all of it in {log})" if lines else f"nothing was said in {log}"


def summary(outcomes: Sequence[Outcome], jobs: Sequence[Job]) -> str:
    kinds = [outcome.how for outcome in outcomes]
    line = ", ".join(f"{kinds.count(how)} {how}" for how in ("done", "skipped", "failed", "stopped") if how in kinds)
    left = len(jobs) - len(outcomes)
    return f"{number_of(len(jobs), 'job')}: {line}" + (f", {left} not begun" if left else "")
