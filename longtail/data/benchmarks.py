"""The standard benchmarks by name. Anything else is a path to one's own images.

CIFAR is found in whichever of its usual forms lies in the data root: the `cifar-*-python` folder of a torchvision
download, the binary version, or parquet in the Hugging Face layout.
"""

import io
import os
import pickle
import re
import warnings
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from longtail.data import listed, parquet, sources, tails
from longtail.data.columns import AS_USUAL, Columns, refuse
from longtail.data.listed import LISTED
from longtail.data.table import SPLITS, ImageTable, PixelStore, in_memory
from longtail.errors import LongtailError, NotHere

# Name -> imbalance: the usual one for those that are cut, their own for those that are lists.
CUT = {"digits-lt": 50, "cifar10-lt": 100, "cifar100-lt": 100, "cifar100-lt-dev": 100}
BENCHMARKS = CUT | {name: round(b.largest / b.smallest) for name, b in LISTED.items()}

FOLDERS = ("imagenet",)  # balanced ones, a folder for each split and in it one for each class, as published

DIGITS_TEST = 50  # test images a class

CIFAR_FOLDERS = {  # as torchvision, the binary archives and Hugging Face name them
    10: ("cifar-10-batches-py", "cifar-10-batches-bin", "cifar10"),
    100: ("cifar-100-python", "cifar-100-binary", "cifar100"),
}

# SHA-256 of the training labels in their original order: another order gives another subset than the published one.
CIFAR_ORDER = {
    10: "f5cfe00b0f00968c0cc5ff3b1d2de51b10e33efa277c2986f4e0fa63e58c9f4f",
    100: "8bf4935e7c77a3096270043c6f3b221b6ecb9c63d1a08608e9af66cff17e977a",
}


def is_benchmark(source: str, family: str = "") -> bool:
    """A benchmark's name, of the family digits, cifar, ... where one is given; never what only looks like one."""
    return source in BENCHMARKS and source.startswith(family)


def data_root(root: str | Path | None) -> Path:
    """Where data lies: as asked, else $LONGTAIL_DATA, else ./data."""
    return Path(root or os.environ.get("LONGTAIL_DATA") or "data").expanduser()


def load(
    source: Any,
    *,
    root: str | Path | None = None,
    imbalance: float | None = None,
    profile: str = "exp",
    subset_seed: int = 0,
    columns: Columns = AS_USUAL,
) -> ImageTable:
    """A benchmark by name, or one's own data; with `imbalance`, its training split is cut to a tail.

    One's own data is what `sources.load` takes: a path or a data set object. A benchmark without `imbalance` has its
    usual one, and imbalance 1 leaves it balanced. `root` is where benchmarks are looked for, and what the paths in a
    list are relative to.

    cifar100-lt-dev is cifar100-lt with its test images out of sight: it is reported on the training images that the
    tail leaves out, so that what is chosen by it is not chosen on the test split.
    """
    name = str(source) if isinstance(source, (str, Path)) else ""
    if name in BENCHMARKS:
        refuse(columns, name)
    if name in LISTED:
        table = listed.load(name, data_root(root))
    elif name in FOLDERS and not Path(name).exists():
        table = replace(sources.load(_needed(data_root(root) / name)), name=name)
    elif name in CUT:
        table = digits() if name == "digits-lt" else cifar(10 if name == "cifar10-lt" else 100, data_root(root))
        imbalance = CUT[name] if imbalance is None else imbalance
    elif re.fullmatch(r"[\w-]+", name) and not Path(name).exists():
        raise LongtailError(f"There is no benchmark and no file {name!r}; the benchmarks are {', '.join(BENCHMARKS)}.")
    else:
        table = sources.load(source, root=root, columns=columns)
    if imbalance is not None:
        cut = tails.with_the_rest_as_test if name == "cifar100-lt-dev" else tails.cut
        table = cut(table, imbalance, profile, subset_seed)
    if name not in BENCHMARKS:
        return table
    again = {"source": name, "root": None if root is None else str(root), "imbalance": imbalance}
    again |= {"profile": profile, "subset_seed": subset_seed}
    return replace(in_memory(table) if name in CUT else table, name=name, loaded=again)


def _needed(folder: Path) -> Path:
    if not folder.is_dir():
        raise NotHere(
            f"{folder.name} is not in {folder.parent.absolute()}: put {folder.name}/train and {folder.name}/val there, "
            "with a folder for each class, or name its place with --data-root or LONGTAIL_DATA."
        )
    return folder


def digits() -> ImageTable:
    """scikit-learn's 1,797 handwritten digits as 16 x 16 RGB; 50 drawn from each class are the test."""
    from sklearn.datasets import load_digits

    values, labels = load_digits(return_X_y=True)  # [N, 64] in 0..16
    labels = labels.astype(np.int32)
    grey = (values.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8).repeat(2, axis=1).repeat(2, axis=2)
    split = np.full(len(labels), SPLITS.index("train"), np.uint8)
    split[tails.subset(labels, np.full(10, DIGITS_TEST))] = SPLITS.index("test")
    pixels = np.stack([grey] * 3, axis=-1)
    return ImageTable(tuple(str(d) for d in range(10)), labels, split, PixelStore(pixels, "digit"), name="digits-lt")


