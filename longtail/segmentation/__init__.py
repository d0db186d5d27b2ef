"""Semantic segmentation: the same template, pixels as samples.

    masks.py     a mask file -> class indices          table.py    images and masks as columns
    sources.py   CamVid, ADE20K, your own folders      augment.py  scale, crop, flip, colours
    loader.py    a stream of batches                   networks.py backbone and head -> features of every pixel
    sampling.py  which pixels are queries and keys     method.py   the losses
    infer.py     whole images or windows               metrics.py  IoU and accuracy from one matrix
    stages.py    a recipe becomes a run folder         recipes.py  settings, the paper's among them
    report.py    figures and the alpha sweep           predict.py  coloured masks   export.py  ONNX

Losses and networks know no engine: they can be lifted out, as `examples/segmentation_camvid.py` does.
"""
