"""Files from anybody: a loader returns something sound or refuses in one sentence, whatever the bytes.

Each test makes damaged inputs from good ones, a sample of them in `make test` and 106,000 in `make test-slow`,
which also writes what came of them to results/reliability/fuzz.json.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from mutate import WRONG, damaged, wrong
from PIL import Image

from longtail import recipe as recipes
from longtail.data import benchmarks, lists, parquet
from longtail.data.decode import decode
from longtail.data.table import FileStore, ImageTable
from longtail.engine import checkpoint, stages, trained
from longtail.engine.resume import Resume
from longtail.errors import LongtailError
from longtail.measure import logits
from longtail.methods import build_objective
from longtail.methods.method import Method
from longtail.models.backbone import build
from longtail.prior import from_file
from longtail.recipe import Data, Optim, Recipe, Stage, to_dict

RESULTS = Path(__file__).parents[2] / "results" / "reliability" / "fuzz.json"
SAMPLE, ALL, SLOW_ONES = 50, 16_000, 2_500

amounts = pytest.mark.parametrize("amount", [SAMPLE, pytest.param(ALL, marks=pytest.mark.slow)])
fewer = pytest.mark.parametrize("amount", [SAMPLE, pytest.param(SLOW_ONES, marks=pytest.mark.slow)])  # a network each


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory where that is possible: a disk takes longer over each file than everything else together."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


def fuzz(name: str, amount: int, attempt: Callable[[int], Any]) -> None:
    """attempt(number) for many numbers; it may raise LongtailError, of one line, and nothing else."""
    seen: Counter[str] = Counter()
    began = time.monotonic()

    @settings(
        max_examples=amount,
        derandomize=True,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, 2**63))
    def trial(number: int) -> None:
        seen["inputs"] += 1
        refusal = refused(attempt, number)
        seen["accepted" if refusal is None else "refused"] += 1
        if refusal is not None:
            assert len(refusal) > 10
            assert len(refusal.splitlines()) == 1, refusal

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trial()
    assert seen["refused"] > 0
    assert seen["accepted"] > 0
    if amount > SAMPLE:
        record(name, dict(seen) | {"seconds": round(time.monotonic() - began)})


def refused(attempt: Callable[[int], Any], number: int) -> str | None:
    try:
        attempt(number)
    except LongtailError as error:
        return str(error)
    return None


def record(name: str, seen: dict[str, Any]) -> None:
    from longtail.engine.runfolder import describe_environment

    try:
        loaders = json.loads(RESULTS.read_text())["loaders"]
    except FileNotFoundError:
        loaders = {}
    loaders[name] = seen
    content = {
        "what": "damaged inputs to every loader; none may raise anything but the tool's own error",
        "command": "pytest -m slow tests/fuzz",
        "environment": describe_environment(),
        "inputs": sum(loader["inputs"] for loader in loaders.values()),
        "unexpected": 0,  # the first one ends the test, and nothing is recorded
        "loaders": dict(sorted(loaders.items())),
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(content, indent=1) + "\n")


# Lists

WORDS = (
    b"path", b"label", b"split", b"group", b"image", b",", b";", b"\t", b'"', b'""', b"\n", b"\r\n", b"\r", b" ",
    b"../", b"..\\", b"/etc/passwd", b"C:/", b"\x00", b"\xff", b"\xef\xbb\xbf", b"-1", b"train", b"val", b"|",
    "é".encode(), "e\u0301".encode(), b"9" * 30, b".png", b"\xe2\x80\xa8",
)  # fmt: skip
CSV = [
    b"path,label\na/1.png,cat\nb 2.png,big dog\n",
    b"path,label,split,group\na/1.png,cat,train,u\nb/2.png,dog,test,v\nc/3.png,cat,val,\n",
    b'file;class\na/1.png;cat\n"b 2.png";"big dog"\n',
    b"a/1.png,3\nb/2.png,0\nc/3.png,1\n",
    b"image\tspecies\na/1.png\tcat\nb.png\tdog\n",
]
TXT = [
    b"train/a b/1.JPEG 2\ntrain/c/2.JPEG 0\n\n",
    "b/1.jpg 1\nb/ü.jpg 0\nc/3.jpg 0\n".encode(),
    b"a/1.png\tcat\nb/2.png\tdog\n",
    b"a/1.png,cat\nb.png,dog",
]


def sound(table: ImageTable, root: Path) -> None:
    """Its parts fit (the table asserts that itself), and no path leads out of the root."""
    assert len(table) > 0
    assert len(set(table.classes)) == table.num_classes
    table.summary()
    if isinstance(table.images, FileStore):
        for i in range(len(table)):
            place = root / table.images.name(i)
            assert place.resolve().is_relative_to(root.resolve()), table.images.name(i)


def _list(number: int, folder: Path, good: list[bytes], names: tuple[str, ...]) -> None:
    name = names[number % len(names)]
    data = damaged(number, good, WORDS)
    if name.endswith(".gz"):
        data = gzip.compress(data, 1, mtime=0)
        data = data if number % 3 else damaged(number + 1, [data])
    (folder / name).write_bytes(data)
    sound(lists.load(folder / name), folder)


@amounts
def test_csv(tmp_path: Path, amount: int) -> None:
    fuzz("csv", amount, lambda n: _list(n, tmp_path, CSV, ("list.csv", "list.tsv", "LIST.CSV", "list.csv.gz")))


@amounts
def test_txt(tmp_path: Path, amount: int) -> None:
    fuzz("txt", amount, lambda n: _list(n, tmp_path, TXT, ("list.txt", "all.txt.gz")))


@amounts
def test_class_list(tmp_path: Path, amount: int) -> None:
    def attempt(number: int) -> None:
        (tmp_path / "classes.txt").write_bytes(damaged(number, [b"cat\nbig dog\nowl\n", b"0\n1\n2\n3\n"], WORDS))
        (tmp_path / "list.csv").write_bytes(CSV[number % len(CSV)])
        sound(lists.load(tmp_path / "list.csv"), tmp_path)

    fuzz("classes.txt", amount, attempt)


# Parquet

COLUMNS: tuple[Any, ...] = (
    pa.array(["a/1.png", "b/2.png"]),
    pa.array(["../1.png", None]),
    pa.array([0, 1]),
    pa.array([0, None]),
    pa.array([-1, 7], pa.int8()),
    pa.array([0.5, float("nan")]),
    pa.array([True, False]),
    pa.array([[1], [2, 3]]),
    pa.array([b"x", b"\x89PNG"]),
    pa.array([None, None]),
    pa.array(["cat", "dog"]).dictionary_encode(),
    pa.array([{"bytes": b"x", "path": "1.png"}, {"bytes": None, "path": None}]),
    pa.array([{"bytes": None, "path": "1.png"}, {"bytes": None, "path": "../2.png"}]),
    pa.array([{"other": 1}, {"other": 2}]),
    pa.array(["train", "test"]),
    pa.array([1, 2], pa.timestamp("s")),
    pa.array(["9" * 30, "1"]),
    pa.array(["a" * 999, "é|"]),
)
NAMES = ("image", "label", "split", "group", "path", "img", "fine_label", "x", "", "Label")
FEATURES = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}, "img": {"_type": "I"}}}}


def _whole(number: int) -> bytes:
    """A parquet file whose bytes are right and whose columns may be anything."""
    rng = random.Random(number)
    names = ["image", "label"] if rng.random() < 0.7 else []
    names += rng.sample(NAMES, rng.randrange(3))
    table = pa.table([rng.choice(COLUMNS) for _ in names], names=names)
    if rng.random() < 0.6:
        described = json.dumps(FEATURES if rng.random() < 0.3 else wrong(number, FEATURES)).encode()
        table = table.replace_schema_metadata(
            {b"huggingface": damaged(number, [described]) if rng.random() < 0.2 else described}
        )
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


@amounts
def test_parquet(tmp_path: Path, amount: int) -> None:
    good = [_whole(number) for number in range(40)]

    def attempt(number: int) -> None:
        (tmp_path / "data.parquet").write_bytes(damaged(number, good) if number % 2 else _whole(number))
        table = parquet.load(tmp_path / "data.parquet")
        sound(table, tmp_path)
        for i in range(min(len(table), 2)):
            table.images.name(i)

    fuzz("parquet", amount, attempt)


# Configurations

RECIPE = to_dict(
    Recipe(
        Data("digits-lt", imbalance=50),
        (
            Stage("teacher", "logit_adjusted", model="small", epochs=2, batch_size=64, optim=Optim(lr=0.05)),
            Stage(method="gml", settings={"k": 64, "k_m": 2, "learn_tau": True}, model="small", keys="teacher"),
        ),
    )
)
RECIPE = json.loads(json.dumps(RECIPE))  # lists for tuples, as in a file
YAML_WORDS = (
    b"&a",
    b"*a",
    b"!!python/object/apply:os.system",
    b"- ",
    b": ",
    b"{",
    b"}",
    b"[",
    b"\t",
    b"#",
    b"'",
    b"null",
)


@fewer
def test_config(tmp_path: Path, amount: int) -> None:
    """Text that is no recipe; and recipes with wrong values, which are checked against the data as before a run."""
    good = {".json": [json.dumps(RECIPE, indent=1).encode()], ".yaml": [yaml.safe_dump(RECIPE).encode()]}
    table = stages.load_data(Data("digits-lt", imbalance=50))

    def attempt(number: int) -> None:
        suffix = (".json", ".yaml")[number % 2]
        if number % 4 < 2:
            text = damaged(number, good[suffix], YAML_WORDS)
        else:
            tree = wrong(number, RECIPE)
            text = (json.dumps(tree) if suffix == ".json" else yaml.safe_dump(tree)).encode(errors="replace")
        (tmp_path / f"recipe{suffix}").write_bytes(text)
        recipe = recipes.load(tmp_path / f"recipe{suffix}")
        json.dumps(to_dict(recipe))
        if number % 4 >= 2:
            stages.check(recipe, table)

    fuzz("config", amount, attempt)


# Checkpoints and models


def small_method() -> tuple[Method, torch.optim.Optimizer]:
    backbone: Any = build("small")
    method = Method(backbone, build_objective("gml", np.array([9, 5, 3]), backbone.dim, {"k": 12, "kd_weight": 0.0}))
    return method, torch.optim.SGD(method.parameters(), lr=0.1, momentum=0.9)


@fewer
def test_checkpoint(tmp_path: Path, amount: int) -> None:
    """Mostly with the right checksum, so that the content is refused; put back into a method as a resumed run does."""
    method, optimiser = small_method()
    state = {"epoch": 1, "step": 0, "method": method.resume_state(), "optimiser": optimiser.state_dict()}
    state |= {"note": ("x", [1.5, None], np.arange(3), np.float32(2), {1: True})}
    good = checkpoint.save(tmp_path / "good", state, step=3).read_bytes()
    structure = json.loads(safetensors.torch.load(good).pop("structure").numpy().tobytes())

    def attempt(number: int) -> None:
        if number % 2:
            data = damaged(number, [good])
        else:
            tensors = safetensors.torch.load(good)
            text = json.dumps(wrong(number, structure)).encode()
            tensors["structure"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
            data = safetensors.torch.save(tensors)
        folder = tmp_path / "state"
        folder.mkdir(exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        name = hashlib.sha256(data).hexdigest()[:16] if number % 8 else "0" * 16
        (folder / f"step-000000003-{name}.safetensors").write_bytes(data)
        Resume(folder, method, optimiser, 3).load()

    fuzz("checkpoint", amount, attempt)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder as `trained.save` writes it."""
    folder = tmp_path_factory.mktemp("model")
    stage = Stage(method="gml", settings={"k": 12, "kd_weight": 0.0}, model="small", keys="momentum")
    about = {
        "classes": ["a", "b", "c"],
        "counts": [9, 5, 3],
        "image_size": [16, 16],
        "mean": [0.5] * 3,
        "std": [0.2] * 3,
    }
    trained.save(
        folder, small_method()[0], stage, about | {"interpolation": "bicubic", "crop_pct": 1.0, "resize": False}
    )
    return folder


