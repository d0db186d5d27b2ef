import numpy as np
import pytest

from longtail.errors import LongtailError
from longtail.measure import logits as files
from longtail.measure.logits import Logits, adjust

COUNTS = np.array([100, 10, 1])


@pytest.fixture
def logits():
    scores = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    return Logits(scores, np.array([0, 1, 2, 0, -1, 1]), ("cat", "dog", "ökapi"), COUNTS, "train")


def arrays(logits, **changes):
    fields = {name: getattr(logits, name) for name in ("scores", "labels", "classes", "counts", "prior")}
    return {name: value for name, value in {**fields, **changes}.items() if value is not None}


@pytest.mark.parametrize("prior", ["train", "uniform", np.array([0.5, 0.25, 0.25])])
def test_round_trip(tmp_path, logits, prior):
    files.save(tmp_path / "scores.npz", Logits(logits.scores, logits.labels, logits.classes, COUNTS, prior))
    again = files.load(tmp_path / "scores.npz")
    np.testing.assert_array_equal(again.scores, logits.scores)
    np.testing.assert_array_equal(again.labels, logits.labels)
    assert again.classes == logits.classes
    assert np.array_equal(again.prior, prior)


def test_the_stated_prior_is_what_is_taken_out(logits):
    def centred(x):
        return x - x.mean(1, keepdims=True)

    np.testing.assert_allclose(centred(logits.loglik()), centred(logits.scores - np.log(COUNTS / 111)), atol=1e-6)
    uniform = Logits(logits.scores, logits.labels, logits.classes, COUNTS, "uniform")
    np.testing.assert_array_equal(uniform.loglik(), logits.scores)


def test_back_to_the_prior_they_came_with_is_the_scores_themselves(logits):
    np.testing.assert_allclose(adjust(logits, COUNTS / 111).scores, logits.scores, atol=1e-5)


def test_temperature_divides_the_likelihood_and_not_the_prior(logits):
    target = np.array([0.2, 0.3, 0.5])
    np.testing.assert_allclose(
        adjust(logits, target, temperature=2.0).scores, logits.loglik() / 2 + np.log(target), rtol=1e-5
    )


def test_a_second_correction_is_refused_also_through_a_file(tmp_path, logits):
    files.save(tmp_path / "adjusted.npz", adjust(logits, np.full(3, 1 / 3), temperature=1.5))
    with pytest.raises(LongtailError, match=r"already adjusted \(prior train replaced, temperature 1.5\)"):
        adjust(files.load(tmp_path / "adjusted.npz"), COUNTS / 111)


def test_a_file_that_does_not_state_its_prior_is_refused_with_the_way_to_state_it(tmp_path, logits):
    path = tmp_path / "scores.npz"
    np.savez(path, **arrays(logits, prior=None))
    with pytest.raises(LongtailError, match="does not say which prior") as refusal:
        files.load(path)
    command = str(refusal.value).split("as in ")[1].rstrip(".")
    exec(command, {"numpy": np})  # the advice, followed to the letter
    assert files.load(path).prior == "train"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"counts": None}, "has no counts"),
        ({"scores": np.zeros(6)}, "scores must be a table"),
        ({"scores": np.zeros((6, 3), dtype=int)}, "scores must be a table of floats"),
        ({"labels": np.zeros(5, dtype=int)}, "labels must be 6 integers"),
        ({"labels": np.full(6, 3)}, "labels must lie between -1"),
        ({"classes": ("cat", "dog")}, "3 entries"),
        ({"counts": np.array([1, 2, -1])}, "not negative"),
        ({"prior": "test"}, "prior is 'test'"),
        ({"prior": np.array([0.5, 0.5, 0.5])}, "sum 1.5"),
        ({"prior": np.array([0.5, 0.5])}, "3 probabilities"),
    ],
)
def test_bad_files_are_named_with_what_is_wrong(tmp_path, logits, changes, message):
    np.savez(tmp_path / "scores.npz", **arrays(logits, **changes))
    with pytest.raises(LongtailError, match=message):
        files.load(tmp_path / "scores.npz")


def test_unreadable_files(tmp_path, logits):
    with pytest.raises(LongtailError, match="cannot read"):
        files.load(tmp_path / "none.npz")
    whole = tmp_path / "whole.npz"
    files.save(whole, logits)
    (tmp_path / "half.npz").write_bytes(whole.read_bytes()[:300])
    with pytest.raises(LongtailError, match="cannot read"):
        files.load(tmp_path / "half.npz")
    np.savez(tmp_path / "pickled.npz", scores=np.array([object()]))
    with pytest.raises(LongtailError, match="cannot read"):
        files.load(tmp_path / "pickled.npz")
