"""`longtail export`: a model for elsewhere, its preprocessing in the file, checked against this one on real images.

    images     float32 [B, 3, H, W], RGB from 0 to 255, of the size the file states; it normalises by itself
    log_prior  float32 [C], of wherever the answer is used; ONNX: may be left out, which is zeros, the uniform prior
    scores     float32 [B, C], log-likelihood + log prior: the largest is the answer, softmax gives probabilities

An ONNX file states the rest in its metadata under `longtail`, a torch.export file in `longtail.json`, a safetensors
file (weights only, for `longtail.load`) in its header.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from longtail.answers.predict import Preparation, find_images
from longtail.answers.run import Run, questions
from longtail.data.decode import BadImage
from longtail.engine import checkpoint
from longtail.engine.trained import Model
from longtail.errors import LongtailError
from longtail.files import make_folder, write_json
from longtail.prior import log_prior

SUFFIXES = {"onnx": ".onnx", "torch": ".pt2", "safetensors": ".safetensors"}
TOLERANCE = 1e-3  # of a score, absolute: scores span tens
CHECKED = 8  # real images

Answer = Callable[[np.ndarray, np.ndarray], np.ndarray]  # images, log_prior -> scores


class Deployed(nn.Module):
    """The model with its normalisation in front and a prior behind."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", 255 * torch.tensor(model.card["mean"]).view(3, 1, 1))
        self.register_buffer("std", 255 * torch.tensor(model.card["std"]).view(3, 1, 1))

    def forward(self, images: Tensor, log_prior: Tensor) -> Tensor:
        return self.model((images - self.mean) / self.std) + log_prior


@dataclass(frozen=True)
class Parity:
    """How far the exported file is from the model on real images."""

    images: int
    largest_difference: float
    same_answers: float  # share of the images
    tolerance: float


def export(
    run: Run, out: Path | None = None, format: str | None = None, images: Sequence[str | Path] | None = None
) -> tuple[Path, Parity]:
    """Write the file; an export whose answers differ on real images is an error and leaves none.

    `format` is told by the ending of `out`, and onnx without either. `images` are files or folders to check with; the
    run's own test images if not given. The run must be on the CPU.
    """
    if format is None:
        format = next((name for name, suffix in SUFFIXES.items() if out and out.suffix == suffix), "onnx")
    if format not in SUFFIXES:
        raise LongtailError(f"--format is one of {', '.join(SUFFIXES)}, not {format!r}")
    if "tau" in run.model.adjusted:
        raise LongtailError("a tau-normalised model has no log-likelihood to export: export the original run")
    out = out or run.beside / f"model-export{SUFFIXES[format]}"
    make_folder(out.parent)
    deployed = Deployed(run.model).to(memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload]
    pictures = _real_images(run, images)
    temporary = out.with_name(out.name + ".partial")
    try:
        reread = _WRITERS[format](deployed, pictures, temporary)
        parity = _compare(deployed, reread, pictures)
        os.replace(temporary, out)
    except OSError as error:
        raise LongtailError(f"cannot write {out} ({error.strerror}): choose another --out") from error
    finally:
        temporary.unlink(missing_ok=True)
    write_json(out.with_name(out.name + ".parity.json"), parity.__dict__)
    return out, parity


def stated(model: Model) -> dict[str, Any]:
    """What whoever answers with the file has to know, as plain data."""
    card = model.card
    height, width = card["image_size"]
    short = int(height / card["crop_pct"])
    bring = (
        [f"resize the shorter side to {short} ({card['interpolation']})", f"take the middle {height} x {width}"]
        if card["resize"]
        else [f"nothing: the model was trained on images of {height} x {width} as they are"]
    )
    inside = {"mean": card["mean"], "std": card["std"]}
    return {
        "classes": card["classes"],
        "train_counts": card["counts"],
        "preprocessing": {"decode": "RGB, EXIF rotation applied", "bring_to_size": bring, "values": "0 to 255"},
        "image_size": [height, width],
        "crop_pct": card["crop_pct"],
        "interpolation": card["interpolation"],
        "resize": card["resize"],
        "normalised_inside": inside,
        "output": "log-likelihood + log_prior; without a prior it is uniform",
        "train_log_prior": _finite(log_prior(card["counts"])),
        "adjusted": card.get("adjusted", {}).get("what"),
        "model": card["model"],
        "method": card["method"],
    }


def _finite(values: Tensor) -> list[float]:
    return values.clamp(min=-1e4).tolist()  # JSON has no infinity


# ---- writers: each returns how to ask what it wrote -----------------------------------------------------------------


