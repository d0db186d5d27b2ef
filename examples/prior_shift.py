"""One model, three places with three class mixes: each answered under a uniform prior, the training prior and its own.

    python examples/prior_shift.py

Ten seconds, on scikit-learn's digits with a long tail, under noise so that the answer is not obvious. Nothing is
retrained between the places: a prior is one addition.
"""

import numpy as np
import torch
from torch import nn

from longtail.data import benchmarks
from longtail.data.loader import pixel_tensor
from longtail.measure.priors import answers, resample, shifted_prior
from longtail.methods import balanced_softmax
from longtail.prior import prior_free

TARGET = 0.05  # accuracy that knowing the place must add where the tail is the head

torch.manual_seed(0)
table = benchmarks.load("digits-lt", imbalance=10)
images = pixel_tensor(table)[:, :1].float() / 255
labels, counts = torch.from_numpy(table.labels).long(), table.counts()
train, test = torch.from_numpy(table.rows("train")), torch.from_numpy(table.rows("test"))

network = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
)  # fmt: skip
objective = balanced_softmax(counts, dim=256)  # a linear head, trained with log p added
optimiser = torch.optim.AdamW([*network.parameters(), *objective.parameters()], lr=2e-3)


def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + 0.5 * torch.randn_like(x)


for _ in range(40):
    for ids in train[torch.randperm(len(train))].split(32):
        loss = objective(network(noisy(images[ids])), labels[ids]).per_sample.mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

# The model's answer before any prior: log p(image | class), up to a constant an image.
test = test.repeat(10)  # every test image under ten noises
with torch.no_grad():
    scores = objective.scores(network(noisy(images[test])))
loglik = prior_free(scores, objective.log_mass, objective.log_added).numpy()
truth = labels[test].numpy()

priors = {"uniform": np.full(10, 0.1), "training": counts / counts.sum()}
accuracy = {}
print(f"{'answered under':24s} {'uniform':>8s} {'training':>8s} {'its own':>8s}")
for place, ratio in {"as in training": 10, "balanced": 1, "the tail is the head": 1 / 50}.items():
    mix = shifted_prior(counts, ratio)
    here = resample(truth, mix)  # the test images, in that mix
    for name, prior in {**priors, "its own": mix}.items():
        accuracy[place, name] = (answers(loglik[here], prior) == truth[here]).mean()
    print(f"{place:24s} " + " ".join(f"{accuracy[place, name]:8.3f}" for name in (*priors, "its own")))

gain = accuracy["the tail is the head", "its own"] - accuracy["the tail is the head", "uniform"]
assert gain > TARGET, f"a gain of {gain:.3f} is below {TARGET}"
assert all(accuracy[place, "its own"] >= accuracy[place, name] - 0.01 for place, name in accuracy)
