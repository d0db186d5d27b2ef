"""Small trainable parts on a frozen image tower. They begin as nothing, so training starts at the tower as it was.

    adaptformer   beside a block's MLP:  x + MLP(h) + s up(ReLU(down(h))),  h = LN(x)       (Chen et al., NeurIPS 2022)
                  beside a bottleneck's 3 x 3 convolution, by 1 x 1 convolutions, where the tower is a ResNet
    lora          W + A B for the rows of the attention's input projection that make queries and values   (Hu et al.,
                  ICLR 2022; scaled by 1 / rank, as LIFT does)

Neither changes the tower's own weights. LIFT's adapters have a LayerNorm of their own and a learned s that begins at 1;
here they share the block's, as in the AdaptFormer paper, whose fixed s = 0.1 is learned here from 1, as LIFT's.
"""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from longtail.errors import LongtailError

KINDS = ("adaptformer", "lora")


class AdaptFormer(nn.Module):
    """`branch` as it was, plus a narrow bottleneck beside it."""

    def __init__(self, branch: nn.Module, down: nn.Module, up: nn.Module) -> None:
        super().__init__()
        self.branch, self.down, self.up = branch, down, up
        self.scale = nn.Parameter(torch.ones(()))
        nn.init.kaiming_normal_(down.weight, a=math.sqrt(5))  # type: ignore[arg-type]
        for zero in (down.bias, up.weight, up.bias):
            nn.init.zeros_(zero)  # type: ignore[arg-type]

    def forward(self, h: Tensor) -> Tensor:
        return self.branch(h) + self.scale * self.up(F.relu(self.down(h)))


class LoRA(nn.Module):
    """A parametrisation of a weight [P D, D] whose P blocks make queries, keys or values: low rank for `parts`."""

    def __init__(self, width: int, rank: int, parts: tuple[bool, ...]) -> None:
        super().__init__()
        self.parts = parts
        self.down = nn.Parameter(torch.empty(sum(parts), rank, width))
        self.up = nn.Parameter(torch.zeros(sum(parts), width, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        learned = iter(self.up @ self.down / self.down.shape[1])
        still = torch.zeros_like(weight[: self.down.shape[2]])
        return weight + torch.cat([next(learned) if part else still for part in self.parts])


def add_adapters(tower: nn.Module, kind: str, width: int) -> None:
    """Put adapters into every block of a frozen tower, in place."""
    assert kind in KINDS, kind
    assert width > 0, width
    transformers, bottlenecks = list(_transformer_blocks(tower)), list(_bottlenecks(tower))
    if not transformers and (kind == "lora" or not bottlenecks):
        raise LongtailError(
            f"+{kind} needs a vision transformer (a ResNet takes +adaptformer), not {type(tower).__name__}"
        )
    for block in transformers:
        if kind == "lora":
            _add_lora(block.attn, width)  # type: ignore[arg-type]
        else:
            dim = _width(block)
            block.mlp = AdaptFormer(block.mlp, nn.Linear(dim, width), nn.Linear(width, dim))  # type: ignore[arg-type]
    for block in [] if kind == "lora" else bottlenecks:
        planes = block.conv2.in_channels  # type: ignore[union-attr]
        block.conv2 = AdaptFormer(block.conv2, nn.Conv2d(planes, width, 1), nn.Conv2d(width, planes, 1))  # type: ignore[arg-type]


def adapter_width(num_classes: int, layers: int) -> int:
    """LIFT's rule: all adapters together have about as many parameters as the head, in powers of two."""
    return 2 ** max(0, int(math.log2(max(1.0, num_classes / (2 * layers)))))


def _transformer_blocks(tower: nn.Module) -> Iterator[nn.Module]:
    return (m for m in tower.modules() if hasattr(m, "attn") and hasattr(m, "mlp"))


def _bottlenecks(tower: nn.Module) -> Iterator[nn.Module]:
    return (m for m in tower.modules() if hasattr(m, "conv3") and hasattr(m, "downsample"))


def _width(block: nn.Module) -> int:
    """The first linear layer of the MLP says what it takes."""
    return next(m.in_features for m in block.mlp.modules() if isinstance(m, nn.Linear))  # type: ignore[union-attr]


def _add_lora(attention: nn.Module, rank: int) -> None:
    """Queries and values come out of one projection, open_clip's or timm's, or of one each."""
    if hasattr(attention, "in_proj_weight"):
        places = [(attention, "in_proj_weight", (True, False, True))]
    elif getattr(attention, "qkv", None) is not None:
        places = [(attention.qkv, "weight", (True, False, True))]
    else:
        places = [(attention.q_proj, "weight", (True,)), (attention.v_proj, "weight", (True,))]
    for owner, name, parts in places:
        width = getattr(owner, name).shape[1]
        parametrize.register_parametrization(owner, name, LoRA(width, rank, parts))  # type: ignore[arg-type]
