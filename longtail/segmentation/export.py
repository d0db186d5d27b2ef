"""A segmentation for elsewhere, as one ONNX file, checked against this model on real images.

    images     float32 [B, 3, H, W], RGB from 0 to 255, of any size; it normalises by itself
    log_prior  float32 [C], of wherever the answer is used; may be left out, which is zeros, the uniform prior
    scores     float32 [B, C, H, W], log-likelihood + log prior: the largest is the answer

Classes, palette, training counts and what images are to be scaled to are in its metadata under `longtail`.
"""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from longtail.errors import LongtailError
from longtail.segmentation.answers import Run
from longtail.segmentation.augment import Whole
from longtail.segmentation.model import PixelModel
from longtail.segmentation.stages import tested

TOLERANCE = 1e-3  # of a score, absolute: scores span tens
CHECKED = 3  # real images


class Deployed(nn.Module):
    """The model with its normalisation in front and a prior behind."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: PixelModel) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", 255 * torch.tensor(model.card["mean"]).view(3, 1, 1))
        self.register_buffer("std", 255 * torch.tensor(model.card["std"]).view(3, 1, 1))

    def forward(self, images: Tensor, log_prior: Tensor) -> Tensor:
        return self.model((images - self.mean) / self.std) + log_prior[:, None, None]


def export_onnx(run: Run, out: Path | None = None) -> tuple[Path, float]:
    """Write the file; how far its scores are from ours on test images. Too far is an error and leaves none."""
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  (torch's exporter needs it)
    except ImportError:
        raise LongtailError("an ONNX export needs three more packages: pip install 'longtail[export]'") from None
    if run.model.pixels.inference == "slide":
        raise LongtailError("sliding windows cannot be exported: train with --set pixels.inference=whole")
    out = out or run.folder / "model-export.onnx"
    deployed = Deployed(run.model).to(memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload]
    zeros, pictures = torch.zeros(len(run.model.classes)), _real_images(run)
    batch, height, width = (torch.export.Dim(name, min=least) for name, least in _AT_LEAST.items())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            deployed,
            (torch.cat([pictures[0], pictures[0]]), zeros),
            input_names=["images", "log_prior"],
            output_names=["scores"],
            dynamic_shapes={"images": {0: batch, 2: height, 3: width}, "log_prior": None},
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    assert program is not None
    written = program.model_proto
    # An input with an initialiser of the same name is one that may be left out.
    written.graph.initializer.append(onnx.numpy_helper.from_array(zeros.numpy(), "log_prior"))
    about = {key: run.model.card[key] for key in ("classes", "palette", "counts", "method", "model")}
    about["short_side"] = run.model.pixels.short_side
    onnx.helper.set_model_props(written, {"longtail": json.dumps(about)})
    temporary = out.with_name(out.name + ".partial")
    try:
        onnx.save(written, str(temporary))
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # it warns of the input that may be left out, which is meant
        session = onnxruntime.InferenceSession(str(temporary), options, providers=["CPUExecutionProvider"])
        difference = _largest_difference(deployed, session, pictures)
        os.replace(temporary, out)
    except OSError as error:
        raise LongtailError(f"cannot write {out} ({error.strerror}): choose another --out") from error
    finally:
        temporary.unlink(missing_ok=True)
    return out, difference


_AT_LEAST = {"batch": 1, "height": 32, "width": 32}


def _real_images(run: Run) -> list[Tensor]:
    rows = run.table.rows(tested(run.table))
    whole = Whole(run.model.pixels.short_side)
    images = [whole.scale(run.table.images.decode(int(row))) for row in rows[:CHECKED]]
    return [torch.tensor(image).permute(2, 0, 1)[None].float() for image in images]


@torch.no_grad()
def _largest_difference(deployed: Deployed, session, pictures: list[Tensor]) -> float:
    """Also on a part of an image, for another size, and under a prior."""
    found, prior = [], torch.linspace(-3, 0, len(deployed.model.classes))
    for images in (*pictures, pictures[0][..., : pictures[0].shape[2] // 2 + 3, :]):
        for added in ({}, {"log_prior": prior.numpy()}):
            ours = deployed(images, prior if added else torch.zeros_like(prior)).numpy()
            theirs = np.asarray(session.run(["scores"], {"images": images.numpy()} | added)[0])
            known = np.isfinite(ours)  # a class that was never seen is at minus infinity
            found.append(np.abs(theirs[known] - ours[known]).max())
    largest = float(np.max(found))  # not a number, if one is not
    if not largest <= TOLERANCE:
        raise LongtailError(
            f"the exported file answers {largest:.3g} away from the model on real images "
            f"(at most {TOLERANCE:g} is allowed), so it was not kept"
        )
    return largest
