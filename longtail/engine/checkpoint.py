"""What a run needs to continue, and what a model needs to answer, on disk; without pickle.

A checkpoint is one safetensors file. The nested state is cut into its tensors and a JSON description of the rest, which
rides along as one more tensor. Opening such a file executes nothing, whoever wrote it.

    state/step-000001200-8c5d1f0e6b7a4c92.safetensors

The name carries the step and the first 64 bits of the file's SHA-256: the checksum covers every byte, header included,
and neither a torn write nor a flipped bit goes unnoticed. (CRC-32 is three times as fast and would let one damaged file
in 2^32 pass; SHA-256 takes a third of the time of the write itself, once an epoch.) The two newest are kept.
"""

import hashlib
import json
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from longtail.errors import LongtailError
from longtail.files import atomic, cannot_write, read_json, write_json

CHECKPOINT_FORMAT = 1
MODEL_FORMAT = 1

_NAME = re.compile(r"step-(\d{9,})-([0-9a-f]{16})\.safetensors")
_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8",
    torch.bool: "BOOL", torch.complex64: "C64",
}  # fmt: skip


# Checkpoints


def save(folder: Path, state: Any, step: int) -> Path:
    """Write `state` as the newest checkpoint and drop all but the one before it.

    Steps only grow within a run, so a checkpoint of a later step is one that `load` had refused: it is dropped too,
    and never counts as the good one to fall back on.
    """
    pieces = _safetensors(_flatten(state))
    path = folder / f"step-{step:09d}-{_sha256(pieces)[:16]}.safetensors"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob("*.tmp"):  # of a writer that was killed
            leftover.unlink(missing_ok=True)
        with atomic(path) as file:
            for piece in pieces:
                file.write(piece)
        generations = _generations(folder)
        previous = next((older for older in generations if _step(older) < step), None)
        for other in generations:
            if other not in (path, previous):
                other.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error
    return path


def load(folder: Path) -> Any:
    """The newest good state, on the CPU; None where none was ever saved; an error where none of them is good."""
    refused: list[str] = []
    for path in _generations(folder):
        try:
            state = _read(path)
        except _Damaged as damage:
            refused.append(f"{path.name} {damage}")
            continue
        if refused:
            warnings.warn(f"in {folder}, {' and '.join(refused)}; continuing from {path.name}", stacklevel=2)
        return state
    if refused:
        raise LongtailError(
            f"no checkpoint in {folder} can be used ({' and '.join(refused)}): start again with another --out"
        )
    return None


class _Damaged(Exception):
    """Why one checkpoint cannot be used; the other may be."""


def _step(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match
    return int(match[1])


def _generations(folder: Path) -> list[Path]:
    """Checkpoints, newest first."""
    found = [path for path in folder.glob("step-*") if _NAME.fullmatch(path.name)]
    return sorted(found, key=_step, reverse=True)


def _read(path: Path) -> Any:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _Damaged(f"cannot be read ({error.strerror})") from error
    if _sha256([data])[:16] != path.stem.rpartition("-")[2]:
        raise _Damaged("is damaged (its checksum differs)")
    try:
        tensors = safetensors.torch.load(data)
        described = json.loads(tensors.pop("structure").numpy().tobytes())
        if described["format"] <= CHECKPOINT_FORMAT:
            return _unflatten(described["state"], tensors)
    except Exception as error:  # a forged file may be wrong in any way; it must not be wrong in ours
        raise _Damaged(f"is not a checkpoint ({type(error).__name__})") from error
    raise LongtailError(f"{path} was written by a newer longtail (format {described['format']}): upgrade to read it")


# Nested state <-> named tensors


def _flatten(state: Any) -> dict[str, Tensor]:
    """Tensors by name, and under "structure" the JSON that puts them back together.

    In it, None, bools, numbers and strings stand for themselves; anything else is a list that begins with its kind:
    ["dict", [key, value], ...], ["list", ...], ["tuple", ...], ["tensor", name, dims], ["array" or "scalar", name].
    """
    tensors: dict[str, Tensor] = {}
    names: dict[tuple[Any, ...], str] = {}  # view of memory -> name: tied tensors are stored once and come back tied

    def put(tensor: Tensor, path: str) -> str:
        view = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        name = f"{len(tensors)} {path}".encode(errors="backslashreplace").decode()
        if tensor.numel():
            name = names.setdefault(view, name)
        tensors[name] = tensor
        return name

    def pack(value: Any, path: str) -> Any:
        if isinstance(value, np.generic):
            return ["scalar", put(torch.from_numpy(np.array(value)), path)]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Tensor):
            # Stored in the order it has in memory: channels-last momentum must come back channels-last, since other
            # strides may take another kernel, whose last bits differ. (Views with gaps come back without them.)
            dims = sorted(range(value.ndim), key=lambda d: (-value.stride(d), -value.shape[d]))
            name = put(value.detach().permute(dims), path)
            return ["tensor", name, [dims.index(d) for d in range(value.ndim)]]
        if isinstance(value, np.ndarray):
            return ["array", put(torch.from_numpy(np.array(value, order="C")), path)]
        if isinstance(value, dict):
            return ["dict", *([pack(key, path), pack(item, f"{path}/{key}")] for key, item in value.items())]
        if isinstance(value, list | tuple):
            kind = "list" if isinstance(value, list) else "tuple"
            return [kind, *(pack(item, f"{path}/{i}") for i, item in enumerate(value))]
        raise TypeError(f"a {type(value).__name__} cannot be saved without pickle (at {path or 'the top'})")

    described = {"format": CHECKPOINT_FORMAT, "state": pack(state, "")}
    tensors["structure"] = torch.frombuffer(bytearray(json.dumps(described).encode()), dtype=torch.uint8)
    return tensors


