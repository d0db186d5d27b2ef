"""A network of your own under its own name, with everything else as it is: command line, teacher, checkpoints, loading.

    python examples/own_backbone.py

Whatever timm knows can be trained here, so a network that is registered with timm is a `--model`. In a loop of your own
you need none of this: see bare_loop.py.
"""

import json
from pathlib import Path

import timm
from timm.models import register_model
from torch import Tensor, nn

from longtail.cli import main
from longtail.engine.trained import load

TARGET = 0.70  # balanced accuracy that this example must reach


class PatchMixer(nn.Module):
    """An image as 4 x 4 patches, mixed over places, then over channels, twice; the mean of what comes out."""

    def __init__(self, image_size: int = 16, dim: int = 96, num_classes: int = 0) -> None:
        super().__init__()
        assert num_classes == 0, "only features are asked of a backbone"
        self.num_features = dim  # timm's word for the width of the features
        self.pretrained_cfg = {}  # and for where weights would come from
        self.patches = nn.Conv2d(3, dim, 4, stride=4)
        places = (image_size // 4) ** 2
        self.places = nn.ModuleList(self._mlp(places) for _ in range(2))
        self.channels = nn.ModuleList(self._mlp(dim) for _ in range(2))

    @staticmethod
    def _mlp(width: int) -> nn.Module:
        return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, images: Tensor) -> Tensor:  # [B, 3, H, W] -> [B, dim]
        x = self.patches(images).flatten(2)  # [B, dim, places]
        for places, channels in zip(self.places, self.channels, strict=True):
            x = x + places(x)
            x = x + channels(x.transpose(1, 2)).transpose(1, 2)
        return x.mean(dim=2)


@register_model
def patch_mixer(num_classes: int = 0, **_) -> nn.Module:
    return PatchMixer(num_classes=num_classes)


if __name__ == "__main__":
    assert timm.is_model("patch_mixer")
    out = "runs/own_backbone"
    command = "train digits-lt --method logit_adjusted --model patch_mixer --epochs 40 --batch-size 32 --lr 0.003"
    assert main([*command.split(), "--set", "optim.kind=adamw", "--out", out, "--resume"]) == 0
    accuracy = json.loads(Path(out, "result.json").read_text())["summary"]["balanced_accuracy"]
    model = load(out)  # as long as the network is registered, its runs load by name
    print(f"{type(model.method.backbone.model).__name__}: balanced accuracy {accuracy:.3f}")
    assert accuracy > TARGET, f"{accuracy:.3f} is below {TARGET}"
