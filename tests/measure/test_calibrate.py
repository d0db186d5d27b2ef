import numpy as np
import pytest
from random_answers import gaussians
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from longtail.errors import LongtailError
from longtail.measure.calibrate import choose_tau, fit_temperature, tau_normalise


def drawn_from_own_probabilities(num_classes, n=4000):
    random = np.random.default_rng(0)
    loglik = 1.5 * random.normal(size=(n, num_classes))
    return loglik, (loglik + random.gumbel(size=loglik.shape)).argmax(1)


@pytest.mark.parametrize("sharpness", [0.02, 0.4, 1.0, 3.0, 60.0])
def test_is_the_minimum_another_optimiser_finds(sharpness):
    loglik, labels = drawn_from_own_probabilities(6)
    scores = sharpness * loglik
    log_prior = np.log(np.bincount(labels) / len(labels))

    def loss(log_t):
        return -log_softmax(scores / np.exp(log_t) + log_prior, axis=1)[np.arange(len(labels)), labels].mean()

    start = np.log(sharpness)
    oracle = minimize_scalar(loss, (start - 1, start + 1), method="brent", options={"xtol": 1e-10})
    assert fit_temperature(scores, labels) == pytest.approx(np.exp(oracle.x), rel=1e-4)


def test_scaling_the_scores_scales_the_temperature():
    loglik, labels = drawn_from_own_probabilities(6)
    assert fit_temperature(2.5 * loglik, labels) == pytest.approx(2.5 * fit_temperature(loglik, labels), rel=1e-7)


def test_class_mix_of_val_does_not_move_it():
    labels = np.repeat(np.arange(5), [7000, 2000, 500, 300, 200])
    assert fit_temperature(gaussians(labels, 5, spread=0.5), labels) == pytest.approx(1, abs=0.03)


def test_classes_absent_from_val_are_left_out():
    loglik, labels = drawn_from_own_probabilities(4)
    wider = np.insert(loglik, 1, 50.0, axis=1)
    assert fit_temperature(wider, labels + (labels > 0)) == pytest.approx(fit_temperature(loglik, labels), rel=1e-12)


def test_val_that_determines_no_temperature_is_refused():
    labels = np.arange(30) % 3
    with pytest.raises(LongtailError, match="chance level"):
        fit_temperature(-np.eye(3)[labels], labels)
    with pytest.raises(LongtailError, match="answered rightly"):
        fit_temperature(np.eye(3)[labels], labels)


def test_tau_normalised_scores_are_those_of_the_normalised_head():
    random = np.random.default_rng(0)
    weight, bias, features = random.normal(size=(5, 8)), random.normal(size=5), random.normal(size=(20, 8))
    head = weight / np.linalg.norm(weight, axis=1, keepdims=True) ** 0.7
    scores = features @ weight.T + bias
    np.testing.assert_allclose(tau_normalise(scores, weight, bias, 0.7), features @ head.T)


def test_choose_tau_maximises_balanced_accuracy():
    # Head weights are long only because their class is frequent: tau = 1 undoes that.
    random = np.random.default_rng(0)
    direction = np.linalg.qr(random.normal(size=(8, 8)))[0][:4]
    weight = direction * np.array([[8.0], [4.0], [1.0], [0.5]])
    labels = np.repeat(np.arange(4), [400, 100, 20, 5])
    features = direction[labels] + 0.2 * random.normal(size=(525, 8))
    tau, accuracies = choose_tau(features @ weight.T, labels, weight, np.zeros(4))
    assert 0.5 <= tau <= 1.5
    assert accuracies.argmax() == round(10 * tau)
    assert accuracies.max() > accuracies[0] + 0.2
    answer = tau_normalise(features @ weight.T, weight, np.zeros(4), tau).argmax(1)
    recalls = [(answer[labels == c] == c).mean() for c in range(4)]
    assert accuracies.max() == pytest.approx(np.mean(recalls))
