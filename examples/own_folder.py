"""Your own photographs: a folder with one folder a class, and three commands.

    python examples/own_folder.py

The folder is made here, from scikit-learn's digits, so that the example runs anywhere. The commands are those you would
type, without `main([...])` around them. A second time there is nothing left to train: `--resume` shows it again.
"""

from pathlib import Path

from PIL import Image

from longtail.cli import main
from longtail.data import benchmarks
from longtail.measure.per_class import read_csv

TARGET = 0.80  # mean accuracy over the classes that have a test image

# runs/my_images/seven/0012.png and so on: 124 of the most frequent class, 6 of the rarest.
table = benchmarks.load("digits-lt", imbalance=20)
names = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
for row in table.rows("train"):
    folder = Path("runs/my_images", names[table.labels[row]])
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(table.images.decode(row)).save(folder / f"{row:04d}.png")

# A fifth of every class is set aside for the test; the rule for classes of one, two or three images is printed.
train = "train runs/my_images --out runs/own_folder --method logit_adjusted --model small --epochs 40 --augment shift"
assert main([*train.split(), "--resume"]) == 0
# The same model, asked as if every class were equally common.
assert main(["evaluate", "runs/own_folder", "--prior", "uniform"]) == 0

# What was measured of every class, for a spreadsheet or for Python. A class without a test image is not measured.
measured, classes, counts = read_csv("runs/own_folder/per_class.csv")
print("\nclass   training  tested  right")
for c, name in enumerate(classes):
    print(f"{name:8s} {counts[c]:7d} {int(measured.n[c]):7d} {int(measured.correct[c]):6d}")
tested = measured.n > 0
accuracy = (measured.correct[tested] / measured.n[tested]).mean()
print(f"balanced accuracy {accuracy:.3f}")
assert accuracy > TARGET, f"{accuracy:.3f} is below {TARGET}"
