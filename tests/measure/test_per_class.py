import numpy as np
import pytest
from random_answers import count, random_answers

from longtail.errors import LongtailError
from longtail.measure.groups import by_threshold
from longtail.measure.metrics import summarise
from longtail.measure.per_class import read_csv, write_csv

TRAIN_COUNTS = np.array([500, 300, 200, 101, 100, 60, 40, 20, 19, 10, 5, 1])
NAMES = tuple(f'class "{c}", ü' for c in range(12))


@pytest.fixture
def written(tmp_path):
    table = count(*random_answers()).per_class()
    write_csv(tmp_path / "per_class.csv", table, NAMES, TRAIN_COUNTS, by_threshold(TRAIN_COUNTS))
    return tmp_path / "per_class.csv", table


def test_every_number_but_calibration_can_be_recomputed_from_the_file(written):
    path, table = written
    again, names, train_counts = read_csv(path)
    assert names == NAMES
    before, after = summarise(table, TRAIN_COUNTS), summarise(again, train_counts)
    assert {k: v for k, v in before.items() if "ece" not in k} == {k: v for k, v in after.items() if "ece" not in k}
    assert after["ece"] is None
    np.testing.assert_allclose(again.confidence, table.confidence, rtol=1e-12)


def test_a_class_without_test_images_has_empty_cells(written):
    path, table = written
    assert table.n[11] == 0
    assert path.read_text(encoding="utf-8").splitlines()[-1].endswith(f'ü",1,few,0,0,0,{table.predicted[11]},,')


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text.replace("correct5,", ""), "no column correct5"),
        (lambda text: text.replace("500", "many"), "not a number"),
        (lambda text: "\n".join(text.splitlines()[:1] + text.splitlines()[:0:-1]), "in order"),
    ],
)
def test_a_damaged_file_is_named(written, damage, message):
    path, _ = written
    path.write_text(damage(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(LongtailError, match=message):
        read_csv(path)
