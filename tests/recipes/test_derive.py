"""What was not said follows from the data, and its reasons are given."""

import numpy as np
import pytest

from longtail.data.table import ImageTable, PixelStore
from longtail.engine.inputs import CIFAR_MEAN, image_format
from longtail.recipe import Data
from longtail.recipes.derive import derive


@pytest.mark.parametrize(
    ("counts", "size", "method", "model", "epochs"),
    [
        ([40, 12, 4], None, "gml", "resnet18", 30),
        ([20_000, 2_000, 100], None, "gml", "resnet50", 30),
        ([500, 50, 5], 32, "gml", "resnet32", 200),
        ([300, 250, 200], None, "cross_entropy", "resnet18", 30),
    ],
)
def test_method_model_and_schedule(counts, size, method, model, epochs):
    recipe, why = derive(Data("mine"), np.array(counts), size)
    last = recipe.stages[-1]
    assert (last.method, last.model, last.epochs, last.pretrained) == (method, model, epochs, size is None)
    assert recipe.name == f"mine-{method}"
    text = "\n".join(why)
    assert f"method {method}: " in text
    assert f"model {model}: {sum(counts):,} images" in text
    assert f"{epochs} epochs: " in text
    assert f"for batch {last.batch_size}, cosine" in text


@pytest.mark.parametrize(
    ("source", "groups", "augment"),
    [
        ("cifar100-lt", "threshold", "autoaugment"),
        ("digits-lt", "threshold", "shift"),
        ("inat18", "threshold", "weak"),
        ("photos/birds-lt", "terciles", "weak"),
        ("birds-lt", "terciles", "weak"),
        ("cifar_like", "terciles", "weak"),
        ("digits_of_mine", "terciles", "weak"),
    ],
)
def test_a_benchmark_is_known_by_its_whole_name(source, groups, augment):
    recipe, _ = derive(Data(source), np.array([500, 50, 5]), 32)
    assert (recipe.groups, recipe.stages[-1].augment) == (groups, augment)
    table = ImageTable(
        ("a",), np.zeros(1, np.int32), np.zeros(1, np.uint8), PixelStore(np.zeros((1, 32, 32, 3), np.uint8), "x")
    )
    assert (image_format(recipe, table).mean == CIFAR_MEAN) == (source == "cifar100-lt")


def test_a_bank_grows_with_classes_and_images_and_stays_within_bounds():
    def k(classes, images):
        recipe, why = derive(Data("mine"), np.full(classes, images), None, method="gml")
        assert any(f"bank of {recipe.stages[-1].settings['k']:,} samples" in line for line in why)
        return recipe.stages[-1].settings["k"]

    assert k(3, 5) == 64
    assert k(100, 108) == 4096  # the paper's for CIFAR-100-LT
    assert k(8142, 54) == 65536 >= 8 * 8142


def test_from_scratch_takes_longer_at_a_higher_rate():
    mine = Data("mine"), np.array([400, 40, 4]), None
    (scratch, _), (tuned, _) = derive(*mine, pretrained=False), derive(*mine)
    assert scratch.stages[-1].epochs == 90 > tuned.stages[-1].epochs == 30
    assert scratch.stages[-1].optim.lr == pytest.approx(5 * tuned.stages[-1].optim.lr)
