"""IoU and accuracy against brute force and torchmetrics; streaming; what was not measured."""

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_jaccard_index

from longtail.errors import LongtailError
from longtail.measure.groups import by_terciles
from longtail.segmentation import metrics
from longtail.segmentation.metrics import Confusion

C = 6


def random_answers(seed, classes=C):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (3, 17, 19), generator=generator)
    answers = torch.where(torch.rand(labels.shape, generator=generator) < 0.6, labels, (labels + 1) % C)
    labels[torch.rand(labels.shape, generator=generator) < 0.1] = -100
    return answers, labels


def test_exact_against_counting():
    answers, labels = random_answers(0)
    confusion = Confusion(C)
    for answer, label in zip(answers, labels, strict=True):  # streaming, image by image
        confusion.update(answer, label)
    matrix = confusion.matrix()
    known = labels >= 0
    for c in range(C):
        tp = int(((answers == c) & (labels == c)).sum())
        fn = int(((answers != c) & (labels == c)).sum())
        fp = int(((answers == c) & (labels != c) & known).sum())
        assert metrics.iou(matrix)[c] == tp / (tp + fn + fp)
        assert metrics.accuracy(matrix)[c] == tp / (tp + fn)
    summary = metrics.summarise(matrix, by_terciles(np.arange(C)))
    assert summary["aacc"] == int(((answers == labels) & known).sum()) / int(known.sum())
    assert summary["pixels"] == int(known.sum())


def test_torchmetrics_agrees():
    answers, labels = random_answers(1)
    confusion = Confusion(C)
    confusion.update(answers, labels)
    summary = metrics.summarise(confusion.matrix(), by_terciles(np.arange(C)))
    options = {"num_classes": C, "ignore_index": -100}
    assert summary["miou"] == pytest.approx(multiclass_jaccard_index(answers, labels, **options).item(), abs=1e-6)
    assert summary["macc"] == pytest.approx(multiclass_accuracy(answers, labels, **options).item(), abs=1e-6)


def test_merging_is_addition():
    parts = [Confusion(C), Confusion(C)]
    whole = Confusion(C)
    for seed, part in enumerate(parts):
        part.update(*random_answers(seed))
        whole.update(*random_answers(seed))
    assert torch.equal(parts[0].state + parts[1].state, whole.state)
    assert whole.state.shape == (C, C)


def test_a_class_without_test_pixels_is_in_no_mean(tmp_path):
    answers, labels = random_answers(2, classes=C - 1)  # class 5 never occurs, and is answered sometimes
    confusion = Confusion(C)
    confusion.update(answers, labels)
    matrix = confusion.matrix()
    assert matrix[:, 5].sum() > 0
    groups = by_terciles(np.array([60, 50, 40, 30, 20, 10]))
    summary = metrics.summarise(matrix, groups)
    assert np.isnan(metrics.iou(matrix)[5])
    assert summary["miou"] == pytest.approx(metrics.iou(matrix)[:5].mean())
    assert summary["classes_measured"] == 5
    assert summary["miou_few"] == pytest.approx(metrics.iou(matrix)[4])
    counts = np.arange(C)
    metrics.write_csv(tmp_path / "per_class.csv", matrix, list("abcdef"), counts, groups)
    columns = metrics.read_csv(tmp_path / "per_class.csv")
    assert np.array_equal(columns["iou"], metrics.iou(matrix), equal_nan=True)
    assert columns["answered"].tolist() == matrix.sum(0).tolist()


def test_nothing_labelled():
    with pytest.raises(LongtailError, match="no test pixel has a label"):
        metrics.summarise(Confusion(C).matrix(), by_terciles(np.arange(C)))