def _unflatten(node: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(node, list):
        return node
    match node:
        case ["dict", *items]:
            return {_unflatten(key, tensors): _unflatten(item, tensors) for key, item in items}
        case ["list", *items]:
            return [_unflatten(item, tensors) for item in items]
        case ["tuple", *items]:
            return tuple(_unflatten(item, tensors) for item in items)
        case ["tensor", name, dims]:
            return tensors[name].permute(dims)
        case ["array", name]:
            return tensors[name].numpy()
        case ["scalar", name]:
            return tensors[name].numpy()[()]
    raise ValueError("unknown kind")


# Files of tensors


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write one safetensors file, whole or not at all, and return its SHA-256."""
    pieces = _safetensors(tensors)
    with atomic(path) as file:
        for piece in pieces:
            file.write(piece)
    return _sha256(pieces)


def _safetensors(tensors: Mapping[str, Tensor]) -> list[Any]:
    """The pieces of a safetensors file: header length, header, and each tensor's own memory.

    The library's writer copies everything twice, or writes to a path by itself; here the checksum is needed before the
    name is, and nothing is copied that lies in memory as it shall lie on disk.
    """
    # Widest first, so that every tensor is aligned to its own size.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    flat = [tensor.detach().cpu().contiguous().as_strided((tensor.numel(),), (1,)) for _, tensor in ordered]
    buffers = [tensor.view(torch.uint8).numpy() for tensor in flat]
    ends = list(accumulate(len(buffer) for buffer in buffers))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for (name, tensor), buffer, end in zip(ordered, buffers, ends, strict=True):
        if tensor.dtype not in _DTYPES:
            raise TypeError(f"safetensors cannot hold {tensor.dtype} ({name})")
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [end - len(buffer), end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *buffers]


def _sha256(pieces: Sequence[Any]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


# Models


def save_model(folder: Path, tensors: Mapping[str, Tensor], card: Mapping[str, Any]) -> None:
    """Write model.safetensors and model.json, the card: what is needed to ask the model a question.

    The card has `classes` (names), `counts`, `log_added` and `log_mass` (one number a class), `mean` and `std` (of the
    normalisation) and `model` (the architecture); further entries are kept. It also gets the checksum of the weights,
    so that a pair that does not belong together is noticed.
    """
    sha256 = write_tensors(folder / "model.safetensors", tensors)
    write_json(folder / "model.json", {"format": MODEL_FORMAT, **card, "sha256": sha256})


def load_model(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and card of a saved model."""
    weights, about = folder / "model.safetensors", folder / "model.json"
    if not about.exists():
        raise LongtailError(f"{folder} holds no model (there is no model.json): give the folder of a finished run")
    card = read_json(about)
    if problem := _card_problem(card):
        raise LongtailError(f"{about} does not describe a model: {problem}")
    try:
        data = weights.read_bytes()
    except OSError as error:
        raise LongtailError(f"cannot read {weights}: {error.strerror}") from error
    if _sha256([data]) != card["sha256"]:
        raise LongtailError(
            f"{weights} is damaged, or was not written together with {about.name} (its checksum differs): "
            "copy both again, or train again"
        )
    try:
        return safetensors.torch.load(data), card
    except Exception as error:  # the checksum is right: whoever wrote both wrote something else
        raise LongtailError(f"{weights} is not a safetensors file of weights: give the folder of a run") from error


def save_single(path: Path, tensors: Mapping[str, Tensor], card: Mapping[str, Any]) -> None:
    """Weights and card in one safetensors file, the card in its header."""
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    # The library's own writer to a path makes a file that nobody else may read.
    path.write_bytes(safetensors.torch.save(contiguous, metadata={"format": "pt", "longtail": json.dumps(card)}))


def load_single(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_single` wrote."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            card = json.loads((file.metadata() or {}).get("longtail", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is no dict)
    except Exception as error:  # safetensors, JSON and the operating system have exceptions of their own
        raise LongtailError(f"cannot read the model {path}: {str(error).splitlines()[0]}") from error
    if problem := "it has no card" if not isinstance(card, dict) else _card_problem(card):
        raise LongtailError(f"{path} does not describe a model: {problem}")
    return tensors, card


def _card_problem(card: dict[str, Any]) -> str | None:
    """What is wrong with a model's card; None if nothing is."""

    def numbers(key: str, count: int) -> str | None:
        value = card.get(key)
        values = value if isinstance(value, list) else []
        fits = len(values) == count and all(type(x) in (int, float) and not math.isnan(x) for x in values)
        return None if fits else f"{key!r} is not a list of {count} numbers"

    written = card.get("format")
    if type(written) is not int:
        return "it has no format number"
    if written > MODEL_FORMAT:
        return f"its format {written} is of a newer longtail; upgrade to read it"
    for key in ("model", "sha256"):
        if not isinstance(card.get(key), str):
            return f"{key!r} is not a string"
    classes = card.get("classes")
    if not isinstance(classes, list) or not classes or not all(isinstance(name, str) for name in classes):
        return "'classes' is not a list of names"
    if len(set(classes)) < len(classes):
        return "'classes' has the same name twice"
    per_class = (numbers(key, len(classes)) for key in ("counts", "log_added", "log_mass"))
    per_channel = (numbers(key, 3) for key in ("mean", "std"))
    return next((problem for problem in (*per_class, *per_channel) if problem), None)
