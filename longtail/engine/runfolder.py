"""The folder a run writes to: claimed, described, and taken away again where nothing came of it.

    config.json   the recipe as resolved, the command and the versions: enough to repeat the run
    classes.csv   index, name, train count, group
    state/        checkpoints, while the run lasts
    result.json   the run is finished

What else is in it belongs to its stages.
"""

import contextlib
import csv
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from longtail.engine.lock import Lock
from longtail.errors import LongtailError
from longtail.files import atomic, cannot_write, read_json, write_json

FORMAT = 1

_DESCRIPTION = {"config.json", "classes.csv", ".lock"}  # files that say what a run is, not what it found
_MAY_DIFFER = {"data.root", "data.on_bad_image"}  # between a run and its continuation: where data lie, what stops it
_PACKAGES = ("longtail", "torch", "torchvision", "timm", "numpy", "pillow", "safetensors")


class RunFolder:
    """`with RunFolder(path, resume=...) as run:` holds the folder for this process alone.

    A new run wants a folder that is absent or empty. `resume` also takes one with a run in it, and starts a new run
    where there is none, so that one command serves the first start and every restart. A run that ends, for whatever
    reason, before it wrote more than its own description leaves nothing behind.
    """

    def __init__(self, path: str | os.PathLike[str], *, resume: bool = False) -> None:
        self.path = Path(path)
        self.resume = resume
        self.resumed = False  # there was a run, and this one continues it
        self._lock = Lock(self.path / ".lock")
        self._created: list[Path] = []  # folders that were not there before, innermost first

    def __enter__(self) -> "RunFolder":
        self._created = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        with contextlib.ExitStack() as on_error:
            on_error.callback(self._remove_created)
            self._lock.acquire()
            on_error.callback(self._lock.release)
            self._look()
            on_error.pop_all()
        return self

    def _look(self) -> None:
        """What is in the folder already? Called with the lock held."""
        # Of a process that was killed; in a folder that is no run's, only what is surely ours.
        ours = ("*.tmp",) if self._is_run() else ("config.json.tmp", f"{self._lock.path.name}.*.tmp")
        for leftover in [path for name in ours for path in self.path.rglob(name)]:
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink(missing_ok=True)
        if self._is_run():
            finished = (self.path / "result.json").exists()
            if not self.resume and (finished or self._has_found()):
                kind, way = ("a finished", "show it again") if finished else ("an unfinished", "continue it")
                raise LongtailError(f"{self.path} holds {kind} run: {way} with --resume, or choose another --out")
            self.resumed = self.resume
        elif others := sorted(path.name for path in self.path.iterdir() if path != self._lock.path):
            raise LongtailError(f"{self.path} is not the folder of a run (it holds {others[0]}): choose another --out")

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None and not self.resumed and not self._has_found():
            for name in _DESCRIPTION:
                (self.path / name).unlink(missing_ok=True)
            for inner, _, _ in os.walk(self.path, topdown=False):
                if Path(inner) != self.path:
                    os.rmdir(inner)
            self._remove_created()
        self._lock.release()

    def _remove_created(self) -> None:
        with contextlib.suppress(OSError):  # not empty: someone else has moved in
            for folder in self._created:
                folder.rmdir()

    def _is_run(self) -> bool:
        path = self.path / "config.json"
        return path.exists() and {"recipe", "environment"} <= read_json(path).keys()

    def _has_found(self) -> bool:
        return any(path.is_file() and path.name not in _DESCRIPTION for path in self.path.rglob("*"))

    def describe(
        self, recipe: dict[str, Any], complete: Callable[[dict[str, Any]], dict[str, Any]] = lambda recipe: recipe
    ) -> None:
        """Write config.json; on resuming, compare with it: another recipe is an error, another version a warning.

        `complete` adds the defaults of fields that an earlier version did not have yet.
        """
        path, environment = self.path / "config.json", describe_environment()
        recipe = _without_home(json.loads(json.dumps(recipe)))  # as it will be read back: lists for tuples
        if not self.resumed:
            record = {"format": FORMAT, "recipe": recipe, "command": _command(), "environment": environment}
            return write_json(path, record)
        record = read_json(path)
        if record.get("format") != FORMAT:
            raise LongtailError(f"{path} was written by another longtail (format {record.get('format')}): use that one")
        then = json.loads(json.dumps(complete(record["recipe"])))
        changed = [line for key, line in _differences(then, recipe) if key not in _MAY_DIFFER]
        if changed:
            raise LongtailError(
                f"{self.path} was started with another recipe ({'; '.join(changed[:3])}): "
                "resume it with its own, or choose another --out"
            )
        if record["recipe"] != recipe:  # what may differ is from now on as it was said last
            write_json(path, record | {"recipe": recipe})
        for _, line in _differences(record["environment"], environment):
            warnings.warn(f"another environment ({line}): results may differ in their last bits", stacklevel=2)

    def write_classes(self, names: Sequence[str], counts: Sequence[int], groups: Sequence[str]) -> None:
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["index", "name", "train_count", "group"])
        writer.writerows(zip(range(len(names)), names, counts, groups, strict=True))
        with atomic(self.path / "classes.csv") as file:
            # A name that came from a folder may hold bytes that are not UTF-8; they are written as they were.
            file.write(text.getvalue().encode(errors="surrogateescape"))


def describe_environment() -> dict[str, Any]:
    """What decides a run's last bits. No names of machines or people."""
    versions = {}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    cuda = torch.cuda.is_available()
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name() if cuda else _processor(),
        "threads": torch.get_num_threads(),
        "versions": versions,
        "commit": _commit(),
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _commit() -> str | None:
    """The commit this package was checked out at, with -dirty where files differ; None outside its own repository."""
    package = Path(__file__).parents[1]

    def git(*arguments: str) -> str | None:
        asked = subprocess.run(["git", "-C", package, *arguments], capture_output=True, text=True)
        return asked.stdout.strip() if asked.returncode == 0 else None

    try:
        # Installed inside somebody's project, the nearest repository would be theirs.
        ours = git("ls-files", "--error-unmatch", "__init__.py") is not None
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*") if ours else None
    except OSError:  # no git here
        return None


def _command() -> list[str]:
    program = "python -m longtail" if sys.argv[0].endswith("__main__.py") else os.path.basename(sys.argv[0])
    return [program, *_without_home(sys.argv[1:])]


def _without_home(value: Any) -> Any:
    """The same, with ~ for the home folder in every string."""
    home = str(Path.home())
    if isinstance(value, dict):
        return {key: _without_home(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_home(item) for item in value]
    if isinstance(value, str) and home != "/":
        return re.sub(rf"(?<![\w./-]){re.escape(home)}(?![\w.-])", "~", value)
    return value


def _differences(then: Any, now: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """(dotted key, "key was a, is b") of every leaf that differs."""
    if isinstance(then, dict) and isinstance(now, dict):
        for name in sorted(then.keys() | now.keys()):
            yield from _differences(then.get(name), now.get(name), f"{key}.{name}".lstrip("."))
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for i, (a, b) in enumerate(zip(then, now, strict=True)):
            yield from _differences(a, b, f"{key}[{i}]")
    elif then != now:
        yield key, f"{key} was {then}, is {now}"
