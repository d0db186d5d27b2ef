"""Anybody's images -> ImageTable: a folder, a list, parquet, a Hugging Face data set, a torchvision data set."""

from pathlib import Path
from typing import Any

from longtail.data import folders, lists, parquet
from longtail.data.columns import AS_USUAL, Columns, refuse
from longtail.data.table import ImageTable
from longtail.errors import LongtailError
from longtail.offline import hub


def load(
    source: Any, *, root: str | Path | None = None, columns: Columns = AS_USUAL, name: str | None = None
) -> ImageTable:
    """`source` is a path, `hf:` and the name of a Hugging Face data set, or a data set object. The paths of a list are
    relative to `root`, without one to the list's own folder."""
    if isinstance(source, str) and source.startswith("hf:"):
        datasets = _datasets()
        try:
            with hub():
                data = datasets.load_dataset(source[3:])
            return parquet.from_datasets(data, columns=columns, name=source[3:])
        except (OSError, ValueError) as error:  # what `datasets` raises for no network, no such set, no such version
            raise LongtailError(f"{source} cannot be loaded: {str(error).splitlines()[0]}") from error
    if not isinstance(source, (str, Path)):
        if hasattr(source, "features") or any(hasattr(part, "features") for part in _values(source)):
            return parquet.from_datasets(source, columns=columns, name=name or "dataset")
        from longtail.data import objects

        refuse(columns, name or type(source).__name__)
        return objects.load(source, name)
    path, root = Path(source).expanduser(), Path(root).expanduser() if root else None
    if path.is_dir():
        if (path / "dataset_dict.json").exists() or (path / "dataset_info.json").exists():
            return parquet.from_datasets(_datasets().load_from_disk(str(path)), columns=columns, name=path.name)
        if any(path.glob("*.parquet")) or any(path.glob("*/*.parquet")):
            return parquet.load(path, root=root, columns=columns)
        refuse(columns, str(path))
        return folders.load(path)
    if lists.is_list(path) and path.is_file():
        return lists.load(path, root=root, columns=columns)
    if path.suffix == ".parquet" and path.is_file():
        return parquet.load(path, root=root, columns=columns)
    found = "is no folder, CSV, TSV, TXT or parquet file" if path.exists() else "does not exist"
    raise LongtailError(f"{path.absolute()} {found}: give a folder of class folders, a list or a benchmark's name.")


def _values(source: Any) -> list[Any]:
    return list(source.values()) if isinstance(source, dict) else []


def _datasets() -> Any:
    try:
        import datasets
    except ImportError:
        raise LongtailError("Hugging Face data sets need one more package: pip install datasets.") from None
    return datasets
