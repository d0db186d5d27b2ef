"""What the pages show of a terminal: the commands are run, and what they print is kept under docs/_terminal/.

python dev/terminal.py            all of them, about three minutes of two cores
python dev/terminal.py start      one page's

Times are of the machine that ran it. Long output is shortened in its middle, which the dots say.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from longtail.data import benchmarks

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs/_terminal"
SHOWN = {  # page: name, command, lines to keep of its head and of its tail
    "start": (
        ("demo", "longtail demo", 0, 0),
        ("inspect", "longtail inspect my_images/", 0, 0),
        ("train", "longtail train my_images/ --out runs/first", 17, 10),
        ("evaluate", "longtail evaluate runs/first --prior uniform", 0, 0),
        ("predict", "longtail predict runs/first my_images/nine/", 6, 0),
        ("report", "longtail report runs/first", 0, 0),
    ),
    "extend": (
        ("extend_mistake", "longtail train digits-lt --method vector_scaling --set gama=0.2", 0, 0),
        (
            "extend_train",
            "longtail train digits-lt --method vector_scaling --model small --epochs 40 --set gamma=0.2",
            9,
            7,
        ),
    ),
    "reproduce": (
        ("recipes", "longtail list recipes", 8, 0),
        ("queue", "longtail queue results/queue_first.yaml --dry-run", 0, 0),
    ),
}
PICTURES = {"runs/demo/demo.png": "demo.png", "runs/inspect/my_images/counts.png": "inspect.png"}
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def make_images(folder: Path) -> None:
    """A folder a class, from scikit-learn's digits, so that everybody can repeat what the pages show."""
    table = benchmarks.load("digits-lt", imbalance=20)
    for row in table.rows("train"):
        path = folder / DIGITS[table.labels[row]] / f"{row:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(table.images.decode(row)).save(path)


def run(command: str, place: Path) -> str:
    environment = {**os.environ, "COLUMNS": "100", "LONGTAIL_CACHE": str(place / "cache"), "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", *command.split()]
    ran = subprocess.run(words, cwd=place, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return ran.stdout.rstrip()


def shorten(text: str, head: int, tail: int) -> str:
    lines = text.splitlines()
    if not head or len(lines) <= head + tail:
        return text
    return "\n".join([*lines[:head], "...", *(lines[-tail:] if tail else [])])


def main(pages: list[str]) -> None:
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        make_images(place / "my_images")
        shutil.copytree(ROOT / "results", place / "results", ignore=shutil.ignore_patterns("runs"))
        for page in pages:
            for name, command, head, tail in SHOWN[page]:
                print(command, flush=True)
                text = shorten(run(command, place), head, tail)
                (OUT / f"{name}.txt").write_text(f"$ {command}\n{text}\n", encoding="utf-8")
        for picture, name in PICTURES.items():
            if (place / picture).exists():
                shutil.copy(place / picture, ROOT / "docs/_static" / name)


if __name__ == "__main__":
    main(sys.argv[1:] or list(SHOWN))
