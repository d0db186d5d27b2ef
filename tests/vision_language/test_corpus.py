"""Names, templates and sentences, from whatever they are written in."""

import json

import open_clip
import pytest

from longtail.errors import LongtailError
from longtail.vision_language.corpus import looks_like_code, read_corpus, readable

CLASSES = ("aquarium_fish", "Żubr", "猫")


def lines(path, *rows):
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    return str(path)


def test_without_a_corpus_the_names_are_used_and_it_is_said():
    corpus = read_corpus(CLASSES)
    assert len(corpus.prompts) == len(open_clip.SIMPLE_IMAGENET_TEMPLATES)
    assert corpus.of_class(0) == [template("aquarium fish") for template in open_clip.SIMPLE_IMAGENET_TEMPLATES]
    assert corpus.report() == ["text: 7 templates around the class name, no corpus of sentences"]


@pytest.mark.parametrize(
    ("templates", "expected"),
    [
        ("photo", ["a photo of a Żubr."]),
        ("a satellite image of {}", ["a satellite image of Żubr"]),
        (["{}", "{} or {}"], ["Żubr", "Żubr or Żubr"]),
    ],
)
def test_templates(templates, expected):
    assert read_corpus(CLASSES, templates=templates).of_class(1) == expected


def test_all_of_clips_templates():
    assert read_corpus(CLASSES, templates="openai").of_class(0)[79] == open_clip.OPENAI_IMAGENET_TEMPLATES[79](
        "aquarium fish"
    )


@pytest.mark.parametrize(("templates", "told"), [("a photo", "has no {}"), ("simpel", "'simple'"), ([], "no template")])
def test_a_template_without_a_place_for_the_name(templates, told):
    with pytest.raises(LongtailError, match=told):
        read_corpus(CLASSES, templates=templates)


def test_a_class_without_sentences_falls_back_to_its_name(tmp_path):
    path = lines(
        tmp_path / "corpus.jsonl",
        {"class": "aquarium_fish", "sentence": "It swims  all day."},
        {"class": "Aquarium fish", "sentence": "It is small."},
        {"class": "unicorn", "sentence": "Not in these data."},
        {"class": "猫", "sentence": "猫は鳴く。"},
    )
    corpus = read_corpus(CLASSES, path, "photo")
    assert corpus.of_class(0) == ["a photo of a aquarium fish.", "It swims all day.", "It is small."]
    assert corpus.of_class(1) == ["a photo of a Żubr."]
    assert corpus.of_class(2) == ["a photo of a 猫.", "猫は鳴く。"]
    assert corpus.report() == [
        "text: 1 template around the class name, and 3 sentences from corpus.jsonl",
        "no sentence about 1 class (Żubr): the name alone is used",
    ]


def test_one_spelling_of_a_name_written_in_two_ways(tmp_path):
    path = lines(tmp_path / "corpus.jsonl", {"class": "caf\u0065\u0301", "sentence": "Un petit noir."})
    assert read_corpus(("caf\u00e9",), path).sentences == (("Un petit noir.",),)


def test_a_code_is_warned_about_and_can_be_named(tmp_path):
    classes = ("n01440764", "n01443537", "tench")
    assert "2 class names look like codes (n01440764, n01443537)" in read_corpus(classes).report()[-1]
    path = lines(tmp_path / "names.jsonl", *({"class": c, "name": n} for c, n in zip(classes, "abc", strict=True)))
    corpus = read_corpus(classes, path, "photo")
    assert corpus.names == ("a", "b", "c")
    assert len(corpus.report()) == 1


@pytest.mark.parametrize("name", ["n01440764", "class_12", "7", "3fa8c1d2", "Label 5", "id-0031"])
def test_codes(name):
    assert looks_like_code(name)


@pytest.mark.parametrize(
    "name", ["tench", "001.Black_footed_Albatross", "Boeing 747", "猫", "3号線", "F-16 fighter", "été"]
)
def test_words(name):
    assert not looks_like_code(name)


