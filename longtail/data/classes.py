"""The class list: which classes there are, in which order.

A file `classes.txt` beside the data, one name a line, decides it. Without one, names are sorted, and whole numbers are
indices as they stand: labels 0, 1, 3 are four classes, of which one has no image.
"""

import re
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa

from longtail.errors import LongtailError


def read_classes(folder: Path) -> tuple[str, ...] | None:
    file = folder / "classes.txt"
    if not file.is_file():
        return None
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise LongtailError(f"{file} is not UTF-8 text: save it as UTF-8.") from error
    except OSError as error:
        raise LongtailError(f"{file} cannot be read ({error.strerror}).") from error
    classes = tuple(plain(line) for line in text.split("\n") if line.strip())
    if len(set(classes)) < len(classes):
        twice = next(c for c in classes if classes.count(c) > 1)
        raise LongtailError(f'{file} lists the class "{twice}" twice: leave one.')
    return classes


def plain(name: str) -> str:
    """One spelling for one name: the same é may be one code point or two, depending on the system that wrote it."""
    return unicodedata.normalize("NFC", name).strip()


def index_labels(
    values: pa.ChunkedArray, classes: tuple[str, ...] | None, where: str
) -> tuple[tuple[str, ...], np.ndarray]:
    """A column of names or whole numbers -> (class list, int32 label of each row).

    Beside a class list a column of integers holds indices into it; a text is looked up among the names first.
    """
    are_indices = classes is not None and pa.types.is_integer(values.type)
    encoded = values.cast(pa.string()).combine_chunks().dictionary_encode(null_encoding="encode")
    names = [plain(name or "") for name in encoded.dictionary.to_pylist()]
    codes = encoded.indices.to_numpy(zero_copy_only=False)

    def refuse(name: str, why: str) -> LongtailError:
        row = int(np.flatnonzero(codes == names.index(name))[0])
        return LongtailError(f"{where}, image {row + 1}: {why}")

    listed = set(classes or ())
    known = listed | set(names)
    for name in names:
        if name in listed:
            continue
        if name in ("", "-1"):
            raise refuse(name, "has no label; fill it in or take the row out.")
        if _is_several(name, known):
            raise refuse(
                name,
                f'the label "{name}" names several classes, but each image must have exactly one (if it is the name of '
                f"one class, list it in classes.txt).",
            )
    if classes is None:
        classes = _class_list(names)
    index = {} if are_indices else {name: c for c, name in enumerate(classes)}
    for name in names:
        if name not in index and name.isdecimal() and int(name) < len(classes):
            index[name] = int(name)
        elif name not in index:
            raise refuse(name, f'the label "{name}" is not one of the {len(classes)} classes; add it to their list.')
    return classes, np.array([index[name] for name in names], np.int32)[codes]


def _is_several(label: str, known: set[str]) -> bool:
    """cat|dog, [1, 2] and 3,7 are several labels; cat,dog is where there are cats and dogs besides."""
    if "|" in label or ";" in label or (label[0] in "[({" and label[-1] in "])}"):
        return True
    parts = [part.strip() for part in re.split(r"[,+&/]", label)]
    return len(parts) > 1 and (all(part in known for part in parts) or all(part.isdecimal() for part in parts))


def _class_list(names: list[str]) -> tuple[str, ...]:
    if not all(name.isdecimal() for name in names):
        return tuple(sorted(set(names)))
    numbers = sorted({int(name) for name in names})
    # Numbers that are mostly gaps (a taxon 48,112) are names, not indices.
    gaps = numbers[-1] + 1 > 2 * len(numbers)
    return tuple(sorted(set(names), key=int) if gaps else map(str, range(numbers[-1] + 1)))
