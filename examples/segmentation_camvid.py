"""Pixels as samples, in a loop of your own: a teacher, GML against its pixels, and one model under two priors.

    LONGTAIL_DATA=FOLDER python examples/segmentation_camvid.py

FOLDER/camvid holds train, val, test and trainannot, valannot, testannot. Half a minute of one thread, on small crops
and from scratch: the numbers show that it learns, and are no benchmark. The same on the command line is `longtail train
camvid --task segmentation --method gml --from-scratch`.
"""

import sys

import numpy as np
import torch

from longtail.data.loader import Shard
from longtail.errors import LongtailError
from longtail.prior import log_prior
from longtail.segmentation import networks, objective, sources
from longtail.segmentation.augment import Crops, Whole
from longtail.segmentation.loader import PixelLoader, endless
from longtail.segmentation.metrics import Confusion, accuracy, iou

TARGET = 0.30  # mAcc of GML under the uniform prior; one class for every pixel would have 0.09
STEPS, BATCH = 60, 8

try:
    table = sources.load("camvid")
except LongtailError as error:
    print(f"CamVid is not at hand: {error}")
    sys.exit(77)
counts = table.counts()  # of pixels: the prior is the share of the labelled ones
log_p = log_prior(counts)[:, None, None]


def train(method: str, settings: dict, teacher: torch.nn.Module | None = None):
    torch.manual_seed(0)
    network = networks.build("resnet18", "fcn", output_stride=8)
    losses = objective.build(method, counts, network.dim, settings, auxiliary_dim=network.auxiliary_dim)
    parameters = [*network.parameters(), *losses.parameters()]
    optimiser = torch.optim.SGD(parameters, momentum=0.9, weight_decay=5e-4)
    order = endless(table.rows("train"), STEPS * BATCH, seed=0)
    for step, batch in enumerate(PixelLoader(table, order, Shard(BATCH), Crops((64, 96), (0.5, 1.0), None)).epoch(0)):
        optimiser.param_groups[0]["lr"] = 0.02 * (1 - step / STEPS) ** 0.9
        images = batch.views[0]
        with torch.autocast("cpu", torch.bfloat16):
            if teacher is not None:  # its pixels enter the bank before the batch is scored
                with torch.no_grad():
                    losses.enqueue(teacher(images), batch.labels, batch.ids)
            per_image, parts = losses(network(images), batch.labels, batch.ids)
        optimiser.zero_grad()
        per_image.mean().backward()
        optimiser.step()
        if step % 15 == 14:
            print(f"{method} step {step + 1:3d} ", "  ".join(f"{name} {value:.3f}" for name, value in parts.items()))
    return network.eval(), losses


@torch.no_grad()
def measure(network, losses, prior: torch.Tensor | float) -> tuple[float, float]:
    rows, counted = table.rows("val")[::4], Confusion(table.num_classes)
    for batch in PixelLoader(table, lambda epoch: rows, Shard(1), Whole(None)).epoch(0):
        with torch.autocast("cpu", torch.bfloat16):
            loglik = networks.resize(losses.scores(network(batch.views[0])).float(), batch.labels.shape[1:])
        counted.update((loglik + prior).argmax(1), batch.labels)
    matrix = counted.matrix()
    return float(np.nanmean(iou(matrix))), float(np.nanmean(accuracy(matrix)))


teacher, _ = train("logit_adjusted", {"tau_s": 0.05})
student = train("gml", {"tau_s": 0.05, "tau_g": 0.07, "k": 1024, "k_m": 27}, teacher)
# Trained at alpha 1, what the network gives is the likelihood alone; the prior is added where it is used.
for name, prior in (("training", log_p), ("uniform", 0.0)):
    miou, macc = measure(*student, prior)
    print(f"{name:8s} prior: mIoU {miou:.3f}  mAcc {macc:.3f}")
assert macc > TARGET, f"{macc:.3f} is below {TARGET}"