def test_names_a_person_would_write():
    assert readable("001.Black_footed_Albatross") == "Black footed Albatross"
    assert readable("T-shirt") == "T-shirt"
    assert readable("7") == "7"


@pytest.mark.parametrize("line", ["not json", "[1, 2]", '{"sentence": "x"}', '{"class": 3, "sentence": "x"}', "null"])
def test_a_broken_line_is_named(tmp_path, line):
    (tmp_path / "corpus.jsonl").write_text('{"class": "a", "sentence": "b"}\n\n' + line)
    with pytest.raises(LongtailError, match=r"corpus\.jsonl, line 3: expected"):
        read_corpus(("a",), str(tmp_path / "corpus.jsonl"))


def test_a_corpus_about_something_else(tmp_path):
    path = lines(tmp_path / "corpus.jsonl", {"class": "x", "sentence": "y"})
    with pytest.raises(LongtailError, match=r"about other classes \(x\) than the data"):
        read_corpus(CLASSES, path)
    with pytest.raises(LongtailError, match="there are no sentences at"):
        read_corpus(CLASSES, str(tmp_path / "nowhere.jsonl"))


def test_imagenets_names():
    classes = tuple(f"n{i:08d}" for i in range(1000))
    assert read_corpus(classes, "imagenet").names == tuple(open_clip.IMAGENET_CLASSNAMES)
    with pytest.raises(LongtailError, match="these data have 3"):
        read_corpus(CLASSES, "imagenet")


PAGE = """The tench (Tinca tinca) is a fish, described by C. Linnaeus in 1758. It likes mud, e.g. Lake mud.

== Ecology ==
Is it shy? Very.
== References ==
Nobody reads this.
"""


def vl_ltr(folder, labels):
    (folder / "wiki").mkdir(parents=True)
    (folder / "labels.txt").write_text(labels)
    (folder / "wiki" / "desc_0.txt").write_text(PAGE)
    (folder / "wiki" / "desc_1.txt").write_bytes("The 金魚 is gold. It swims.".encode("gb18030"))
    return str(folder)


SENTENCES = (
    "The tench (Tinca tinca) is a fish, described by C. Linnaeus in 1758.",
    "It likes mud, e.g. Lake mud.",
    "Is it shy?",
    "Very.",
)


@pytest.mark.parametrize("classes", [("n01440764", "n01443537", "n02"), ("0", "1", "2")])
def test_vl_ltrs_imagenet_folder_reads_as_it_is(tmp_path, classes):
    labels = "n02 3 great_white_shark\nn01443537 9 goldfish\nn01440764 450 tench\n"
    corpus = read_corpus(classes, vl_ltr(tmp_path / "imagenet", labels), "photo")
    assert corpus.names == ("tench", "goldfish", "great white shark")
    assert corpus.sentences == (SENTENCES, ("The 金魚 is gold.", "It swims."), ())  # there is no third page


def test_vl_ltrs_places_folder(tmp_path):
    corpus = read_corpus(("/a/alley", "/a/airfield"), vl_ltr(tmp_path / "places", "/a/airfield 0\n/a/alley 1\n"))
    assert corpus.names == ("alley", "airfield")
    assert corpus.sentences[1] == SENTENCES


def test_vl_ltrs_inaturalist_folder(tmp_path):
    folder = vl_ltr(tmp_path / "inat", "")
    (tmp_path / "inat" / "categories.json").write_text(
        json.dumps([{"id": 0, "name": "Tinca tinca"}, {"id": 1, "name": "Carassius auratus"}])
    )
    assert read_corpus(("a", "b"), folder).names == ("Tinca tinca", "Carassius auratus")
    with pytest.raises(LongtailError, match="pages on 2 classes and the data have 3"):
        read_corpus(("a", "b", "c"), folder)
