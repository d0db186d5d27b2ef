"""Answers as pictures: a mask whose values are class numbers and whose palette shows them, and an overlay."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from longtail.data.batch_augment import normalise
from longtail.data.decode import BadImage, decode
from longtail.data.folders import IMAGE_SUFFIXES
from longtail.errors import LongtailError
from longtail.segmentation.answers import Run, under
from longtail.segmentation.augment import Whole
from longtail.segmentation.masks import MAX_CLASSES
from longtail.segmentation.stages import Answer, pixels_of

OVERLAY = 0.55  # how much of the colour


def find_images(paths: Iterable[str | Path]) -> list[Path]:
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            found += sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
        elif path.is_file():
            found.append(path)
        else:
            raise LongtailError(f"there is no image and no folder {path}")
    if not found:
        raise LongtailError("there is no image in what was given: name image files, or folders of them")
    return found


def predict(run: Run, paths: Iterable[str | Path], out: Path, prior: str = "as-trained") -> tuple[int, int]:
    """Write NAME.png and NAME_overlay.png for every image; how many were answered, and how many could not be read."""
    images = find_images(paths)
    out.mkdir(parents=True, exist_ok=True)
    answer, answered = under(run, prior), 0
    for path, name in zip(images, _names(images), strict=True):
        try:
            image = decode(path.read_bytes(), str(path))
        except (BadImage, OSError) as error:
            warnings.warn(str(error), stacklevel=2)
            continue
        mask = segment(run, answer, image)
        painted(mask, run.model.palette).save(out / f"{name}.png")
        Image.fromarray(overlay(image, mask, run.model.palette)).save(out / f"{name}_overlay.png")
        answered += 1
    return answered, len(images) - answered


@torch.no_grad()
def segment(run: Run, answer: Answer, image: np.ndarray) -> np.ndarray:
    """uint8 [H, W, 3] -> the class of every pixel, uint8 [H, W]."""
    scaled = np.ascontiguousarray(Whole(pixels_of(run.recipe).short_side).scale(image))
    pixels = torch.from_numpy(scaled).permute(2, 0, 1)[None].to(run.device.torch)
    card = run.model.card
    with run.device.autocast():
        images = normalise(pixels, card["mean"], card["std"], channels_last=run.device.channels_last)
        scores = answer(images, (image.shape[0], image.shape[1]))
    return scores.argmax(1)[0].to(torch.uint8).cpu().numpy()


def painted(mask: np.ndarray, palette: np.ndarray) -> Image.Image:
    """A palette picture: its values are class numbers, and any viewer shows their colours; VOID is white."""
    colours = np.full((256, 3), 255, np.uint8)
    colours[: len(palette)] = palette
    picture = Image.fromarray(mask)
    picture.putpalette(colours.tobytes())
    return picture


def overlay(image: np.ndarray, mask: np.ndarray, palette: np.ndarray) -> np.ndarray:
    """The image under the colours of its classes; void pixels as they are."""
    known = (mask < min(len(palette), MAX_CLASSES))[..., None]
    colour = palette[np.where(known[..., 0], mask, 0)]
    return np.where(known, (1 - OVERLAY) * image + OVERLAY * colour, image).astype(np.uint8)


def _names(paths: list[Path]) -> Iterator[str]:
    """Each file's own name, with as much of its folders as keeps two of them apart."""
    stems = [path.stem for path in paths]
    for path in paths:
        alone = stems.count(path.stem) == 1
        yield path.stem if alone else "_".join([*path.parts[-3:-1], path.stem]).replace("/", "")