@fewer
def test_model_card(tmp_path: Path, model: Path, amount: int) -> None:
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    card = json.loads((model / "model.json").read_text())

    def attempt(number: int) -> None:
        if number % 4:
            text = json.dumps(wrong(number, card)).encode()
        else:
            text = damaged(number, [json.dumps(card).encode()])
        (tmp_path / "model.json").write_bytes(text)
        trained.load(tmp_path)

    fuzz("model.json", amount, attempt)


@fewer
def test_safetensors(tmp_path: Path, model: Path, amount: int) -> None:
    """The weights of a model, its bank, a backbone's weights to start from, and a model in a single file."""
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    card = json.loads((model / "model.json").read_text())
    checkpoint.save_single(
        tmp_path / "single.safetensors", safetensors.torch.load_file(model / "model.safetensors"), card
    )
    names = ("model", "bank", "backbone", "single")
    good = {name: (tmp_path / f"{name}.safetensors").read_bytes() for name in names}
    backbone: Any = build("small")

    def attempt(number: int) -> None:
        name = names[number % 4]
        # The header is a hundredth of the file: half of the damage goes there.
        head, rest = good[name][: 8 + int.from_bytes(good[name][:8], "little")], good[name]
        data = damaged(number, [head]) + rest[len(head) :] if number % 8 < 4 else damaged(number, [rest])
        (tmp_path / f"{name}.safetensors").write_bytes(data)
        try:
            if name == "backbone":
                trained.load_backbone(backbone, tmp_path / "backbone.safetensors")
            elif name == "single":
                trained.load(tmp_path / "single.safetensors")
            else:
                if name == "model":
                    about = card | {"sha256": hashlib.sha256(data).hexdigest()}
                    (tmp_path / "model.json").write_text(json.dumps(about))
                trained.load(tmp_path)
        finally:
            (tmp_path / f"{name}.safetensors").write_bytes(good[name])
            (tmp_path / "model.json").write_text(json.dumps(card))

    fuzz("safetensors", amount, attempt)


