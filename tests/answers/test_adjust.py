"""`longtail adjust`: what changes, what it is fitted on, and that nothing is corrected twice."""

import numpy as np
import pytest

import longtail as lt
from longtail import cli
from longtail.answers.run import collected, open_run, questions
from longtail.errors import LongtailError
from longtail.measure import logits
from longtail.measure.calibrate import fit_temperature
from longtail.prior import uniform


def adjust(source, **more):
    return lt.adjust(source, device="cpu", **more)


def test_the_table_is_what_the_adjusted_run_answers(here):
    before = lt.evaluate("runs/plain", device="cpu").summary
    done = adjust("runs/plain", prior="uniform")
    rows = list(done.rows.values())
    assert rows[0] == pytest.approx(before)
    assert rows[-1]["few"] > rows[0]["few"]  # what the training prior hid
    again = lt.evaluate(done.save(), device="cpu")
    assert again.summary == pytest.approx(rows[-1], abs=1e-6)
    assert "as adjusted (prior uniform, temperature" in str(again)


def test_the_temperature_is_val_s_and_divides_the_likelihood_alone(here):
    run = open_run("runs/plain", "cpu")
    val = collected(run, questions(run, split="val").loader, uniform(10))
    done = adjust("runs/plain", prior="train")
    fitted = fit_temperature(*val)
    assert done.result.adjusted["temperature"] == pytest.approx(fitted)
    assert f"temperature {fitted:.4g}: fitted on {len(val[1])} val images" in str(done)
    loglik, labels = collected(run, questions(run).loader, uniform(10))
    with np.errstate(divide="ignore"):
        answers = (loglik / fitted + np.log(run.counts / run.counts.sum())).argmax(1)
    assert list(done.rows.values())[-1]["accuracy"] == pytest.approx((answers == labels).mean())
    honest, bold = (adjust("runs/plain", temperature=t).rows for t in ("fit", 0.2))
    assert list(honest.values())[-1]["ece"] < list(bold.values())[-1]["ece"]


@pytest.mark.parametrize("how", [{"prior": "train"}, {"temperature": 2.0}, {"tau": 0.5}])
def test_nothing_is_adjusted_twice(here, how):
    done = adjust("runs/plain", **how)
    for again in (done.result, done.save()):
        with pytest.raises(LongtailError, match="was already adjusted"):
            adjust(again)


def test_tau_is_chosen_on_val_and_leaves_no_likelihood(here):
    done = adjust("runs/plain", tau="fit")
    assert "balanced accuracy" in done.notes[0]
    saved = done.save(here / "runs/tau")
    again = lt.evaluate(saved, device="cpu")
    assert again.summary == pytest.approx(list(done.rows.values())[-1], abs=0.02)  # the head rounds to bfloat16
    with pytest.raises(LongtailError, match="take no prior"):
        lt.evaluate(saved, prior="uniform", device="cpu")
    norms = done.result.method.objective.likelihood.linear.weight.norm(dim=1)
    first = open_run("runs/plain", "cpu").model.method.objective.likelihood.linear.weight.norm(dim=1)
    tau = done.result.adjusted["tau"]
    assert norms.numpy() == pytest.approx((first ** (1 - tau)).numpy(), rel=1e-5)
    with pytest.raises(LongtailError, match="one length already"):
        adjust("runs/digits", tau=1)


@pytest.fixture
def scores(here):
    """A file as another library's user would write it: the training prior is in it."""
    random = np.random.default_rng(0)
    counts, labels = np.array([400, 40, 4]), np.repeat(np.arange(3), 50)
    loglik = 2 * np.eye(3)[labels] + random.normal(size=(150, 3))
    arrays = {"scores": loglik + np.log(counts / counts.sum()), "labels": labels, "classes": ["a", "b", "c"]}
    np.savez(here / "scores.npz", **arrays, counts=counts, prior="train")
    np.savez(here / "silent.npz", **arrays, counts=counts)
    np.savez(here / "val.npz", **{**arrays, "scores": 3 * loglik}, counts=counts, prior="uniform")
    np.savez(here / "other.npz", **{**arrays, "classes": ["a", "b", "z"]}, counts=counts, prior="train")
    return loglik, labels


def test_anybody_s_scores_are_corrected_once(scores, here, capsys):
    loglik, labels = scores
    assert cli.main(["adjust", "scores.npz"]) == 0
    printed = capsys.readouterr().out
    assert "as they came (prior train)" in printed
    after = logits.load("scores.adjusted.npz")
    assert after.prior.tolist() == pytest.approx([1 / 3] * 3)
    assert np.array_equal(after.scores.argmax(1), loglik.argmax(1))
    assert f"{100 * (loglik.argmax(1) == labels).mean():.1f}" in printed
    assert cli.main(["adjust", "scores.adjusted.npz"]) == 2
    assert "already adjusted" in capsys.readouterr().err


def test_a_file_that_does_not_state_its_prior_is_refused_with_the_remedy(scores, here, capsys):
    assert cli.main(["adjust", "silent.npz"]) == 2
    error = capsys.readouterr().err
    assert "does not say which prior its scores carry" in error
    assert "prior='train')" in error
    assert error.count("\n") == 1
    assert not (here / "silent.adjusted.npz").exists()


def test_the_temperature_of_a_file_comes_from_another_one(scores, capsys):
    done = adjust("scores.npz", val="val.npz")
    assert "fitted on 150 val images" in done.notes[0]
    with pytest.raises(LongtailError, match="other classes"):
        adjust("scores.npz", val="other.npz")
    with pytest.raises(LongtailError, match="there is none: give the scores of val images"):
        adjust("scores.npz", temperature="fit")
    with pytest.raises(LongtailError, match="needs the head's weights"):
        adjust("scores.npz", tau=1)
    with pytest.raises(LongtailError, match="a temperature is over 0"):
        adjust("scores.npz", temperature=-1)
    with pytest.raises(LongtailError, match="takes a number or `fit`"):
        adjust("scores.npz", temperature="warm")
