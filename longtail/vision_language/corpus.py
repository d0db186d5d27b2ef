"""What is said about each class: its name in a few templates, and sentences from a corpus where there is one.

    corpus.jsonl   one object a line: {"class": "tench", "sentence": "The tench lives in still water."}, or,
                   where the class is a code, what to call it in a template: {"class": "n01440764", "name": "tench"}
    a folder       VL-LTR's layout: wiki/desc_0.txt, desc_1.txt ... and labels.txt or categories.json with the names
    imagenet       no sentences, but the 1,000 names of ImageNet's classes that open_clip brings

A class of which the corpus knows nothing has the templates around its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from longtail.data.classes import plain
from longtail.errors import LongtailError
from longtail.recipe import nearest
from longtail.wording import number_of

PHOTO = ("a photo of a {}.",)
SETS = ("photo", "simple", "openai")  # 1, 7 and 80 templates; the last two are CLIP's own, as open_clip has them


@dataclass(frozen=True)
class Corpus:
    names: tuple[str, ...]  # what each class is called
    prompts: tuple[str, ...]  # with {} where the name goes
    sentences: tuple[tuple[str, ...], ...]  # of each class, beside its prompts
    source: str

    def of_class(self, c: int) -> list[str]:
        """All that is said of a class, its prompts first."""
        return [prompt.replace("{}", self.names[c]) for prompt in self.prompts] + list(self.sentences[c])

    def report(self) -> list[str]:
        """What a user should know before anything is trained."""
        templates = f"{len(self.prompts)} template{'s' if len(self.prompts) > 1 else ''} around the class name"
        number = sum(map(len, self.sentences))
        if not number:
            lines = [f"text: {templates}, no corpus of sentences"]
        else:
            without = [name for name, own in zip(self.names, self.sentences, strict=True) if not own]
            lines = [f"text: {templates}, and {number_of(number, 'sentence')} from {self.source}"]
            if without:
                classes = number_of(len(without), "class")
                lines.append(f"no sentence about {classes} ({_some(without)}): the name alone is used")
        codes = [name for name in self.names if looks_like_code(name)]
        if codes:
            lines.append(
                f"warning: {len(codes)} class names look like codes ({_some(codes)}), which say nothing to a text "
                'tower: name them in a JSON lines file for --sentences: {"class": "n01440764", "name": "tench"}'
            )
        return lines


def read_corpus(classes: Sequence[str], sentences: str = "", templates: str | Sequence[str] = "simple") -> Corpus:
    """`sentences` is a path, `imagenet` or nothing; `templates` a set's name, or templates with {} in them."""
    prompts, none = _prompts(templates), tuple(() for _ in classes)
    if not sentences:
        return Corpus(tuple(map(readable, classes)), prompts, none, "")
    if sentences == "imagenet":
        return Corpus(_imagenet_names(len(classes)), prompts, none, sentences)
    path = Path(sentences)
    if not path.exists():
        raise LongtailError(f"there are no sentences at {path}: give a JSON lines file or a folder in VL-LTR's layout")
    names, said = _vl_ltr(path, classes) if path.is_dir() else _json_lines(path, classes)
    return Corpus(names, prompts, said, path.name)


def readable(name: str) -> str:
    """A class as a person would write it: aquarium_fish, 001.Black_footed_Albatross."""
    return " ".join(re.sub(r"^\d+\.\s*(?=\D)", "", plain(name)).replace("_", " ").split())


def looks_like_code(name: str) -> bool:
    """n01440764, class_12, 7, 3fa8c1d2: digits, and no word but such as stand before a number."""
    words = {word.lower() for word in re.findall(r"[^\W\d_]{3,}|[^\W\d_a-zA-Z]", name)}
    return any(c.isdigit() for c in name) and not words - {"class", "label", "category", "cls"}


def _prompts(templates: str | Sequence[str]) -> tuple[str, ...]:
    if templates == "photo":
        return PHOTO
    if templates in ("simple", "openai"):
        import open_clip

        known = open_clip.SIMPLE_IMAGENET_TEMPLATES if templates == "simple" else open_clip.OPENAI_IMAGENET_TEMPLATES
        return tuple(template("{}") for template in known)
    prompts = (templates,) if isinstance(templates, str) else tuple(templates)
    for prompt in prompts:
        if "{}" not in prompt:
            hint = nearest(prompt, SETS) if " " not in prompt else ""
            raise LongtailError(f"the template {prompt!r} has no {{}} where the class name goes{hint}")
    if not prompts:
        raise LongtailError(f"there is no template at all; name a set ({', '.join(SETS)}) or write one with {{}} in it")
    return prompts