def _onnx(deployed: Deployed, pictures: Tensor, path: Path) -> Answer:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  (torch's exporter needs it)
    except ImportError:
        raise LongtailError("an ONNX export needs three more packages: pip install 'longtail[export]'") from None
    zeros = torch.zeros(len(deployed.model.classes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            deployed,
            (_two(pictures), zeros),
            input_names=["images", "log_prior"],
            output_names=["scores"],
            dynamic_shapes={"images": {0: torch.export.Dim("batch", min=1)}, "log_prior": None},
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    assert program is not None
    written = program.model_proto
    # An input with an initialiser of the same name is one that may be left out.
    written.graph.initializer.append(onnx.numpy_helper.from_array(zeros.numpy(), "log_prior"))
    onnx.helper.set_model_props(written, {"longtail": json.dumps(stated(deployed.model))})
    onnx.checker.check_model(written)
    onnx.save(written, str(path))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns of the input that may be left out, which is meant
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def answer(images: np.ndarray, log_prior_c: np.ndarray) -> np.ndarray:
        prior = {"log_prior": log_prior_c} if log_prior_c.any() else {}  # left out where it may be
        return np.asarray(session.run(["scores"], {"images": images} | prior)[0])

    return answer


def _torch(deployed: Deployed, pictures: Tensor, path: Path) -> Answer:
    zeros = torch.zeros(len(deployed.model.classes))
    batch = {"images": {0: torch.export.Dim("batch", min=1)}, "log_prior": None}
    program = torch.export.export(deployed, (_two(pictures), zeros), dynamic_shapes=batch)
    with open(path, "wb") as file:
        torch.export.save(program, file, extra_files={"longtail.json": json.dumps(stated(deployed.model))})
    with open(path, "rb") as file:
        reread = torch.export.load(file).module()
    return lambda images, log_prior_c: reread(torch.from_numpy(images), torch.from_numpy(log_prior_c)).numpy()


def _safetensors(deployed: Deployed, pictures: Tensor, path: Path) -> Answer:
    from longtail.engine import trained

    state = deployed.model.method.state_dict()
    kept = {name: tensor for name, tensor in state.items() if not name.startswith(trained.FOR_TRAINING)}
    checkpoint.save_single(path, kept, deployed.model.card | {"preprocessing": stated(deployed.model)})
    reread = Deployed(trained.load(path))

    def answer(images: np.ndarray, log_prior_c: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return reread(torch.from_numpy(images), torch.from_numpy(log_prior_c)).numpy()

    return answer


_WRITERS = {"onnx": _onnx, "torch": _torch, "safetensors": _safetensors}


def _two(pictures: Tensor) -> Tensor:
    """Traced with one image, a program might take "one" for a constant."""
    return torch.cat([pictures[:1]] * 2)


# ---- the check ------------------------------------------------------------------------------------------------------


def _real_images(run: Run, images: Sequence[str | Path] | None) -> Tensor:
    """float32 [N, 3, H, W] from 0 to 255, by the way any image comes to the model."""
    prepare = Preparation(run.model.card, resize=False)
    if images is not None:
        pixels = [prepare.pixels(path, path) for path, _ in zip(find_images(images), range(CHECKED), strict=False)]
    else:
        try:
            table = questions(run).table
        except LongtailError as error:
            raise LongtailError(f"an export is checked on real images: name some with --images ({error})") from None
        rows = table.rows("test" if len(table.rows("test")) else "val")
        spread = rows[np.linspace(0, len(rows) - 1, min(CHECKED, len(rows))).astype(int)]
        pixels = [prepare.pixels(table.images.decode(int(row)), table.images.name(int(row))) for row in spread]
    if not pixels:
        raise BadImage("an export is checked on real images, and there are none: name some with --images")
    return torch.stack(pixels).float()


@torch.no_grad()
def _compare(deployed: Deployed, reread: Answer, pictures: Tensor) -> Parity:
    """All at once, one alone, and under the training prior."""
    zeros = torch.zeros(len(deployed.model.classes))
    train = torch.tensor(_finite(log_prior(deployed.model.card["counts"])))
    largest, same = 0.0, []
    for images, prior in ((pictures, zeros), (pictures[:1], zeros), (pictures, train)):
        ours, theirs = deployed(images, prior).numpy(), reread(images.numpy(), prior.numpy())
        largest = max(largest, float(np.abs(ours - theirs).max()))
        same.append(ours.argmax(1) == theirs.argmax(1))
    parity = Parity(len(pictures), largest, float(np.concatenate(same).mean()), TOLERANCE)
    if not largest <= TOLERANCE:  # also where it is not a number
        raise LongtailError(
            f"the exported file answers {largest:.3g} away from the model on {len(pictures)} real images "
            f"(at most {TOLERANCE:g} is allowed), so it was not kept: try another --format"
        )
    return parity
