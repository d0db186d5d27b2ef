"""Scores of another library's model, answered for a balanced test without training anything.

    python examples/adjust_logits.py

A second: scikit-learn's logistic regression on its digits with a long tail, and the file of scores that
`longtail adjust` takes too.
"""

from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression

from longtail.data import benchmarks
from longtail.data.loader import pixel_tensor
from longtail.measure import logits

TARGET = 0.05  # balanced accuracy that taking the training prior out must add

table = benchmarks.load("digits-lt", imbalance=50)
pixels = pixel_tensor(table)[:, 0].flatten(1).numpy() / 255
train, test = table.rows("train"), table.rows("test")
model = LogisticRegression(max_iter=1000).fit(pixels[train], table.labels[train])


def balanced_accuracy(scores: np.ndarray) -> float:
    right = scores.argmax(1) == table.labels[test]
    return float(np.mean([right[table.labels[test] == c].mean() for c in range(table.num_classes)]))


# Scores before the softmax, and what nobody can read off them: which prior they carry. Cross-entropy on the images as
# they come leaves the training mix in the scores, so "train".
folder = Path("runs/adjust_logits")
folder.mkdir(parents=True, exist_ok=True)
np.savez(
    folder / "scores.npz",
    scores=model.decision_function(pixels[test]),
    labels=table.labels[test].astype(np.int64),
    classes=table.classes,
    counts=table.counts(),
    prior="train",
)
before = logits.load(folder / "scores.npz")
after = logits.adjust(before, prior=np.full(table.num_classes, 1 / table.num_classes))
logits.save(folder / "adjusted.npz", after)

print(f"as they came         {balanced_accuracy(before.scores):.3f}")
print(f"training prior out   {balanced_accuracy(after.scores):.3f}   ({after.adjusted})")
gain = balanced_accuracy(after.scores) - balanced_accuracy(before.scores)
assert gain > TARGET, f"a gain of {gain:.3f} is below {TARGET}"

try:
    logits.adjust(logits.load(folder / "adjusted.npz"), prior=np.full(table.num_classes, 1 / table.num_classes))
except ValueError as error:
    print(f"a second time        {error}")
else:
    raise AssertionError("scores were adjusted twice")