def _imagenet_names(num_classes: int) -> tuple[str, ...]:
    import open_clip

    if num_classes != len(open_clip.IMAGENET_CLASSNAMES):
        raise LongtailError(f"the names of ImageNet's classes are 1,000, in its order; these data have {num_classes}")
    return tuple(open_clip.IMAGENET_CLASSNAMES)


def _json_lines(path: Path, classes: Sequence[str]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    index = {readable(name).casefold(): c for c, name in enumerate(classes)}
    index |= {plain(name): c for c, name in enumerate(classes)}
    names, said, strangers = [readable(name) for name in classes], [[] for _ in classes], []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            name, sentence, called = row["class"], row.get("sentence"), row.get("name")
            assert all(isinstance(x, str) for x in (name, sentence or "", called or ""))
        except (ValueError, KeyError, TypeError, AttributeError, AssertionError):
            raise LongtailError(
                f'{path}, line {number}: expected {{"class": "...", "sentence": "..."}}, found {line.strip()[:60]!r}'
            ) from None
        c = index.get(plain(name), index.get(readable(name).casefold()))
        if c is None:
            strangers.append(name)
            continue
        if called:
            names[c] = " ".join(called.split())
        if sentence and sentence.strip():
            said[c].append(" ".join(sentence.split()))
    if strangers and not any(said) and names == [readable(name) for name in classes]:
        raise LongtailError(
            f"{path} is about other classes ({_some(strangers)}) than the data ({_some(list(classes))})"
        )
    return tuple(names), tuple(map(tuple, said))


# --- the corpora of VL-LTR: a page of Wikipedia a class ---

_NOT_PROSE = {"external links", "references", "further reading", "bibliography", "see also"}
_ABBREVIATED = r"(?<!\b[A-Z]\.)(?<!\b(?:Dr|Mr|Ms|St|vs|cf)\.)(?<!\b(?:Mrs|e\.g|i\.e)\.)"
_SENTENCE_END = re.compile(r"(?<=[.?!])" + _ABBREVIATED + r"\s+(?=[A-Z\d\"'(])")


def _vl_ltr(folder: Path, classes: Sequence[str]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Page i is about the i-th category, which is class i of the published lists, or has one of the data's names."""
    keys, names = _categories(folder)
    place = {_alike(key): i for i, key in [*enumerate(names), *enumerate(keys)]}
    if all(_alike(name) in place for name in classes):
        order = [place[_alike(name)] for name in classes]
    elif len(names) == len(classes):
        order = list(range(len(classes)))
    else:
        raise LongtailError(f"{folder} has pages on {len(names)} classes and the data have {len(classes)}")
    return tuple(_alike(names[i]) for i in order), tuple(_page(folder / "wiki" / f"desc_{i}.txt") for i in order)


def _categories(folder: Path) -> tuple[list[str], list[str]]:
    """Keys (a WordNet number, an index) and names, in the order of the pages."""
    if (folder / "categories.json").is_file():
        rows = json.loads((folder / "categories.json").read_text(encoding="utf-8"))
        return [str(row["id"]) for row in rows], [str(row["name"]) for row in rows]
    if not (folder / "labels.txt").is_file():
        raise LongtailError(f"{folder} has neither labels.txt nor categories.json, so its pages have no names")
    rows = [line.split() for line in (folder / "labels.txt").read_text(encoding="utf-8").splitlines() if line.strip()]
    if rows[0][-1].isdecimal():  # Places: name, index
        rows.sort(key=lambda row: int(row[-1]))
        return [row[-1] for row in rows], [row[0] for row in rows]
    rows.sort(key=lambda row: row[0])  # ImageNet: WordNet number, index in another order, name
    return [row[0] for row in rows], [row[-1] for row in rows]


def _alike(name: str) -> str:
    """Places' /a/airport_terminal is an airport terminal."""
    return readable(re.sub(r"^/\w/", "", name).replace("/", " "))


def _page(file: Path) -> tuple[str, ...]:
    if not file.is_file():
        return ()
    encoded = file.read_bytes()
    try:
        text = encoded.decode("utf-8")
    except UnicodeDecodeError:
        text = encoded.decode("gb18030", errors="replace")  # a few of the published pages
    sentences, prose = [], True
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("=="):
            prose = line.strip("= ").lower() not in _NOT_PROSE
        elif prose:
            sentences += [" ".join(sentence.split()) for sentence in _SENTENCE_END.split(line)]
    return tuple(sentence for sentence in sentences if sentence)


def _some(names: Sequence[str], limit: int = 3) -> str:
    return ", ".join(names[:limit]) + (" ..." if len(names) > limit else "")