def cifar(num_classes: int, root: Path) -> ImageTable:
    """All of CIFAR-10 or CIFAR-100, 50,000 training and 10,000 test images."""
    python, binary, hugging_face = CIFAR_FOLDERS[num_classes]
    name = f"cifar{num_classes}-lt"
    forms = (
        (python, _PYTHON_FILES[num_classes]["train"][0], _from_python),
        (binary, _BINARY_FILES[num_classes]["train"][0], _from_binary),
        (hugging_face, "train*.parquet", lambda folder, *_: parquet.load(folder, name=name)),
    )
    places = ((_folder(root, form), file, read) for form, file, read in forms)
    found = next(((folder, read) for folder, file, read in places if folder and any(folder.glob(file))), None)
    if found is None:
        raise NotHere(
            f"CIFAR-{num_classes} is not in {root.absolute()}: put the folder {python} (torchvision's download), "
            f"{binary} or {hugging_face} (train and test as parquet) there, or name its place with --data-root or "
            f"LONGTAIL_DATA."
        )
    folder, read = found
    try:
        table = read(folder, num_classes, name)
    except Exception as error:  # a damaged pickle can raise anything
        raise LongtailError(f"{folder} is damaged ({error}): remove it and fetch it again.") from error
    sizes = len(table.rows("train")), len(table.rows("test"))
    if sizes != (50_000, 10_000):
        raise LongtailError(
            f"{folder} has {sizes[0]:,} training and {sizes[1]:,} test images, not 50,000 and 10,000: remove it and "
            f"fetch it again."
        )
    order = sha256(table.labels[table.rows("train")].astype("<i8").tobytes()).hexdigest()
    if order != CIFAR_ORDER[num_classes]:
        warnings.warn(
            f"The training images in {folder} are not in their original order: a subset is not the published one.",
            stacklevel=2,
        )
    return table


def _folder(root: Path, name: str) -> Path | None:
    return next((folder for folder in (root / name, root) if folder.name == name and folder.is_dir()), None)


# --- the original files: each image is 3 x 32 x 32 bytes, channels first ---

_PYTHON_FILES = {
    10: {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"], "meta": ["batches.meta"]},
    100: {"train": ["train"], "test": ["test"], "meta": ["meta"]},
}
_BINARY_FILES = {
    10: {
        "train": [f"data_batch_{i}.bin" for i in range(1, 6)],
        "test": ["test_batch.bin"],
        "meta": ["batches.meta.txt"],
    },
    100: {"train": ["train.bin"], "test": ["test.bin"], "meta": ["fine_label_names.txt"]},
}


def _from_python(folder: Path, num_classes: int, name: str) -> ImageTable:
    labels_key, names_key = (b"labels", b"label_names") if num_classes == 10 else (b"fine_labels", b"fine_label_names")
    files = _PYTHON_FILES[num_classes]
    parts = {split: [unpickle(folder / file) for file in files[split]] for split in ("train", "test")}
    classes = [c.decode() for c in unpickle(folder / files["meta"][0])[names_key]]
    return _cifar_table(
        classes,
        {split: np.concatenate([part[labels_key] for part in batches]) for split, batches in parts.items()},
        {split: np.concatenate([part[b"data"] for part in batches]) for split, batches in parts.items()},
        name,
    )


def _from_binary(folder: Path, num_classes: int, name: str) -> ImageTable:
    files = _BINARY_FILES[num_classes]
    heading = 1 if num_classes == 10 else 2  # CIFAR-100 has the coarse label before the fine one
    rows = {
        split: np.concatenate(
            [np.fromfile(folder / file, np.uint8).reshape(-1, heading + 3072) for file in files[split]]
        )
        for split in ("train", "test")
    }
    classes = (folder / files["meta"][0]).read_text().split()
    return _cifar_table(
        classes,
        {split: part[:, heading - 1] for split, part in rows.items()},
        {split: part[:, heading:] for split, part in rows.items()},
        name,
    )


def _cifar_table(
    classes: list[str], labels: dict[str, np.ndarray], data: dict[str, np.ndarray], name: str
) -> ImageTable:
    pixels = np.concatenate([data["train"], data["test"]]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    split = np.repeat([SPLITS.index("train"), SPLITS.index("test")], [len(data["train"]), len(data["test"])])
    return ImageTable(
        tuple(classes),
        np.concatenate([labels["train"], labels["test"]]).astype(np.int32),
        split.astype(np.uint8),
        PixelStore(np.ascontiguousarray(pixels), name),
        name=name,
    )


class _ArraysOnly(pickle.Unpickler):
    """Containers, bytes and NumPy arrays. Any other call a pickle makes is refused: the file came from the internet."""

    ALLOWED = frozenset(
        [(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")]
        + [(f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")]
        + [("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")]
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it wants to call {module}.{name}")
        return super().find_class(module, name)


def unpickle(path: Path) -> dict[bytes, Any]:
    return _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
