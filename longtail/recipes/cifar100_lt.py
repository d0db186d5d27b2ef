"""Table 3 of the paper: GML on CIFAR-100-LT, ResNet-32 taught by ResNet-56.

To the paper's letter (its prose and its appendix): batch 64, SGD at 0.05 with momentum 0.9 and weight decay 5e-4, x 0.1
after 160 and 180 of 200 epochs (320 and 360 of 400), embedding 64-64-32, k 4096, k_m 2, tau_g 0.1, tau_s 1/30, weight 1
for each of L_cls, L_GML and L_KD, AutoAugment for the class view and for both contrastive ones.

What the paper leaves open is taken from the authors' code: the first 5 epochs (10 of 400) warm the learning rate up;
weight decay is on everything but temperatures; "AutoAugment" is crop, flip, AutoAugment and Cutout; distillation is at
T = 4 on scores without the prior; a last, smaller batch is dropped; the teacher is a cosine ResNet-56 under L_cls, the
same settings for 200 epochs, whatever the student's; its last epoch teaches. Momentum is the one the paper states for
ImageNet-LT. The paper fixes tau_g "throughout most of the experiments".

`--preset authors` is their script: batch 128 at 0.1, tau_g learned (0.1 is where it begins), steps that take effect an
epoch later. Their warm-up runs the sixth epoch at 1.2 times the rate, by an off-by-one, and is not imitated. The paper
does not say whether its numbers are of the last or of the best epoch; ours are of the last, hence a band that begins
one point below.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from longtail.recipe import Data, Optim, Recipe, Stage

TEACHER_EPOCHS = 200


def cifar100_lt_100_200(preset: str = "paper") -> Recipe:
    """CIFAR-100-LT of imbalance 100, 200 epochs: table 3.

    Command: longtail reproduce cifar100-lt-100-200
    Data: CIFAR-100, 160 MB (longtail data prepare cifar100-lt); 10,847 training images
    Hardware: two CPU cores with bfloat16, or any GPU
    Time: 3.5 hours on two cores, of which the teacher 1.3
    Expected: 53.0 (52.0 to 54.5)
    """
    return _table_3(100, 200, preset)


def cifar100_lt_50_200(preset: str = "paper") -> Recipe:
    """CIFAR-100-LT of imbalance 50, 200 epochs: table 3.

    Command: longtail reproduce cifar100-lt-50-200
    Data: CIFAR-100, 160 MB (longtail data prepare cifar100-lt); 12,608 training images
    Hardware: two CPU cores with bfloat16, or any GPU
    Time: 4 hours on two cores, of which the teacher 1.5
    Expected: 57.6 (56.6 to 59.1)
    """
    return _table_3(50, 200, preset)


def cifar100_lt_10_200(preset: str = "paper") -> Recipe:
    """CIFAR-100-LT of imbalance 10, 200 epochs: table 3.

    Command: longtail reproduce cifar100-lt-10-200
    Data: CIFAR-100, 160 MB (longtail data prepare cifar100-lt); 19,573 training images
    Hardware: two CPU cores with bfloat16, or any GPU
    Time: 6 hours on two cores, of which the teacher 2.3
    Expected: 65.7 (64.7 to 67.2)
    """
    return _table_3(10, 200, preset)


def cifar100_lt_100_400(preset: str = "paper") -> Recipe:
    """CIFAR-100-LT of imbalance 100, 400 epochs: table 3.

    Command: longtail reproduce cifar100-lt-100-400
    Data: CIFAR-100, 160 MB (longtail data prepare cifar100-lt); 10,847 training images
    Hardware: two CPU cores with bfloat16, or any GPU
    Time: 5.5 hours on two cores, of which the teacher 1.3
    Expected: 54.0 (53.0 to 55.5)
    """
    return _table_3(100, 400, preset)


def cifar100_lt_50_400(preset: str = "paper") -> Recipe:
    """CIFAR-100-LT of imbalance 50, 400 epochs: table 3.

    Command: longtail reproduce cifar100-lt-50-400
    Data: CIFAR-100, 160 MB (longtail data prepare cifar100-lt); 12,608 training images
    Hardware: two CPU cores with bfloat16, or any GPU
    Time: 6 hours on two cores, of which the teacher 1.5
    Expected: 58.1 (57.1 to 59.6)
    """
    return _table_3(50, 400, preset)


def cifar100_lt_10_400(preset: str = "paper") -> Recipe:
    """CIFAR-100-LT of imbalance 10, 400 epochs: table 3.

    Command: longtail reproduce cifar100-lt-10-400
    Data: CIFAR-100, 160 MB (longtail data prepare cifar100-lt); 19,573 training images
    Hardware: two CPU cores with bfloat16, or any GPU
    Time: 9.5 hours on two cores, of which the teacher 2.3
    Expected: 67.0 (66.0 to 68.5)
    """
    return _table_3(10, 400, preset)


def _table_3(imbalance: int, epochs: int, preset: str) -> Recipe:
    student = Stage(
        name="student",
        method="gml",
        settings=gml_settings(preset),
        model="resnet32",
        epochs=epochs,
        batch_size=64 if preset == "paper" else 128,
        augment="autoaugment",
        keys="teacher",
        optim=_optim(epochs, preset),
    )
    teacher = replace(
        student,
        name="teacher",
        method="logit_adjusted",
        settings={"tau_s": 1 / 30},
        model="resnet56",
        epochs=TEACHER_EPOCHS,
        keys="",
        optim=_optim(TEACHER_EPOCHS, preset),
    )
    return Recipe(
        data=Data("cifar100-lt", imbalance=imbalance),
        stages=(teacher, student),
        name=f"cifar100-lt-{imbalance}-{epochs}",
        evaluate_every=10,
        groups="threshold",
    )


def gml_settings(preset: str = "paper") -> dict[str, Any]:
    """The row of the appendix for CIFAR-100-LT; the authors' code learns tau_g."""
    return {
        "hidden": 64,
        "embed": 32,
        "k": 4096,
        "k_m": 2,
        "tau_g": 0.1,
        "learn_tau": preset == "authors",
        "tau_s": 1 / 30,
        "gamma": 1.0,
        "beta": 1.0,
        "kd_weight": 1.0,
        "kd_temperature": 4.0,
    }


def _optim(epochs: int, preset: str) -> Optim:
    late = 0 if preset == "paper" else 1  # the authors compare with ">"
    return Optim(
        lr=0.05 if preset == "paper" else 0.1,
        momentum=0.9,
        weight_decay=5e-4,
        schedule="steps",
        steps_at=tuple((at * epochs + late) / epochs for at in (0.8, 0.9)),
        step_factor=0.1,
        warmup_epochs=epochs / 40,
    )
