"""log s(x|c) = w_c . x + b_c: the linear classifier, seen as a likelihood."""

from torch import Tensor, nn


class Linear(nn.Module):
    """[B, D] features -> [B, C]."""

    def __init__(self, dim: int, num_classes: int, bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, num_classes, bias=bias)

    def forward(self, features_bd: Tensor) -> Tensor:
        return self.linear(features_bd)
