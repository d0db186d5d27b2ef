"""Anybody's images -> ImageTable."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from longtail.data.table import SPLITS, BytesStore, ImageTable
from longtail.errors import LongtailError

SPLIT_NAMES = {"train": 0, "training": 0, "val": 1, "valid": 1, "validation": 1, "dev": 1, "test": 2, "testing": 2}
LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "category", "target")


def load(source: str | Path) -> ImageTable:
    path = Path(source)
    if path.is_dir() and any(path.rglob("*.parquet")):
        return load_parquet(path)
    raise LongtailError(f"There is no data at {path.absolute()}.")


def load_parquet(path: Path, *, name: str | None = None, label_column: str | None = None) -> ImageTable:
    """Parquet in the Hugging Face layout: `train-*.parquet` and so on, encoded images, class names in the metadata."""
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    tables = [pq.read_table(file) for file in files]
    split = np.repeat([_split_of(file, path) for file in files], [len(table) for table in tables]).astype(np.uint8)
    rows = pa.concat_tables(tables)
    features = json.loads((rows.schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    image_column = next(c for c in rows.column_names if pa.types.is_struct(rows.schema.field(c).type))
    label_column = label_column or next(c for c in LABEL_COLUMNS if c in rows.column_names)
    labels = rows.column(label_column).to_numpy()
    classes = features.get(label_column, {}).get("names") or [str(c) for c in range(labels.max() + 1)]
    encoded, names = (
        pa.chunked_array([chunk.field(field) for chunk in rows.column(image_column).chunks])
        for field in ("bytes", "path")
    )
    return ImageTable(
        tuple(classes), labels.astype(np.int32), split, BytesStore(encoded, names), name=name or path.name
    )


def _split_of(file: Path, root: Path) -> int:
    """A file's split is the first word of its name or of a folder on the way to it that names one."""
    parts = file.relative_to(root).parts if file != root else (file.name,)
    words = (re.split(r"[-_.]", part)[0].lower() for part in reversed(parts))
    return next((SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES), SPLITS.index("train"))
