"""A backbone that keeps its resolution, and a head: images -> a feature for every few pixels.

The classifier is not here: it is a likelihood, applied to each feature. FCN (Long et al., 2015) and DeepLabV3+ (Chen et
al., 2018) have the widths of mmsegmentation's ResNet configurations, as shares of the backbone's: 512 and 256 channels
over a ResNet-50.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail.errors import LongtailError
from longtail.recipe import nearest

STRIDES = (8, 16, 32)


class TimmEncoder(nn.Module):
    """Any timm model with stages: images -> feature maps, finest first. Weights keep timm's names under `model.`."""

    def __init__(self, name: str, output_stride: int, pretrained: bool) -> None:
        super().__init__()
        import timm

        if not timm.is_model(name.split(".")[0]):
            raise LongtailError(f"there is no model named {name!r}{nearest(name, timm.list_models())}")
        stride: dict[str, Any] = {} if output_stride == 32 else {"output_stride": output_stride}
        try:
            self.model = timm.create_model(name, features_only=True, pretrained=pretrained, **stride)
        except (AttributeError, NotImplementedError, TypeError, AssertionError) as error:
            raise LongtailError(
                f"{name!r} has no feature maps of stride {output_stride} ({error}): take a ResNet, or another stride"
            ) from None
        except (OSError, RuntimeError) as error:
            if not pretrained:
                raise
            raise LongtailError(
                f"the pretrained weights of {name!r} cannot be fetched ({type(error).__name__}); "
                "say --from-scratch, or give a file with --set weights=FILE"
            ) from None
        info = self.model.feature_info  # type: ignore[union-attr]
        self.channels, self.strides = list(info.channels()), list(info.reduction())  # type: ignore[operator, union-attr]

    def forward(self, images: Tensor) -> list[Tensor]:
        return self.model(images)


class TorchvisionEncoder(nn.Module):
    """`torchvision:resnet50` and the like."""

    def __init__(self, name: str, output_stride: int, pretrained: bool) -> None:
        super().__init__()
        from torchvision import models

        if name not in models.list_models(include="*resne*t*"):
            known = models.list_models(include="*resne*t*")
            raise LongtailError(f"torchvision has no ResNet named {name!r}{nearest(name, known)}")
        dilated = [False, output_stride < 32, output_stride < 16]
        try:
            model = models.get_model(
                name, weights="DEFAULT" if pretrained else None, replace_stride_with_dilation=dilated
            )
        except NotImplementedError:
            raise LongtailError(f"torchvision's {name} has no dilation: say --set pixels.output_stride=32") from None
        del model.avgpool, model.fc
        self.model = model
        self.strides = [4, 8, *(min(stride, output_stride) for stride in (16, 32))]
        first_blocks = [layer[0] for layer in self._layers()]
        self.channels = [block.downsample[0].out_channels if block.downsample else 64 for block in first_blocks]

    def _layers(self) -> list[Any]:
        return [getattr(self.model, f"layer{i}") for i in (1, 2, 3, 4)]

    def forward(self, images: Tensor) -> list[Tensor]:
        model: Any = self.model
        x = model.maxpool(F.relu(model.bn1(model.conv1(images))))
        maps = []
        for layer in self._layers():
            x = layer(x)
            maps.append(x)
        return maps


class FCN(nn.Module):
    """Two 3 x 3 convolutions, and a third over their result beside the input."""

    def __init__(self, channels: list[int], strides: list[int]) -> None:
        super().__init__()
        self.dim = channels[-1] // 4
        self.convs = nn.Sequential(conv_norm_relu(channels[-1], self.dim), conv_norm_relu(self.dim, self.dim))
        self.join = conv_norm_relu(channels[-1] + self.dim, self.dim)

    def forward(self, maps: list[Tensor]) -> Tensor:
        return self.join(torch.cat([maps[-1], self.convs(maps[-1])], 1))


