"""GML in a training loop of your own: nothing of the engine, only features, labels and ids.

    python examples/bare_loop.py

Half a minute: a teacher, then a student, on scikit-learn's digits with a long tail.
"""

import torch
from torch import nn

from longtail.data import benchmarks
from longtail.data.loader import pixel_tensor
from longtail.methods import gml, logit_adjusted
from longtail.methods.classifier import Classifier
from longtail.methods.gml import GML

TARGET = 0.86  # balanced accuracy that this example must reach

torch.manual_seed(0)
table = benchmarks.load("digits-lt", imbalance=50)
images = pixel_tensor(table)[:, :1].float() / 255
labels = torch.from_numpy(table.labels).long()
train, test = torch.from_numpy(table.rows("train")), torch.from_numpy(table.rows("test"))
counts = table.counts()  # how many training images each class has: the prior comes from here, and only from here


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(256, 64), nn.ReLU(),
    )  # fmt: skip


def shifted(x: torch.Tensor) -> torch.Tensor:
    """Your augmentation goes here; the two views of an image should differ."""
    down, right = torch.randint(-2, 3, (2,)).tolist()
    return x.roll((down, right), dims=(2, 3))


def fit(model: nn.Module, objective: nn.Module, teacher: nn.Module | None = None, epochs: int = 40) -> None:
    optimiser = torch.optim.AdamW([*model.parameters(), *objective.parameters()], lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    for _ in range(epochs):
        for ids in train[torch.randperm(len(train))].split(32):
            x, y = images[ids], labels[ids]
            if teacher is None:
                losses = objective(model(shifted(x)), y, ids)
            else:
                with torch.no_grad():
                    keys = teacher(shifted(x))
                # Class view, query view, and the teacher's features of the key view, which enter the class-wise bank.
                losses = objective(model(shifted(x)), y, ids, query=model(shifted(x)), keys=keys)
            optimiser.zero_grad()
            losses.per_sample.mean().backward()
            optimiser.step()
        schedule.step()


def balanced_accuracy(model: nn.Module, objective: Classifier | GML) -> float:
    model.eval()
    with torch.no_grad():
        answers = objective.scores(model(images[test])).argmax(1)  # prior-free: right for a balanced test
    return torch.stack([(answers == labels[test])[labels[test] == c].float().mean() for c in range(10)]).mean().item()


teacher, teacher_loss = network(), logit_adjusted(counts, dim=64)
fit(teacher, teacher_loss)
print(f"teacher  {balanced_accuracy(teacher, teacher_loss):.3f}")

student, student_loss = network(), gml(counts, dim=64, k=128)
fit(student, student_loss, teacher)
accuracy = balanced_accuracy(student, student_loss)
print(f"student  {accuracy:.3f}")
assert accuracy > TARGET, f"{accuracy:.3f} is below {TARGET}"
