"""Networks have the stride and width they say, and the backbone's own weights under its own names."""

import pytest
import timm
import torch
from torchvision import models

from longtail.errors import LongtailError
from longtail.segmentation import networks


@pytest.mark.parametrize("architecture", list(networks.HEADS))
@pytest.mark.parametrize(("name", "stride"), [("resnet18", 8), ("resnet18", 16), ("torchvision:resnet18", 32)])
def test_features(name, architecture, stride):
    network = networks.build(name, architecture, output_stride=stride)
    images = torch.randn(2, 3, 50, 70)
    features = network(images)
    assert features.shape[1] == network.dim + network.auxiliary_dim  # in training the auxiliary head's follow
    plain = network.eval()(images)
    assert plain.shape[1] == network.dim
    fine = 4 if architecture == "deeplabv3plus" else stride
    assert plain.shape[2:] == (-(-50 // fine), -(-70 // fine))


def test_dilation_keeps_the_backbones_weights_and_stem():
    name = "test_resnet" if timm.is_model("test_resnet") else "resnet10t"
    reference = timm.create_model(name, features_only=True, output_stride=8)
    encoder = networks.TimmEncoder(name, 8, pretrained=False)
    encoder.model.load_state_dict(reference.state_dict())
    images = torch.randn(1, 3, 64, 64)
    for a, b in zip(encoder.eval()(images), reference.eval()(images), strict=True):
        assert torch.equal(a, b)
    assert encoder.strides[-2:] == [8, 8]


def test_torchvision_features_are_its_own_segmentation_backbones():
    ours = networks.TorchvisionEncoder("resnet50", 8, pretrained=False).eval()
    theirs = models.segmentation.fcn_resnet50(weights=None, weights_backbone=None).backbone.eval()
    theirs.load_state_dict(ours.model.state_dict())
    images = torch.randn(1, 3, 48, 64)
    assert ours.channels == [256, 512, 1024, 2048]
    assert ours.strides == [4, 8, 8, 8]
    assert torch.equal(ours(images)[-1], theirs(images)["out"])


def test_no_auxiliary_head():
    network = networks.build("resnet18", auxiliary=False)
    assert network.auxiliary_dim is None
    assert network(torch.randn(2, 3, 32, 32)).shape[1] == network.dim


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "resnet19"}, "no model named 'resnet19'; did you mean"),
        ({"name": "torchvision:resnet19"}, "torchvision has no ResNet named 'resnet19'; did you mean"),
        ({"name": "torchvision:resnet18"}, "has no dilation: say --set pixels.output_stride=32"),
        ({"name": "vit_tiny_patch16_224"}, "no feature maps of stride 8"),
        ({"name": "resnet18", "architecture": "fnc"}, "no architecture 'fnc'; did you mean 'fcn'"),
        ({"name": "resnet18", "output_stride": 4}, "output_stride is one of 8, 16, 32, not 4"),
    ],
)
def test_what_cannot_be_built(arguments, message):
    with pytest.raises(LongtailError, match=message):
        networks.build(**arguments)