class DeepLabV3Plus(nn.Module):
    """Convolutions of several dilations side by side, then the detail of a map of stride 4."""

    def __init__(self, channels: list[int], strides: list[int]) -> None:
        super().__init__()
        from torchvision.models.segmentation.deeplabv3 import ASPP

        self.dim = max(channels[-1] // 8, 64)
        self.fine = next(i for i, stride in enumerate(strides) if stride >= 4)
        rates = [rate * 8 // strides[-1] for rate in (12, 24, 36)]
        self.pyramid = ASPP(channels[-1], rates, self.dim)
        self.detail = conv_norm_relu(channels[self.fine], 48, 1)
        self.join = nn.Sequential(conv_norm_relu(self.dim + 48, self.dim), conv_norm_relu(self.dim, self.dim))

    def forward(self, maps: list[Tensor]) -> Tensor:
        detail = self.detail(maps[self.fine])
        return self.join(torch.cat([resize(self.pyramid(maps[-1]), detail.shape[2:]), detail], 1))


HEADS: dict[str, Callable[[list[int], list[int]], nn.Module]] = {"fcn": FCN, "deeplabv3plus": DeepLabV3Plus}


class PixelNetwork(nn.Module):
    """images [B, 3, H, W] -> features [B, dim, h, w].

    The auxiliary head is one convolution on the last map but one. It helps the deep layers learn and answers nothing.
    """

    def __init__(
        self, encoder: nn.Module, architecture: str = "fcn", *, auxiliary: bool = True, dropout: float = 0.1
    ) -> None:
        super().__init__()
        if architecture not in HEADS:
            raise LongtailError(f"there is no architecture {architecture!r}{nearest(architecture, HEADS)}")
        channels: list[int] = encoder.channels  # type: ignore[assignment]
        self.encoder = encoder
        self.head = HEADS[architecture](channels, encoder.strides)  # type: ignore[arg-type]
        self.dropout = nn.Dropout2d(dropout)
        self.dim: int = self.head.dim  # type: ignore[assignment]
        self.auxiliary_dim = channels[-2] // 4 if auxiliary else None
        self.auxiliary = conv_norm_relu(channels[-2], channels[-2] // 4) if auxiliary else None

    def forward(self, images: Tensor) -> Tensor:
        """[B, dim, h, w]; in training the auxiliary head's channels follow, at the same resolution."""
        maps = self.encoder(images)
        features = self.head(maps)
        if self.training and self.auxiliary is not None:
            features = torch.cat([features, resize(self.auxiliary(maps[-2]), features.shape[2:])], 1)
        return self.dropout(features)


def build(
    name: str,
    architecture: str = "fcn",
    *,
    output_stride: int = 8,
    auxiliary: bool = True,
    pretrained: bool = False,
) -> PixelNetwork:
    """A network by the name of its backbone: a timm name, or `torchvision:` and a ResNet's."""
    if output_stride not in STRIDES:
        raise LongtailError(f"output_stride is one of {', '.join(map(str, STRIDES))}, not {output_stride}")
    library, colon, rest = name.partition(":")
    if colon and library == "torchvision":
        encoder: nn.Module = TorchvisionEncoder(rest, output_stride, pretrained)
    else:
        encoder = TimmEncoder(name, output_stride, pretrained)
    network = PixelNetwork(encoder, architecture, auxiliary=auxiliary)
    for part in (network.head, network.auxiliary):
        for module in part.modules() if part is not None else ():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network


def conv_norm_relu(width_in: int, width: int, size: int = 3) -> nn.Sequential:
    conv = nn.Conv2d(width_in, width, size, padding=size // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(width), nn.ReLU(inplace=True))


def resize(maps: Tensor, size: torch.Size | tuple[int, ...]) -> Tensor:
    """Bilinear, [B, D, h, w] -> [B, D, H, W]."""
    return F.interpolate(maps, tuple(size), mode="bilinear", align_corners=False)
