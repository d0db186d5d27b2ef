"""ResNets for 32 x 32 images (He et al., 2016, section 4.2): three stages of widths 16, 32, 64, depth 6n + 2.

Shortcuts are "option A": where the shape changes, every second pixel is taken and the missing channels are zero, so a
shortcut has no parameters. ResNet-32 with a 100-way head has 0.47 M parameters. Several published "ResNet-32" are other
networks, up to sixteen times wider; compare parameter counts before comparing accuracies.
"""

import torch.nn.functional as F
from torch import Tensor, nn

DEPTHS = (20, 32, 44, 56, 110)


class Block(nn.Module):
    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.stride, self.new_channels = stride, width - width_in

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.stride > 1:
            half = self.new_channels // 2
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, self.new_channels - half))
        return F.relu(y + x)


class CifarResNet(nn.Module):
    """[B, 3, H, W] images -> [B, 64] features."""

    dim = 64

    def __init__(self, depth: int) -> None:
        super().__init__()
        assert depth in DEPTHS, depth
        blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, blocks, stride=1)
        self.layer2 = _stage(16, 32, blocks, stride=2)
        self.layer3 = _stage(32, 64, blocks, stride=2)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(images)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return x.mean(dim=(2, 3))


def _stage(width_in: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    return nn.Sequential(*(Block(width_in if i == 0 else width, width, stride if i == 0 else 1) for i in range(blocks)))
