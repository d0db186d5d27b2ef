"""GML inside Lightning: the objective is a plain module, so a LightningModule holds it like any other loss.

python examples/lightning_module.py          (needs `pip install lightning`)
"""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from longtail.data import benchmarks
from longtail.data.loader import pixel_tensor
from longtail.methods import gml

TARGET, EPOCHS = 0.86, 40


class Student(lightning.LightningModule):
    """Keys come from a slowly moving copy of the network, so no teacher has to be trained first."""

    def __init__(self, counts) -> None:
        super().__init__()
        self.network, self.slow = network(), network().requires_grad_(False)
        self.slow.load_state_dict(self.network.state_dict())
        self.objective = gml(counts, dim=64, k=128)  # bank included: Lightning's checkpoints carry it

    def training_step(self, batch, _):
        x, y, ids = batch
        keys = self.slow(shifted(x))
        losses = self.objective(self.network(shifted(x)), y, ids, query=self.network(shifted(x)), keys=keys)
        self.log_dict(losses.parts)
        return losses.per_sample.mean()

    def on_train_batch_end(self, outputs, batch, batch_idx) -> None:
        for slow, fast in zip(self.slow.parameters(), self.network.parameters(), strict=True):
            slow.data.lerp_(fast.data, 0.05)

    def test_step(self, batch, batch_index):
        x, y, _ = batch
        answers = self.objective.scores(self.network(x)).argmax(1)
        self.log("accuracy", (answers == y).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        optimiser = torch.optim.AdamW(self.parameters(), lr=3e-3)
        return [optimiser], [torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, EPOCHS)]


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(256, 64), nn.ReLU(),
    )  # fmt: skip


def shifted(x: torch.Tensor) -> torch.Tensor:
    down, right = torch.randint(-2, 3, (2,)).tolist()
    return x.roll((down, right), dims=(2, 3))


def loader(table, split: str) -> DataLoader:
    """Samples carry their row number: it tells the loss which bank entries come from the same image."""
    rows = table.rows(split)
    images = pixel_tensor(table)[rows, :1].float() / 255
    data = TensorDataset(images, torch.from_numpy(table.labels[rows]).long(), torch.from_numpy(rows))
    return DataLoader(data, batch_size=32, shuffle=split == "train")


def main() -> None:
    lightning.seed_everything(0, verbose=False)
    table = benchmarks.load("digits-lt", imbalance=50)
    trainer = lightning.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    student = Student(table.counts())
    trainer.fit(student, loader(table, "train"))
    accuracy = trainer.test(student, loader(table, "test"), verbose=False)[0]["accuracy"]
    print(f"balanced accuracy {accuracy:.3f}")
    assert accuracy > TARGET, f"{accuracy:.3f} is below {TARGET}"


if __name__ == "__main__":
    main()
