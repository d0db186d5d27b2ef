"""Images in arrow columns: parquet in the Hugging Face layout, and Hugging Face data sets themselves.

One column has the encoded images (a struct of `bytes` and `path`, or plain bytes) or their paths, another the class.
The names of the classes are in the `huggingface` entry of the schema's metadata.
"""

# pyright: reportAttributeAccessIssue=false
# pyarrow makes its compute functions when it is imported.

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from longtail.data.classes import index_labels, read_classes
from longtail.data.columns import AS_USUAL, Columns, find, find_required, group_codes, split_codes
from longtail.data.lists import relative, split_in_name
from longtail.data.table import SPLITS, BytesStore, FileStore, ImageStore, ImageTable
from longtail.errors import LongtailError


def load(path: Path, *, root: Path | None = None, columns: Columns = AS_USUAL, name: str | None = None) -> ImageTable:
    """One file, or all files of a folder; a file's split is the one in its name or in that of a folder it lies in."""
    folder, files = (path, sorted(path.rglob("*.parquet"))) if path.is_dir() else (path.parent, [path])
    try:
        _refuse_too_large(files, path)
        parts = [pq.read_table(file) for file in files]
        rows = pa.concat_tables(parts, promote_options="default")
        rows.validate(full=True)  # a text may have bytes that are none, which pyarrow says only when it is asked
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise LongtailError(f"{path} cannot be read as parquet: {str(error).splitlines()[0]}") from error
    split = np.repeat([_split_of(file.relative_to(folder)) for file in files], [len(part) for part in parts])
    named = _class_names((rows.schema.metadata or {}).get(b"huggingface", b"{}"))
    try:
        return from_arrow(rows, split, named, read_classes(folder), columns, root or folder, name or path.name)
    except (pa.ArrowException, KeyError) as error:  # columns of kinds that are no labels, splits or images
        raise LongtailError(f"{path} is no table of images: {str(error).splitlines()[0]}") from error


def _class_names(described: bytes) -> dict[str, list[str]]:
    """The names of the columns that are classes; of a description that is none, none."""
    try:
        features = json.loads(described)["info"]["features"]
        named = {column: feature["names"] for column, feature in features.items() if "names" in feature}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}
    return {
        column: names
        for column, names in named.items()
        if isinstance(names, list)
        and all(isinstance(name, str) for name in names)
        and 0 < len(set(names)) == len(names)
    }


def from_datasets(data: Any, *, columns: Columns = AS_USUAL, name: str = "dataset") -> ImageTable:
    """A `datasets.Dataset` or `DatasetDict`: its arrow table, which stays on disk where it is memory-mapped."""
    parts, split = [], []
    splits = data if isinstance(data, dict) else {str(data.split or "train"): data}
    for split_name, part in splits.items():
        code = split_in_name(split_name)
        if code is None:
            raise LongtailError(f'{name}: its split "{split_name}" is none of train, validation and test.')
        parts.append(part.with_format("arrow")[:])
        split += [code] * len(part)
    features = next(iter(splits.values())).features
    named = {column: feature.names for column, feature in features.items() if hasattr(feature, "names")}
    rows = pa.concat_tables(parts, promote_options="default")
    return from_arrow(rows, np.array(split, np.uint8), named, None, columns, Path("/"), name)


def from_arrow(
    rows: pa.Table,
    split: np.ndarray,
    named: dict[str, list[str]],
    classes: tuple[str, ...] | None,
    columns: Columns,
    root: Path,
    name: str,
) -> ImageTable:
    """`named` has the class names of the columns that are classes; `classes` overrules it."""
    if not len(rows):
        raise LongtailError(f"{name} has no rows.")
    names = rows.column_names
    named = {column: of for column, of in named.items() if column in names}
    label_column = find("label", columns.label, names, name) or (next(iter(named)) if len(named) == 1 else None)
    label_column = label_column or find_required("label", None, names, name)
    labels = rows[label_column]
    if pa.types.is_nested(labels.type):
        raise LongtailError(f"{name}: column {label_column!r} has lists, but each image must have exactly one class.")
    if classes is None and label_column in named:
        classes = tuple(named[label_column])
    classes, codes = index_labels(labels, classes, name)
    if split_column := find("split", columns.split, names, name):
        split = split_codes(rows[split_column], name)
    group_column = find("group", columns.group, names, name)
    groups = None if group_column is None else group_codes(rows[group_column])
    images = rows[find_required("image", columns.image, names, name)]
    return ImageTable(classes, codes, split.astype(np.uint8), _store(images, root, name), groups, name=name)


def _store(images: pa.ChunkedArray, root: Path, name: str) -> ImageStore:
    if pa.types.is_struct(images.type):
        encoded, paths = pc.struct_field(images, "bytes"), pc.struct_field(images, "path")
        if encoded.null_count < len(encoded):
            return BytesStore(encoded, paths)
        images = paths
    if pa.types.is_string(images.type) or pa.types.is_large_string(images.type):
        return FileStore(root, relative(images, root, name))
    if pa.types.is_binary(images.type) or pa.types.is_large_binary(images.type):
        return BytesStore(images, pa.chunked_array([pa.nulls(len(images), pa.string())]))
    raise LongtailError(f"{name}: its image column has {images.type}, neither encoded images nor paths.")


def _split_of(file: Path) -> int:
    codes = (split_in_name(part) for part in reversed(file.parts))
    return next((code for code in codes if code is not None), SPLITS.index("train"))


def _refuse_too_large(files: list[Path], path: Path) -> None:
    metadata = [pq.read_metadata(file) for file in files]
    size = sum(part.row_group(i).total_byte_size for part in metadata for i in range(part.num_row_groups))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > 0.8 * memory:
        raise LongtailError(
            f"{path} needs {size / 2**30:.0f} GB of memory and there are {memory / 2**30:.0f}: unpack it into "
            f"a folder of class folders, or save it with `save_to_disk` of datasets, which is read from the disk."
        )