# Images, scores and priors


def pictures() -> list[bytes]:
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8))
    deep = Image.fromarray(rng.integers(0, 65536, (9, 12), dtype=np.uint16))
    kinds = [
        ("JPEG", "RGB"),
        ("PNG", "RGBA"),
        ("PNG", "I;16"),
        ("GIF", "P"),
        ("BMP", "RGB"),
        ("TIFF", "L"),
        ("WEBP", "RGB"),
    ]
    encoded = []
    for kind, mode in kinds:
        out = io.BytesIO()
        (deep if mode == "I;16" else image.convert(mode)).save(out, kind)
        encoded.append(out.getvalue())
    return encoded


@amounts
def test_images(amount: int) -> None:
    good = pictures()

    def attempt(number: int) -> None:
        pixels = decode(damaged(number, good), "a.png")
        assert pixels.dtype == np.uint8
        assert pixels.shape[2:] == (3,)

    fuzz("images", amount, attempt)


@amounts
def test_scores_and_priors(tmp_path: Path, amount: int) -> None:
    out = io.BytesIO()
    arrays: dict[str, Any] = {"scores": np.zeros((2, 3), np.float32), "labels": np.array([0, 2])}
    arrays |= {"classes": np.array(["a", "b", "c"]), "counts": np.array([9, 5, 3]), "prior": np.array("train")}
    np.savez(out, **arrays)
    bag = [np.array(x) if not isinstance(x, dict) else np.zeros((2, 0)) for x in WRONG if x != ["x", 1] and x != [None]]
    priors = [b"a,0.5\nb,0.25\nc,0.25\n", b'{"a": 0.5, "b": 0.5, "c": 0}', b"class,count\na,5\nb,3\nc,1\n"]

    def attempt(number: int) -> None:
        if number % 3 == 0:
            path = tmp_path / ("prior.csv", "prior.json")[number % 2]
            path.write_bytes(damaged(number, priors, WORDS))
            assert from_file(path, ("a", "b", "c")).shape == (3,)
        elif number % 3 == 1:
            (tmp_path / "scores.npz").write_bytes(damaged(number, [out.getvalue()]))
            logits.load(tmp_path / "scores.npz")
        else:
            rng = random.Random(number)
            np.savez(tmp_path / "scores.npz", **(arrays | {rng.choice(list(arrays)): rng.choice(bag)}))
            logits.load(tmp_path / "scores.npz")

    fuzz("scores and priors", amount, attempt)


def test_good_inputs_are_accepted(tmp_path: Path, model: Path) -> None:
    """What is damaged above is right to begin with."""
    for number, data in enumerate([*CSV, *TXT]):
        path = tmp_path / f"{number}.{'csv' if data in CSV else 'txt'}"
        path.write_bytes(data)
        sound(lists.load(path), tmp_path)
    stages.check(recipes.from_dict(RECIPE), benchmarks.load("digits-lt"))
    trained.load(model)
    for data in pictures():
        decode(data, "a")
