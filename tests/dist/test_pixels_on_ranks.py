"""Every rank draws keys from its own images, and all have the same bank."""

import torch
from launch import on_ranks
from torch import nn

from longtail.engine import dist
from longtail.methods.method import Method
from longtail.models.teacher import Teacher
from longtail.segmentation import objective as objectives
from longtail.segmentation.objective import PerPixel
from longtail.types import Batch

SHARES = (3, 2)  # images of the ranks
SETTINGS = {"k": 64, "k_m": 4, "tau_s": 0.05, "tau_g": 0.07}


def two_steps() -> tuple[list, list, list, list]:
    torch.manual_seed(0)
    backbone, frozen = nn.Conv2d(3, 6, 4, stride=4), nn.Conv2d(3, 5, 2, stride=2)
    frozen.dim = 5  # type: ignore[assignment]
    losses = objectives.build("gml", [5000, 900, 90], 6, SETTINGS, key_dim=5, queries=7, keys=9)
    method = Method(backbone, losses, Teacher(frozen, PerPixel(nn.Linear(5, 3), 5)))
    method.join(dist.ranks())
    method.exchange = dist.rows_of_all_ranks(SHARES)
    sent = []
    exchange = method.exchange
    method.exchange = lambda *tensors: sent.append([tuple(t.shape) for t in tensors]) or exchange(*tensors)
    torch.manual_seed(10 + dist.rank())  # as the loop has it
    for step in range(2):
        size = SHARES[dist.rank()]
        images, labels = torch.randn(size, 3, 16, 24), torch.randint(-1, 3, (size, 16, 24))
        ids = torch.arange(size) + 10 * dist.rank() + 100 * step
        found = method(Batch((images, images), labels, ids))
        assert found.per_sample.isfinite().all()
        found.per_sample.mean().backward()
    bank = losses.inner.bank
    return bank.features.tolist(), bank.ids.tolist(), bank.filled.tolist(), sent


def test_ranks_pick_their_own_pixels_and_share_them():
    first, second = on_ranks(2, two_steps)
    assert first[:3] == second[:3]  # to the bit
    _, ids, filled, sent = first
    assert {id // 10 % 10 for id, there in zip(ids, filled, strict=True) if there} == {0, 1}  # of both ranks' images
    assert sent[0] == [(3, 9, 5), (3, 9), (3,)]  # nine pixels an image, and no map
