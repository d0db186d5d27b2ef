"""Lists of images: CSV, TSV and TXT files, gzipped or not, read into and written from a table.

A row is `path,label[,split][,group]`, under a header or, without one, in this order. A TXT file may also be a
`path label` list as ImageNet-LT, Places-LT and iNaturalist 2018 have them. Paths are relative to the root. Lists whose
names differ by train, val and test alone belong together: naming one reads them all.
"""

# pyright: reportAttributeAccessIssue=false
# pyarrow makes its compute functions when it is imported.

import csv
import gzip
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from longtail.data.classes import index_labels, read_classes
from longtail.data.columns import AS_USUAL, SPLIT_CODES, USUAL, Columns, find, find_required, group_codes, split_codes
from longtail.data.table import SPLITS, FileStore, ImageTable
from longtail.errors import LongtailError

_SPLIT_IN_NAME = re.compile(rf"(?<![a-z])({'|'.join(SPLIT_CODES)})(?![a-z])", re.IGNORECASE)
_PATH_SPACE_LABEL = re.compile(r".*\.\w{2,5} +\S+ *$")


def is_list(path: Path) -> bool:
    return path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv", ".txt"))


def split_in_name(name: str) -> int | None:
    """ImageNet_LT_val.txt, test-00000-of-00001.parquet: the split a file's name says, as an index into SPLITS."""
    words = _SPLIT_IN_NAME.findall(name)
    return SPLIT_CODES[words[-1].lower()] if words else None


def load(path: Path, *, root: Path | None = None, columns: Columns = AS_USUAL) -> ImageTable:
    """The list and its family, x_train.txt, x_val.txt, x_test.txt, whichever of them there are."""
    files = [path]
    if split_in_name(path.name) is not None:
        family = _SPLIT_IN_NAME.sub("*", path.name)
        same = [p for p in path.parent.iterdir() if is_list(p) and _SPLIT_IN_NAME.sub("*", p.name) == family]
        files = sorted({path, *same}, key=lambda p: (split_in_name(p.name), p.name))
    return load_files(files, root=root or path.parent, columns=columns, name=path.name)


def load_files(
    files: Sequence[Path], *, root: Path, columns: Columns = AS_USUAL, name: str | None = None
) -> ImageTable:
    """Several lists as one table; a file's split is the one its name says."""
    where = str(files[0])
    rows = pa.concat_tables([_read(file, columns) for file in files], promote_options="default")
    if not len(rows):
        raise LongtailError(f"{where} lists no image.")
    classes, labels = index_labels(rows["label"], read_classes(files[0].parent), where)
    paths = relative(rows["path"], root, where)
    _refuse_two_classes(paths, labels, classes, where)
    groups = group_codes(rows["group"]) if "group" in rows.column_names else None
    split = split_codes(rows["split"], where)
    del rows
    pa.default_memory_pool().release_unused()  # reading takes ten times what the table keeps
    return ImageTable(classes, labels, split, FileStore(root, paths), groups, name=name or files[0].name)


def save(table: ImageTable, path: Path) -> None:
    """Write the table as a CSV, and its class list as `classes.txt` beside it. Its images must be files."""
    if not isinstance(table.images, FileStore):
        raise LongtailError(f"{table.name} holds its images itself: a list of paths cannot stand for it.")
    (path.parent / "classes.txt").write_text("".join(f"{name}\n" for name in table.classes), encoding="utf-8")
    columns = {
        "path": table.images.paths,
        "label": pa.DictionaryArray.from_arrays(table.labels, pa.array(table.classes)).cast(pa.string()),
        "split": pa.DictionaryArray.from_arrays(table.split, pa.array(SPLITS)).cast(pa.string()),
    }
    if table.groups is not None:
        columns["group"] = pa.array(table.groups)
    pyarrow.csv.write_csv(pa.table(columns), path)


