"""A segmentation as one ONNX file: images of any size in, log-likelihoods of every pixel out.

images      [B, 3, H, W] float32, (pixel / 255 - mean) / std as the file's metadata says
log_prior   [C] float32, of wherever the answer is used; zeros are the uniform prior
scores      [B, C, H, W] float32, log-likelihood + log prior: the largest is the answer
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from longtail.errors import LongtailError
from longtail.segmentation.model import PixelModel

TOLERANCE = 1e-3  # of a score, against this library on the same image


class _Asked(nn.Module):
    def __init__(self, model: PixelModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, log_prior: Tensor) -> Tensor:
        return self.model(images) + log_prior[:, None, None]


def export_onnx(model: PixelModel, path: Path, image: Tensor) -> float:
    """Write the file and return how far its scores are from ours on `image` [1, 3, H, W]; an error if too far."""
    try:
        import onnx
        import onnxruntime
    except ImportError:
        raise LongtailError(
            "the export to ONNX needs three more packages: pip install onnx onnxscript onnxruntime"
        ) from None
    if model.pixels.inference == "slide":
        raise LongtailError("sliding windows cannot be exported: export the network of a whole-image recipe")
    asked, prior = _Asked(model).eval(), torch.zeros(len(model.classes))
    batch, height, width = (torch.export.Dim(name, min=1) for name in ("batch", "height", "width"))
    program = torch.onnx.export(
        asked,
        (torch.cat([image, image]), prior),
        input_names=["images", "log_prior"],
        output_names=["scores"],
        dynamic_shapes={"images": {0: batch, 2: height, 3: width}, "log_prior": None},
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    program.save(str(path))
    stored = onnx.load(str(path))
    about = {key: model.card[key] for key in ("classes", "palette", "mean", "std", "counts")}
    onnx.helper.set_model_props(stored, {key: json.dumps(value) for key, value in about.items()})
    onnx.save(stored, str(path))

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    theirs = session.run(None, {"images": image.numpy(), "log_prior": prior.numpy()})[0]
    with torch.no_grad():
        ours = asked(image, prior).numpy()
    difference = float(np.abs(np.asarray(theirs) - ours)[np.isfinite(ours)].max())
    if difference > TOLERANCE:
        path.unlink()
        raise LongtailError(f"the ONNX file answers {difference:.2g} away from the model, and was removed")
    return difference
