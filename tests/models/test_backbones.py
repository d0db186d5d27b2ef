"""The CIFAR ResNets are the right ones, and a backbone can be anybody's."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from longtail.data.decode import decode
from longtail.errors import LongtailError
from longtail.models.backbone import CIFAR_RESNETS, Wrapped, build, count_parameters
from longtail.models.heads import Projection, batch_norm_of_rows


@pytest.mark.parametrize(("name", "millions"), [("resnet20", 0.276), ("resnet32", 0.470), ("resnet56", 0.86)])
def test_parameters_with_a_hundred_way_head(name, millions):
    backbone = build(name)
    assert (count_parameters(backbone) + 64 * 100 + 100) / 1e6 == pytest.approx(millions, abs=0.004)


@pytest.mark.parametrize("name", CIFAR_RESNETS)
def test_every_depth_gives_64_features(name):
    assert build(name).eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 64)


@pytest.mark.parametrize(("name", "error"), [("resnet20", 8.27), ("resnet32", 7.37)])
def test_published_weights_err_as_published(name, error, shared_data):
    """Weights trained elsewhere with the same architecture: any difference in a layer or shortcut would show."""
    weights = load_file(shared_data / "weights" / f"cifar10_{name}.safetensors")
    head = nn.Linear(64, 10)
    head.load_state_dict({"weight": weights.pop("linear.weight"), "bias": weights.pop("linear.bias")})
    backbone = build(name)
    backbone.load_state_dict(weights, strict=False)
    backbone.eval().to(memory_format=torch.channels_last)
    table = pq.read_table(shared_data / "cifar10" / "test-00000-of-00001.parquet")
    pixels = np.stack([decode(row["bytes"], "image") for row in table["img"].to_pylist()])
    labels = torch.tensor(table["label"].to_pylist())
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    images = ((images - mean[:, None, None]) / std[:, None, None]).contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        answers = torch.cat([head(backbone(part)).argmax(1) for part in images.split(1000)])
    assert 100 * (answers != labels).float().mean().item() == pytest.approx(error, abs=0.02)


def test_any_timm_model_and_any_module():
    backbone = build("test_resnet")
    assert backbone(torch.zeros(2, 3, 64, 64)).shape == (2, backbone.dim)
    mine = Wrapped(nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5)), image_size=8)
    assert mine.dim == 5
    with pytest.raises(LongtailError, match=r"features \[B, D\]"):
        Wrapped(nn.Conv2d(3, 4, 3), image_size=8)


def test_an_unknown_model_is_answered_with_the_nearest():
    with pytest.raises(LongtailError, match="resnet56"):
        build("resnet_56")


def test_batch_norm_of_rows_is_batch_norm_of_the_real_rows():
    torch.manual_seed(0)
    x, rows = torch.randn(12, 4), torch.arange(12) < 7
    ours, theirs = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    torch.testing.assert_close(batch_norm_of_rows(ours, x, rows)[:7], theirs(x[:7]))
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_projection_of_one_row_is_finite_and_of_unit_length():
    projection = Projection(4, 6, 3).train()
    assert projection(torch.randn(1, 4)).norm(dim=1).item() == pytest.approx(1, abs=1e-5)
