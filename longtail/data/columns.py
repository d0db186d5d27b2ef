"""Finding the columns of somebody's table, and turning them into a table's codes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from longtail.errors import LongtailError


@dataclass(frozen=True)
class Columns:
    """Names of the columns, where they are not among the usual ones."""

    image: str | None = None
    label: str | None = None
    split: str | None = None
    group: str | None = None


AS_USUAL = Columns()

USUAL = {
    "image": ("image", "img", "path", "file", "filename", "file_name", "filepath", "file_path", "image_path"),
    "label": ("label", "labels", "fine_label", "class", "class_name", "category", "species", "target"),
    "split": ("split", "subset", "set", "partition"),
    "group": ("group",),
}

SPLIT_CODES = {  # index into SPLITS by every word that is used for it
    **dict.fromkeys(("train", "training"), 0),
    **dict.fromkeys(("val", "valid", "validation", "dev"), 1),
    **dict.fromkeys(("test", "testing"), 2),
}


def refuse(columns: Columns, what: str) -> None:
    """Of data that have no columns: a column that was asked for would be left out without a word."""
    for kind, name in vars(columns).items():
        if name is not None:
            raise LongtailError(
                f"{what} has no columns, so --{kind}-column {name} says nothing: give a list with that column instead."
            )


def find(kind: str, asked: str | None, names: Sequence[str], where: str) -> str | None:
    """The column of this kind: the one asked for, else the first usual one there is."""
    if asked is not None and asked not in names:
        raise LongtailError(f"{where} has no column {asked!r}; its columns are {', '.join(names)}.")
    lower = {name.strip().lower(): name for name in reversed(names)}
    return asked or next((lower[usual] for usual in USUAL[kind] if usual in lower), None)


def find_required(kind: str, asked: str | None, names: Sequence[str], where: str) -> str:
    name = find(kind, asked, names, where)
    if name is None:
        raise LongtailError(
            f"{where} has no column for the {kind}; its columns are {', '.join(names)}: name one with --{kind}-column "
            f"(one column a class is multi-label data, which is not supported)."
        )
    return name


def split_codes(values: pa.ChunkedArray, where: str) -> np.ndarray:
    encoded = values.cast(pa.string()).combine_chunks().dictionary_encode(null_encoding="encode")
    words = [(word or "").strip().lower() for word in encoded.dictionary.to_pylist()]
    for word in words:
        if word not in SPLIT_CODES:
            raise LongtailError(f'{where}: the split "{word}" is none of {", ".join(SPLIT_CODES)}.')
    return np.array([SPLIT_CODES[word] for word in words], np.uint8)[encoded.indices.to_numpy(zero_copy_only=False)]


def group_codes(values: pa.ChunkedArray) -> np.ndarray:
    """A row without a group is a group of its own."""
    encoded = values.cast(pa.string()).combine_chunks().dictionary_encode(null_encoding="encode")
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int32)
    alone = np.isin(codes, [code for code, name in enumerate(encoded.dictionary.to_pylist()) if not name])
    return np.where(alone, len(encoded.dictionary) + np.cumsum(alone) - 1, codes).astype(np.int32)
