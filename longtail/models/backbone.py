"""A backbone is any `nn.Module` from images to features [B, D] that says its width: `backbone.dim`."""

from __future__ import annotations

import difflib
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from longtail.errors import LongtailError
from longtail.models.resnet_cifar import DEPTHS, CifarResNet
from longtail.offline import hub

SMALL = ("small", "small_no_norm")
STEM = "_cifar"
CIFAR_RESNETS = {f"resnet{depth}": depth for depth in DEPTHS}  # timm has none of these depths, so the names are free


class SmallConvNet(nn.Module):
    """Three convolutions for the demo and for tests: [B, 3, H, W] -> [B, dim], trains in seconds on one core.

    `norm=False` leaves out BatchNorm, so that one batch split over two processes gives the very same numbers.
    """

    def __init__(self, width: int = 32, norm: bool = True) -> None:
        super().__init__()
        self.dim = 2 * width
        layers: list[nn.Module] = []
        for width_in, width_out in ((3, width), (width, 2 * width), (2 * width, self.dim)):
            layers += [nn.Conv2d(width_in, width_out, 3, padding=1, bias=not norm)]
            layers += [nn.BatchNorm2d(width_out)] if norm else []
            layers += [nn.ReLU(), nn.MaxPool2d(2)]
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images).mean(dim=(2, 3))


class TimmBackbone(nn.Module):
    """A timm model without its classifier; its weights keep timm's own names under `model.`.

    A ResNet's name with `_cifar` behind it has the stem that SupCon gives it for 32 x 32 images: a 3 x 3 convolution of
    stride 1 and no pooling.
    """

    def __init__(self, name: str, pretrained: bool = False, zero_init: bool = True) -> None:
        super().__init__()
        import timm

        options: dict[str, Any] = {} if zero_init else {"zero_init_last": False}
        self.model = timm.create_model(name.removesuffix(STEM), pretrained=pretrained, num_classes=0, **options)
        if name.endswith(STEM):
            wide: nn.Conv2d = self.model.conv1  # type: ignore[assignment]
            self.model.conv1 = nn.Conv2d(3, wide.out_channels, 3, padding=1, bias=False)
            nn.init.kaiming_normal_(self.model.conv1.weight, mode="fan_out", nonlinearity="relu")
            self.model.maxpool = nn.Identity()
        self.dim = int(self.model.num_features)  # type: ignore[arg-type]
        self.pretrained_cfg = dict(self.model.pretrained_cfg)  # type: ignore[call-overload]

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images)


class Wrapped(nn.Module):
    """Somebody's own module [B, 3, H, W] -> [B, D], its width measured once on a blank image."""

    def __init__(self, module: nn.Module, image_size: int = 32) -> None:
        super().__init__()
        self.module = module
        training = module.training
        with torch.no_grad():
            features = module.eval()(torch.zeros(1, 3, image_size, image_size))
        module.train(training)
        if not isinstance(features, Tensor) or features.ndim != 2:
            shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise LongtailError(f"a backbone must return features [B, D], {type(module).__name__} returned {shape}")
        self.dim = features.shape[1]

    def forward(self, images: Tensor) -> Tensor:
        return self.module(images)


def is_timm(name: str) -> bool:
    return name not in CIFAR_RESNETS and name not in SMALL and not is_clip(name)


def is_clip(name: str) -> bool:
    return name.startswith("clip:")


def files_of(name: str) -> list[Path]:
    """What a model's name says lies on this machine, where it says so: a CLIP's folder, or its weights' file."""
    if not is_clip(name):
        return []
    from longtail.vision_language.clip import Name

    parsed = Name.parse(name)
    place = parsed.folder or Path(parsed.weights)
    return sorted(path for path in (place.iterdir() if place.is_dir() else [place]) if path.is_file())


def check_name(name: str) -> None:
    """An unknown model is answered with the nearest known one."""
    if is_clip(name):
        from longtail.vision_language.clip import Name

        Name.parse(name)
    if not is_timm(name) or ":" in name:
        return
    import timm

    if not timm.is_model(name.split(".")[0].removesuffix(STEM)):
        near = difflib.get_close_matches(name, [*SMALL, *CIFAR_RESNETS, *timm.list_models()], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "; `longtail list models` shows them"
        raise LongtailError(f"there is no model named {name!r}{hint}")


def build(name: str, *, pretrained: bool = False, zero_init: bool = True) -> nn.Module:
    """By name: `small`, a CIFAR ResNet (`resnet20` ... `resnet110`), any timm name, or a CLIP's behind `clip:`."""
    check_name(name)
    if is_clip(name):
        from longtail.vision_language.clip import ImageTower

        return ImageTower(name, pretrained=pretrained)
    if pretrained and (not is_timm(name) or name.endswith(STEM)):
        raise LongtailError(
            f"there are no pretrained weights for {name}: leave pretrained off, which is --from-scratch"
        )
    if name in SMALL:
        return SmallConvNet(norm=name == "small")
    if name in CIFAR_RESNETS:
        return CifarResNet(CIFAR_RESNETS[name])
    try:
        with hub() if pretrained else nullcontext():
            return TimmBackbone(name, pretrained, zero_init)
    except TypeError:
        if zero_init:
            raise
        raise LongtailError(f"{name} has no residual blocks that could begin otherwise: leave zero_init on") from None
    except (OSError, RuntimeError) as error:
        if not pretrained:
            raise
        raise LongtailError(
            f"the pretrained weights of {name!r} are not here and cannot be fetched ({type(error).__name__}): "
            "say --from-scratch, or give a file with --weights"
        ) from None


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
