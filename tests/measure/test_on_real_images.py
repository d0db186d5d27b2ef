"""A trained network on real images: temperature, and the class mix learned from unlabelled ones."""

import io

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from longtail.measure.calibrate import fit_temperature
from longtail.measure.counters import Counters
from longtail.measure.metrics import expected_calibration_error
from longtail.measure.priors import estimate_prior, resample, shifted_prior, under_shifts
from longtail.models.resnet_cifar import CifarResNet

TRAIN_COUNTS = np.arange(10, 0, -1)  # only orders the classes: these weights come from balanced training


@pytest.fixture(scope="module")
def scores(shared_data):
    """Log-likelihoods and labels of 4,000 CIFAR-10 test images by ResNet-20; the first 1,000 serve as val."""
    table = pq.read_table(next((shared_data / "cifar10").glob("**/test*.parquet"))).slice(0, 4000).to_pydict()
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(image["bytes"]))) for image in table["img"]])
    weights = load_file(shared_data / "weights" / "cifar10_resnet20.safetensors")
    weight, bias = weights.pop("linear.weight"), weights.pop("linear.bias")
    network = CifarResNet(20).eval()
    network.load_state_dict(weights)
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    images = ((torch.from_numpy(pixels) / 255 - mean) / deviation).permute(0, 3, 1, 2)
    with torch.inference_mode():
        loglik = torch.cat([network(batch) @ weight.T + bias for batch in images.split(250)])
    return loglik.numpy(), np.array(table["label"])


def calibration_error(loglik, labels):
    counters = Counters(10)
    counters.update(torch.from_numpy(loglik), torch.from_numpy(labels))
    error = expected_calibration_error(counters.per_class())
    assert error is not None
    return error


def test_temperature_from_val_repairs_an_overconfident_network(scores):
    loglik, labels = scores
    temperature = fit_temperature(loglik[:1000], labels[:1000])
    assert temperature > 1.5
    assert calibration_error(loglik[1000:] / temperature, labels[1000:]) < 0.02
    assert calibration_error(loglik[1000:], labels[1000:]) > 0.04


def test_estimated_mix_is_nearly_as_good_as_the_true_one(scores):
    loglik, labels = scores
    loglik = loglik / fit_temperature(loglik[:1000], labels[:1000])
    rows = {row.name: row for row in under_shifts(loglik[1000:], labels[1000:], TRAIN_COUNTS)}
    for row in rows.values():
        assert row.distance < 0.04
        assert row.estimated > row.true - 0.005
    assert rows["forward 50"].estimated > rows["forward 50"].uniform + 0.01


def test_interval_of_the_estimate_covers_the_mix(scores):
    loglik, labels = scores
    loglik = loglik / fit_temperature(loglik[:1000], labels[:1000])
    kept = 1000 + resample(labels[1000:], shifted_prior(TRAIN_COUNTS, 10))
    estimate = estimate_prior(loglik[kept])
    true = np.bincount(labels[kept]) / len(kept)
    assert estimate.interval is not None
    low, high = estimate.interval
    assert ((low <= true) & (true <= high)).sum() >= 9