def _read(file: Path, columns: Columns) -> pa.Table:
    """path, label, split and, where there is one, group: all strings."""
    try:
        raw = file.read_bytes()
        text = (gzip.decompress(raw) if file.suffix == ".gz" else raw).decode("utf-8-sig")
        first = next((line for line in text.split("\n", 100) if line.strip()), "").strip("\r")
        if not first:
            raise LongtailError(f"{file} lists no image.")
        if file.name.removesuffix(".gz").endswith(".txt") and _PATH_SPACE_LABEL.match(first):
            rows = _read_path_label(text, file)
        else:
            rows = _read_delimited(text, first, file, columns)
    except UnicodeDecodeError as error:
        raise LongtailError(f"{file} is not UTF-8 text: save it as UTF-8.") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise LongtailError(f"{file} is not a whole gzip file: fetch it again.") from error
    except OSError as error:
        raise LongtailError(f"{file} cannot be read ({error.strerror or error}).") from error
    except csv.Error as error:
        raise LongtailError(f"{file} is not a table: {error}.") from error
    except pa.ArrowInvalid as error:
        raise LongtailError(f"{file} is not a table: {str(error).splitlines()[0]}") from error
    if "split" not in rows.column_names:
        split = SPLITS[split_in_name(file.name) or 0]
        rows = rows.append_column("split", pa.repeat(pa.scalar(split), len(rows)))
    return rows


def _read_path_label(text: str, file: Path) -> pa.Table:
    lines = pa.array([line for line in text.split("\n") if line.strip()])
    fields = pc.extract_regex(lines, r"^(?P<path>.*\S)\s+(?P<label>\S+)\s*$")
    if fields.null_count:
        bad = lines.filter(fields.is_null())[0]
        raise LongtailError(f'{file} has the line "{str(bad)[:80]}", which is not a path and a label.')
    return pa.table({"path": fields.field("path"), "label": fields.field("label")})


def _read_delimited(text: str, first: str, file: Path, columns: Columns) -> pa.Table:
    delimiter = "\t" if "\t" in first else ";" if ";" in first and "," not in first else ","
    cells = next(csv.reader([first], delimiter=delimiter), [])
    names = [cell.strip() for cell in cells]
    usual = {name for kind in USUAL.values() for name in kind} | {columns.image, columns.label}
    header = any(name in usual or name.lower() in usual for name in names) and "." not in names[0]
    if not header:
        names = [f"column {i + 1}" for i in range(len(cells))]
    table = pyarrow.csv.read_csv(
        pa.py_buffer(text.encode()),
        read_options=pyarrow.csv.ReadOptions(column_names=names, skip_rows_after_names=int(header)),
        parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter),
        convert_options=pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
    )
    if header:
        where = str(file)
        wanted = {
            "path": find_required("image", columns.image, names, where),
            "label": find_required("label", columns.label, names, where),
            "split": find("split", columns.split, names, where),
            "group": find("group", columns.group, names, where),
        }
    else:
        if len(names) < 2:
            raise LongtailError(f'{file} begins with "{first[:80]}", which is not a path and a label.')
        third_is_split = len(names) > 2 and str(table[2][0]).strip().lower() in SPLIT_CODES
        kinds = ("path", "label", "split", "group") if third_is_split else ("path", "label", "group")
        wanted = dict(zip(kinds, names, strict=False))
    return pa.table({kind: table[name] for kind, name in wanted.items() if name is not None})


def relative(paths: pa.ChunkedArray, root: Path, where: str) -> pa.Array:
    """Paths as they are under the root, with forward slashes; one that would leave it is refused."""
    paths = pc.replace_substring(paths.combine_chunks(), "\\", "/")
    prefix = f"{root.absolute().as_posix().rstrip('/')}/"
    inside = pc.starts_with(paths, prefix)
    paths = pc.if_else(inside, pc.utf8_slice_codeunits(paths, len(prefix)), paths)
    leaves = pc.match_substring_regex(paths, r"^(/|[A-Za-z]:)|(^|/)\.\.(/|$)|^\s*$|\x00")
    if pc.any(leaves).as_py():
        raise LongtailError(
            f'{where}: the path "{paths.filter(leaves)[0]}" does not lead to a file under {root.absolute()}; '
            f"make it relative or name another root with --data-root."
        )
    return paths


def _refuse_two_classes(paths: pa.Array, labels: np.ndarray, classes: tuple[str, ...], where: str) -> None:
    rows = pa.table({"path": paths, "label": labels})
    spans = rows.group_by("path").aggregate([("label", "min"), ("label", "max")])
    several = spans.filter(pc.not_equal(spans["label_min"], spans["label_max"]))
    if len(several):
        row = several.slice(0, 1).to_pylist()[0]
        one, other = classes[row["label_min"]], classes[row["label_max"]]
        raise LongtailError(
            f'{where}: "{row["path"]}" is listed as "{one}" and as "{other}", but each image must have one class.'
        )
