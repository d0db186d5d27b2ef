"""Small scenes to segment, written as real files: sky above ground, boxes on the ground, and a few small rare balls."""

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("sky", "ground", "box", "ball")
COLOURS = ((90, 160, 220), (110, 90, 60), (200, 60, 60), (240, 220, 40))
HEIGHT, WIDTH = 48, 64


def scene(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """uint8 [H, W, 3] and uint8 [H, W]; some pixels at the border are void (255)."""
    rng = np.random.default_rng(seed)
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    horizon = int(rng.integers(14, 26))
    mask[horizon:] = 1
    left, width = int(rng.integers(2, 40)), int(rng.integers(10, 18))
    mask[horizon - 4 : horizon + 10, left : left + width] = 2
    if seed % 2 == 0:
        y, x = int(rng.integers(horizon + 8, HEIGHT - 6)), int(rng.integers(6, WIDTH - 6))
        mask[(np.arange(HEIGHT)[:, None] - y) ** 2 + (np.arange(WIDTH) - x) ** 2 <= 12] = 3
    shade = rng.normal(0, 18, (HEIGHT, WIDTH, 1))
    image = np.array(COLOURS, np.float64)[mask] * rng.uniform(0.8, 1.2) + shade
    mask = mask.copy()
    mask[:, -2:] = 255
    return image.clip(0, 255).astype(np.uint8), mask


def write_pairs(folder: Path, train: int = 12, test: int = 6, *, colour: bool = False) -> Path:
    """images/ and masks/ with train and test, and classes.csv."""
    lines = ["name,red,green,blue", *(f"{n},{r},{g},{b}" for n, (r, g, b) in zip(CLASSES, COLOURS, strict=True))]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "classes.csv").write_text("\n".join([*lines, "void,0,0,0"]) + "\n")
    for split, count, first in (("train", train, 0), ("test", test, 1000)):
        for part in ("images", "masks"):
            (folder / part / split).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            image, mask = scene(first + i)
            Image.fromarray(image).save(folder / "images" / split / f"{i:03d}.png")
            if colour:
                mask = np.vstack([COLOURS, np.zeros((252, 3))]).astype(np.uint8)[mask]
            Image.fromarray(mask).save(folder / "masks" / split / f"{i:03d}.png")
    return folder
