"""timm's ResNets as the paper's experiments need them: torchvision's initialisation, and a stem for small images."""

import pytest
import torch
import torchvision
from torch import nn

from longtail.errors import LongtailError
from longtail.models.backbone import build, count_parameters


def last_norms(module: nn.Module) -> list[nn.Module]:
    return [norm for name, norm in module.named_modules() if name.endswith("bn2")]


def test_residual_blocks_begin_as_the_identity_or_as_torchvision_has_them():
    assert all((norm.weight == 0).all() for norm in last_norms(build("resnet18")))
    ours, theirs = build("resnet18", zero_init=False), torchvision.models.resnet18()
    assert all((norm.weight == 1).all() for norm in last_norms(ours))
    spread = {name: p.std() for name, p in theirs.named_parameters() if p.ndim == 4 and p.numel() > 30_000}
    for name, deviation in spread.items():  # the convolutions' draws are of one distribution
        assert ours.model.get_parameter(name).std().item() == pytest.approx(deviation.item(), rel=0.05)


def test_the_stem_for_small_images_keeps_their_size():
    backbone = build("resnet18_cifar")
    assert backbone.model.conv1(torch.zeros(1, 3, 32, 32)).shape == (1, 64, 32, 32)
    assert backbone(torch.zeros(2, 3, 32, 32)).shape == (2, 512)
    assert count_parameters(backbone) == 11_168_832  # SupCon's ResNet-18 without its heads


def test_what_cannot_be_had_is_refused():
    with pytest.raises(LongtailError, match="no pretrained weights"):
        build("resnet18_cifar", pretrained=True)
    with pytest.raises(LongtailError, match="did you mean 'resnet18'"):
        build("resnet18x_cifar")
    with pytest.raises(LongtailError, match="leave zero_init on"):
        build("test_vit", zero_init=False)
