"""`longtail evaluate`: whose numbers they are, under which prior, of which classes and by which head."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch

import longtail as lt
from longtail import cli
from longtail.answers.run import open_run, questions
from longtail.errors import LongtailError
from longtail.files import read_json
from longtail.measure import logits
from longtail.measure.metrics import summarise
from longtail.measure.per_class import read_csv


def evaluate(run, *arguments, **more):
    return lt.evaluate(f"runs/{run}", *arguments, device="cpu", **more)


@pytest.mark.parametrize("run", ["digits", "plain"])
def test_as_trained_is_the_row_that_training_published(here, run):
    published = read_json(here / f"runs/{run}/result.json")["summary"]
    assert evaluate(run).summary == pytest.approx(published)


def test_plain_cross_entropy_carries_the_training_prior_and_nothing_else(here):
    as_trained, trained, uniform = (evaluate("plain", prior=prior) for prior in ("as-trained", "train", "uniform"))
    # The head's scores come in bfloat16, where two can be equal; adding the prior in float32 may part them.
    moved = np.abs(as_trained.per_class.predicted - trained.per_class.predicted).sum() / 2
    assert moved <= 0.01 * as_trained.per_class.n.sum()
    assert uniform.summary["few"] > trained.summary["few"]


def test_accuracy_and_balanced_accuracy_are_told_apart_on_a_skewed_test(here):
    digits = lt.data.load("digits-lt")
    rows = digits.rows("test")
    kept = np.concatenate([rows[digits.labels[rows] == c][: 40 - 5 * c] for c in range(8)])
    skewed = digits.take(kept)
    done = evaluate("digits", skewed, prior="uniform")
    accuracy = done.per_class.accuracy
    assert done.summary["accuracy"] == pytest.approx(np.average(accuracy[:8], weights=done.per_class.n[:8]))
    assert done.summary["balanced_accuracy"] == pytest.approx(accuracy[:8].mean())
    assert done.summary["classes_measured"] == 8
    assert "not measured: 2 classes without a test image" in str(done)
    written = list(csv.DictReader((done.save(here / "out") / "per_class.csv").read_text().splitlines()))
    assert [row["accuracy"] == "" for row in written] == [False] * 8 + [True] * 2
    matched = evaluate("digits", skewed, prior="test")
    assert matched.per_class.predicted[8:].sum() == 0  # the mix of this test has none of these
    assert matched.summary["accuracy"] >= done.summary["accuracy"]


def test_the_numbers_follow_from_the_table_that_is_written(here):
    done = evaluate("digits", prior="uniform")
    table, _, counts = read_csv(done.save(here / "out") / "per_class.csv")
    again = summarise(table, counts)
    assert {name: value for name, value in again.items() if value is not None} == pytest.approx(
        {name: value for name, value in done.summary.items() if not name.startswith("ece")}
    )


def test_a_prior_that_was_used_can_be_given_again(here):
    learned = evaluate("digits", prior="estimate")
    assert learned.estimate is not None
    assert learned.probabilities.sum() == pytest.approx(1)
    low, high = learned.estimate.interval
    assert np.all((low >= 0) & (high <= 1) & (low <= high))
    assert "class mix learned from the images" in str(learned)
    again = evaluate("digits", prior=learned.save(here / "out") / "prior.csv")
    assert np.array_equal(again.per_class.predicted, learned.per_class.predicted)


def test_estimating_answers_as_two_passes_would(here):
    """The images are answered once; the counts are those of answering them again under the estimate."""
    learned = evaluate("digits", prior="estimate")
    given = evaluate("digits", prior=dict(zip(map(str, range(10)), learned.probabilities.tolist(), strict=True)))
    assert np.array_equal(given.per_class.bins, learned.per_class.bins)


@pytest.mark.parametrize("prior", ["uniform", "estimate", "as-trained"])
def test_a_class_that_cannot_occur_is_never_answered(here, prior):
    done = evaluate("digits", prior=prior, absent=["3", "9"])
    assert done.per_class.predicted[[3, 9]].sum() == 0
    assert "ruled out: 3, 9" in str(done)
    if prior == "estimate":
        assert done.probabilities[[3, 9]].tolist() == [0, 0]


def test_the_second_answers_are_the_models_own(here):
    run = open_run("runs/digits", "cpu")
    asked = questions(run)
    images = torch.cat([batch.views[0] for batch in asked.loader.epoch(0)])
    weight = run.model.card["kernel_weight"]
    with torch.no_grad(), run.device.autocast():
        cosine, kernel = run.model(images).float(), run.model(images, "kernel").float()
    for head, scores in {"kernel": kernel, "both": (1 - weight) * cosine + weight * kernel}.items():
        done = lt.evaluate(run, head=head)
        right = (scores.argmax(1).numpy() == asked.labels).mean()
        assert done.summary["accuracy"] == pytest.approx(right, abs=0.011)  # bfloat16 rounds by the batch
        recorded = read_json(here / "runs/digits/result.json")["second"][head]
        assert done.summary["accuracy"] == pytest.approx(recorded["accuracy"], abs=1e-9)
    assert f"{weight:.2f} kernel (fitted on val)" in str(done)


def test_without_images_held_out_the_weight_is_one_half_and_said_to_be(here):
    run = open_run("runs/digits", "cpu")
    del run.model.card["kernel_weight"]
    assert "0.50 cosine + 0.50 kernel (not fitted" in str(lt.evaluate(run, head="both"))
    with pytest.raises(LongtailError, match="has no bank"):
        evaluate("plain", head="kernel")
    with pytest.raises(LongtailError, match="did you mean 'kernel'"):
        evaluate("digits", head="kernl")
    with pytest.raises(LongtailError, match="as-trained are the classifier's own"):
        evaluate("digits", head="kernel", prior="as-trained")


def test_on_the_command_line_all_is_printed_and_kept(here, capsys):
    assert cli.main(["evaluate", "runs/digits", "--prior", "uniform", "--save-scores", "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    shown = ("accuracy", "balanced", "many", "medium", "few", "worst-10%", "ECE", "top-5", "macro F1", "harmonic")
    assert all(word in printed for word in (*shown, "geometric", "ECE few", "(> 100)", "(20 to 100)", "(< 20)"))
    folder = here / "runs/digits/eval/test-uniform"
    assert {path.name for path in folder.iterdir()} == {"report.json", "per_class.csv", "prior.csv", "scores.npz"}
    kept = logits.load(folder / "scores.npz")
    assert kept.prior == "uniform"
    right = (kept.scores.argmax(1) == kept.labels).mean()
    assert right == pytest.approx(read_json(folder / "report.json")["summary"]["accuracy"])


def test_no_answer_takes_anothers_place(here):
    run = open_run("runs/plain", "cpu")
    names = [lt.evaluate(run, prior=prior).name for prior in ("as-trained", "uniform", "train")]
    assert names == ["test-as-trained", "test-uniform", "test-train"]
    for folder in ("a", "b"):
        lt.evaluate(run, prior="uniform").save(here / folder)
        (here / folder / "prior.csv").rename(here / folder / "train.csv")
    names += [lt.evaluate(run, prior=path).name for path in ("a/train.csv", here / "b/train.csv")]
    names += [lt.evaluate(run, absent=absent).name for absent in (["1"], ["2"])]
    names += [lt.evaluate(run, "digits-lt").name]
    assert len({*names}) == len(names)
    assert lt.evaluate(run, absent=["3", "1"]).name == lt.evaluate(run, absent=["1", "3"]).name
    assert lt.evaluate(run, prior=here / "a/train.csv").name == names[3]
    assert all(name.startswith(("test-train-", "test-as-trained-")) for name in names[3:])


def test_ones_own_data_are_split_into_thirds_with_their_bounds(here):
    run = open_run("runs/digits", "cpu")
    own = replace(run, recipe=replace(run.recipe, groups="terciles"))
    printed = str(lt.evaluate(own, prior="uniform"))
    assert "many (46 to 112): 3 | medium (8 to 30): 4 | few (1 to 4): 3 classes" in printed
