"""`longtail predict`: a line an image, whatever is among them, from wherever their names come."""

import csv
import io
import json
import shutil

import numpy as np
import pytest
from PIL import Image

import longtail as lt
from longtail import cli
from longtail.answers.predict import LOW_SUPPORT, Prediction, write
from longtail.answers.run import collected, open_run, questions
from longtail.prior import log_prior, uniform


@pytest.fixture
def images(here):
    """Twenty test images as files, in two folders."""
    digits = lt.data.load("digits-lt")
    for number, row in enumerate(digits.rows("test")[::25]):
        folder = here / "images" / ("b" if number % 2 else "a")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(digits.images.decode(int(row))).save(folder / f"{number:02d}.png")
    return here / "images"


def predict(*arguments):
    return cli.main(["predict", "runs/digits", *map(str, arguments), "--device", "cpu"])


def lines(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_a_line_says_what_the_model_says_under_the_prior(images, capsys):
    run = open_run("runs/digits", "cpu")
    loglik, _ = collected(run, questions(run).loader, uniform(10))
    for prior, added in {"uniform": uniform(10), "train": log_prior(run.counts)}.items():
        assert predict(images, "--prior", prior, "--top", 3) == 0
        told = {row["image"][-6:-4]: row for row in lines(capsys.readouterr().out)}
        assert len(told) == 20
        for number in range(20):
            row = told[f"{number:02d}"]
            scores = loglik[25 * number] + added.numpy()
            expected = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
            assert float(row["probability"]) == pytest.approx(expected.max(), abs=0.03)  # bfloat16
            top = [float(row[key]) for key in ("probability", "probability_2", "probability_3")]
            assert top == sorted(top, reverse=True)
            answer = run.classes.index(row["class"])
            assert row["group"] == run.groups.name(answer)
            assert row["low_support"] == str(bool(run.counts[answer] < LOW_SUPPORT)).lower()
            assert row["error"] == ""


@pytest.mark.parametrize("more", [["--prior", "estimate"], ["--head", "kernel"], ["--head", "both"], ["--absent", "3"]])
def test_every_way_of_answering_gives_every_image_a_line(images, capsys, more):
    assert predict(images, *more) == 0
    rows = lines(capsys.readouterr().out)
    assert len(rows) == 20
    assert all(row["class"] in set("0123456789") - set(more[1] if more[0] == "--absent" else "") for row in rows)


def test_a_bad_file_is_a_line_with_its_reason_and_the_rest_is_answered(images, capsys):
    (images / "a/04.png").write_bytes(b"not an image")
    (images / "a/06.png").write_bytes((images / "a/08.png").read_bytes()[:90])
    (images / "b/05.png").write_bytes(b"")
    Image.new("RGB", (40, 30)).save(images / "b/07.png")
    assert predict(images, images / "gone.png", "--batch-size", 4) == 2
    said = capsys.readouterr()
    rows = lines(said.out)
    bad = {row["image"].rpartition("/")[2]: row["error"] for row in rows if row["error"]}
    assert bad.keys() == {"04.png", "06.png", "05.png", "07.png", "gone.png"}
    assert "is 40 x 30, but the model was trained on images of 16 x 16" in bad["07.png"]
    assert all(row["class"] == "" for row in rows if row["error"])
    assert sum(row["class"] != "" for row in rows) == 16
    assert "5 of 21 images have no answer" in said.err
    assert said.err.count("\n") == 1
    assert predict(images / "b/07.png", "--resize") == 0


def test_where_the_names_come_from_does_not_matter(images, capsys, monkeypatch):
    assert predict(images) == 0
    told = capsys.readouterr().out
    files = sorted(str(path) for path in images.rglob("*.png"))
    (images / "list.csv").write_text("label,path\n" + "".join(f"x,{f[len(str(images)) + 1 :]}\n" for f in files))
    (images / "list.txt").write_text("".join(f"{f[len(str(images)) + 1 :]} 3\n" for f in files))
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{file}\n" for file in files)))
    for source in ([images / "list.csv"], [images / "list.txt"], ["-"], files, [images / "a", images / "b"]):
        assert predict(*source, "--batch-size", 7) == 0
        again = lines(capsys.readouterr().out)
        assert [(row["image"], row["class"]) for row in again] == [(row["image"], row["class"]) for row in lines(told)]


def test_json_lines_are_objects(images, capsys):
    (images / "a/04.png").write_bytes(b"not an image")
    assert predict(images, "--format", "jsonl", "--top", 2, "--out", "out.jsonl") == 2
    rows = [json.loads(line) for line in (images.parent / "out.jsonl").read_text().splitlines()]
    good, bad = [row for row in rows if "error" not in row], [row for row in rows if "error" in row]
    assert (len(good), len(bad)) == (19, 1)
    assert all(row.keys() == {"image", "class", "probability", "group", "low_support", "top"} for row in good)
    assert all(row["top"][0] == {"class": row["class"], "probability": row["probability"]} for row in good)


def test_what_was_answered_before_a_crash_is_kept_and_marked(tmp_path):
    def ends_early():
        yield Prediction("a.png", (("cat", 0.9),), "few", True)
        raise RuntimeError("the power went")

    with pytest.raises(RuntimeError):
        write(ends_early(), tmp_path / "out.csv", "csv", 1)
    assert not (tmp_path / "out.csv").exists()
    assert lines((tmp_path / "out.csv.partial").read_text())[0]["class"] == "cat"


def test_it_streams(here):
    """The first answers come before the last images are asked for."""
    digits = lt.data.load("digits-lt")
    asked = 0

    def pictures():
        nonlocal asked
        for row in digits.rows("test")[:64]:
            asked += 1
            yield digits.images.decode(int(row))

    answers = lt.predict("runs/digits", pictures(), batch_size=8, device="cpu")
    next(answers)
    assert asked == 16  # a batch, and the next one, which is decoded meanwhile
    assert len(list(answers)) == 63


def spoil(here, what):
    """One fault of a run's folder or of what it is asked."""
    run = here / "runs/digits"
    if what == "newer":
        config = json.loads((run / "config.json").read_text())
        (run / "config.json").write_text(json.dumps(config | {"format": 99}))
    elif what == "truncated":
        (run / "model.safetensors").write_bytes((run / "model.safetensors").read_bytes()[:5000])
    elif what == "truncated bank":
        (run / "bank.safetensors").write_bytes((run / "bank.safetensors").read_bytes()[:5000])
    elif what == "no card":
        (run / "model.json").unlink()
    elif what == "no run":
        shutil.rmtree(run)
    (here / "empty").mkdir()
    (here / "wrong.csv").write_text("class,probability\n0,0.5\nseven,0.5\n")
    (here / "sum.csv").write_text("class,probability\n" + "".join(f"{c},0.2\n" for c in range(10)))
    (here / "short.csv").write_text("class,probability\n0,1\n")
    digits = lt.data.load("digits-lt")
    Image.fromarray(digits.images.decode(int(digits.rows("test")[0]))).save(here / "one.png")


@pytest.mark.parametrize("verb", ["evaluate", "predict", "adjust", "report", "export", "serve"])
@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("newer", "written by another longtail (format 99)"),
        ("truncated", "is damaged"),
        ("truncated bank", "cannot read the bank"),
        ("no card", "model.json"),
        ("no run", "is not the folder of a run"),
    ],
)
def test_a_spoilt_run_is_one_sentence_from_every_verb(here, capsys, verb, what, sentence):
    spoil(here, what)
    arguments = [verb, "runs/digits", *(["one.png"] if verb == "predict" else [])]
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.startswith("longtail: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["evaluate", "--prior", "wrong.csv"], "there is no class named 'seven'"),
        (["evaluate", "--prior", "sum.csv"], "these sum to 2"),
        (["evaluate", "--prior", "short.csv"], "gives no probability for '1'"),
        (["evaluate", "--prior", "unform"], "there is no file 'unform'"),
        (["evaluate", "--absent", "seven"], "the model knows no such class"),
        (["evaluate", "--data", "empty"], "no image in empty"),
        (["evaluate", "--split", "tset"], "--split is one of train, val, test"),
        (["predict", "one.png", "--prior", "sum.csv"], "these sum to 2"),
        (["predict", "empty"], "there is no image in the folder empty"),
        (["predict", "one.png", "--top", "11"], "--top must lie between 1 and"),
        (["predict", "one.png", "--format", "xml"], "--format is csv or jsonl"),
        (["evaluate", "--prior", "tset"], "takes uniform, train, val, test, estimate, as-trained or a file here"),
        (["predict", "one.png", "--prior", "test"], "takes uniform, train, estimate, as-trained or a file here"),
        (["predict", "one.png", "--head=kernel", "--prior=as-trained"], "give --head kernel another --prior"),
        (["adjust", "--prior", "as-trained"], "takes uniform, train, val, test, estimate or a file here"),
        (["predict", "one.png", "--batch-size", "0"], "--batch-size is 1 or more, not 0"),
        (["adjust", "--prior", "wrong.csv"], "there is no class named 'seven'"),
        (["export", "--format", "onxx"], "--format is one of onnx, torch, safetensors"),
        (["export", "--images", "empty"], "there is no image in the folder empty"),
    ],
)
def test_a_mistake_is_one_sentence(here, capsys, arguments, sentence):
    spoil(here, "nothing")
    before = sorted(here.rglob("*"))
    verb, *rest = arguments
    assert cli.main([verb, "runs/digits", *rest]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.startswith("longtail: ")
    assert error.count("\n") == 1
    assert sorted(here.rglob("*")) == before  # nothing half-written is left
