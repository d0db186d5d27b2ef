"""The samples in a model's bank that are nearest to an image: what it compares the image with, as a person can see."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from longtail.answers.run import Run
from longtail.contrast.reembed import embedded


class Neighbour(NamedTuple):
    row: int  # of the training table
    class_index: int
    similarity: float  # cosine of the embeddings


@torch.no_grad()
def nearest(run: Run, images: Tensor, number: int = 5) -> list[list[Neighbour]]:
    """For each of the images [B, 3, H, W], as the model takes them, its nearest training images, nearest first."""
    run.check_head("kernel")
    objective: Any = run.model.method.objective
    bank = objective.bank
    with run.device.autocast():
        query_bd = objective.embed_query(run.model.method.backbone(images)).float()
        keys_kd = embedded(objective.embed_key, bank.features, None).float()
    similarity_bk = (query_bd @ keys_kd.T).masked_fill(~bank.filled, -torch.inf)
    best, places = similarity_bk.sort(dim=1, descending=True)
    rows, classes = bank.ids[places], bank.segments.class_of_row[places]
    found = []
    for values, ids, labels in zip(best.tolist(), rows.tolist(), classes.tolist(), strict=True):
        by_row: dict[int, Neighbour] = {}  # a ring holds several views of one image; the nearest stands for it
        for value, row, label in zip(values, ids, labels, strict=True):
            if len(by_row) == number or value == -torch.inf:
                break
            by_row.setdefault(row, Neighbour(row, label, value))
        found.append(list(by_row.values()))
    return found
