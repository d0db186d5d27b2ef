"""Semantic segmentation: the same template, pixels as samples.

    masks.py     a mask file -> class indices          table.py    images and masks as columns
    sources.py   CamVid, ADE20K, your own folders      augment.py  scale, crop, flip, colours
    loader.py    a stream of batches                   networks.py backbone and head -> features of every pixel
    sampling.py  which pixels are queries and keys     objective.py  the losses
    infer.py     whole images or windows               metrics.py  IoU and accuracy from one matrix
    stages.py    a recipe becomes a run folder         recipes.py  settings, the paper's among them
    answers.py   a run, asked under a prior            report.py   figures and the alpha sweep
    predict.py   coloured masks                        export.py   ONNX

Losses and networks know no engine: they can be lifted out, as `examples/segmentation_camvid.py` does.
"""

import json
from pathlib import Path


def is_segmentation(run: Path) -> bool:
    """Whether a folder holds a trained segmentation; without loading anything."""
    try:
        return json.loads((run / "model.json").read_text()).get("task") == "segmentation"
    except (OSError, ValueError, AttributeError):
        return False  # whoever opens it will say what it is
