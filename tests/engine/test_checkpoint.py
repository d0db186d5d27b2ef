"""What is saved comes back to the bit; what was torn, flipped or forged is never taken for it."""

import errno
import hashlib
import json
import math
import os
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_disk import read_only, small_disk
from torch import nn

from longtail.engine import checkpoint
from longtail.errors import LongtailError

DTYPES = list(checkpoint._DTYPES)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(st.lists(st.integers(0, 3), max_size=4))
    seed = draw(st.integers(0, 2**31))
    count = math.prod(shape) * dtype.itemsize
    data = np.random.default_rng(seed).integers(0, 2 if dtype is torch.bool else 256, count, dtype=np.uint8)
    tensor = torch.from_numpy(data).view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)
    return tensor.permute(draw(st.permutations(range(len(shape)))))


arrays = st.builds(
    lambda dtype, shape, seed: np.random.default_rng(seed).integers(0, 2, shape).astype(dtype),
    st.sampled_from(["float32", "float64", "int64", "uint32", "uint8", "bool", "complex64", "float16"]),
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(0, 2**31),
)
text = st.text(st.characters(codec=None), max_size=5)  # lone surrogates too: names of folders may hold any bytes
scalars = st.none() | st.booleans() | st.integers() | st.floats() | text
states = st.recursive(
    scalars | tensors() | arrays | arrays.filter(lambda a: a.size).map(lambda a: a.ravel()[0]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.none() | st.booleans() | st.integers() | text | st.tuples(text, st.integers()), inner)
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """Equal in type, value and bits."""
    if isinstance(a, torch.Tensor):
        raw = [x.detach().contiguous().reshape(-1).view(torch.uint8) for x in (a, b)]
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*raw)
    if isinstance(a, np.ndarray | np.generic):
        return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        keys = same(list(a), list(b)) and isinstance(b, dict)
        return keys and all(same(x, y) for x, y in zip(a.values(), b.values(), strict=True))
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return isinstance(b, float) and (np.isnan([a, b]).all() or np.float64(a).tobytes() == np.float64(b).tobytes())
    return type(a) is type(b) and a == b


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(states)
def test_any_state_comes_back(tmp_path: Path, state: Any) -> None:
    checkpoint.save(tmp_path, state, step=1)
    assert same(state, checkpoint.load(tmp_path)) or state is None


def test_a_run_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    """Weights, batch statistics, momentum with its memory layout, learning rate and the generators."""

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.Flatten())
        net = net.to(memory_format=torch.channels_last)
        return net, torch.optim.Adam(net.parameters(), lr=0.01)

    def steps(net: nn.Module, optimiser: torch.optim.Optimizer, n: int) -> None:
        for _ in range(n):
            optimiser.zero_grad()
            net(torch.randn(2, 3, 6, 6)).square().mean().backward()
            optimiser.step()

    net, optimiser = build()
    steps(net, optimiser, 3)
    generator = np.random.default_rng(0)
    rng = {"torch": torch.get_rng_state(), "numpy": generator.bit_generator.state, "python": random.getstate()}
    checkpoint.save(tmp_path, {"net": net.state_dict(), "optimiser": optimiser.state_dict(), "rng": rng}, step=3)
    layout = optimiser.state[net[0].weight]["exp_avg"].stride()
    expected = [generator.random(), random.random()]
    steps(net, optimiser, 3)

    again, optimiser_again = build()
    state = checkpoint.load(tmp_path)
    again.load_state_dict(state["net"])
    optimiser_again.load_state_dict(state["optimiser"])
    torch.set_rng_state(state["rng"]["torch"])
    generator.bit_generator.state = state["rng"]["numpy"]
    random.setstate(state["rng"]["python"])
    assert optimiser_again.state[again[0].weight]["exp_avg"].stride() == layout
    assert [generator.random(), random.random()] == expected
    steps(again, optimiser_again, 3)
    assert same(net.state_dict(), again.state_dict())
    assert same(optimiser.state_dict(), optimiser_again.state_dict())


def test_shared_memory_is_stored_once_and_comes_back_shared(tmp_path: Path) -> None:
    big = torch.randn(1000)
    state = {"a": big, "tied": big, "part": big[10:20], "gaps": big[::2], "spread": torch.ones(1).expand(50)}
    path = checkpoint.save(tmp_path, state, step=1)
    loaded = checkpoint.load(tmp_path)
    assert same(state, loaded)
    assert path.stat().st_size < 4 * (1000 + 10 + 500 + 50) + 2500
    loaded["a"][0] = 7
    assert loaded["tied"][0] == 7
    assert not same(loaded["a"], state["a"])


def test_anyone_can_open_it_and_nothing_in_it_is_code(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, {"net": {"weight": torch.ones(2, dtype=torch.bfloat16)}}, step=1)
    with safetensors.safe_open(path, framework="pt") as file:
        assert set(file.keys()) == {"0 /net/weight", "structure"}
        assert file.get_tensor("0 /net/weight").dtype == torch.bfloat16
    class_with_code = type("ClassWithCode", (), {})()
    with pytest.raises(TypeError, match=r"ClassWithCode cannot be saved without pickle .at /net/1"):
        checkpoint.save(tmp_path, {"net": [1, class_with_code]}, step=2)
    with pytest.raises(TypeError, match="complex128"):
        checkpoint.save(tmp_path, torch.ones(1, dtype=torch.complex128), step=2)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_where_nothing_was_saved_there_is_nothing_to_load(tmp_path: Path) -> None:
    assert checkpoint.load(tmp_path / "state") is None


# Damage


def small_state(step: int) -> dict[str, Any]:
    return {"step": step, "weight": torch.full((5,), float(step))}


def test_every_cut_and_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, small_state(1), step=1)
    good = path.read_bytes()
    rng = random.Random(0)
    for place in range(len(good)):
        flipped = bytearray(good)
        flipped[place] ^= 1 << rng.randrange(8)
        for bad in (good[:place], bytes(flipped)):
            path.write_bytes(bad)
            with pytest.raises(LongtailError, match="checksum"):
                checkpoint.load(tmp_path)
    for bad in (good + b"\0", bytes(len(good)), good[:100] + bytes(len(good) - 100)):  # grown; zeroed; half zeroed
        path.write_bytes(bad)
        with pytest.raises(LongtailError, match=path.name):
            checkpoint.load(tmp_path)
    path.write_bytes(good)
    assert same(checkpoint.load(tmp_path), small_state(1))


def test_the_previous_one_is_used_and_both_are_named(tmp_path: Path) -> None:
    older = checkpoint.save(tmp_path, small_state(1), step=1)
    newer = checkpoint.save(tmp_path, small_state(2), step=2)
    newer.write_bytes(newer.read_bytes()[:-1])
    with pytest.warns(UserWarning, match=f"{newer.name} is damaged.*continuing from {older.name}"):
        assert same(checkpoint.load(tmp_path), small_state(1))
    older.write_bytes(b"")
    with pytest.raises(LongtailError, match=f"(?s){newer.name}.*{older.name}.*another --out"):
        checkpoint.load(tmp_path)


def test_two_are_kept_and_a_refused_one_never_pushes_out_a_good_one(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, small_state(step), step)
    assert steps_in(tmp_path) == [2, 3]
    torn = next(tmp_path.glob("step-000000003-*"))
    torn.write_bytes(torn.read_bytes()[:50])
    with pytest.warns(UserWarning, match="step-000000002"):
        checkpoint.load(tmp_path)
    checkpoint.save(tmp_path, small_state(3) | {"again": True}, step=3)
    assert steps_in(tmp_path) == [2, 3]
    assert checkpoint.load(tmp_path)["again"]
    torn = next(tmp_path.glob("step-000000003-*"))
    torn.write_bytes(b"")
    checkpoint.save(tmp_path, {"in between": True}, step=2)  # stopped by a signal before it came to 3 again
    assert steps_in(tmp_path) == [2]
    assert checkpoint.load(tmp_path) == {"in between": True}


def steps_in(folder: Path) -> list[int]:
    assert not list(folder.glob("*.tmp"))
    return sorted(int(path.name[5:14]) for path in folder.iterdir())


def killed(*_: object, **__: object) -> None:
    os._exit(9)


def killed_afterwards(source: Path, target: Path, rename: Any = os.replace) -> None:
    rename(source, target)
    os._exit(9)


@pytest.mark.parametrize(
    ("where", "what", "death", "survivor"),
    [
        (os, "fsync", killed, 2),
        (os, "replace", killed, 2),
        (os, "replace", killed_afterwards, 3),
        (Path, "unlink", killed, 3),
    ],
)
def test_killed_at_a_bad_moment(tmp_path: Path, where: Any, what: str, death: Any, survivor: int) -> None:
    for step in (1, 2):
        checkpoint.save(tmp_path, small_state(step), step)
    if (child := os.fork()) == 0:
        setattr(where, what, death)
        checkpoint.save(tmp_path, small_state(3), step=3)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 9
    assert len(list(tmp_path.glob("*.tmp"))) == (survivor == 2)
    assert same(checkpoint.load(tmp_path), small_state(survivor))
    checkpoint.save(tmp_path, small_state(4), step=4)
    assert steps_in(tmp_path) == [survivor, 4]


# Disks


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_an_error_of_the_disk_leaves_the_old_one_and_no_rubbish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    checkpoint.save(tmp_path, small_state(1), step=1)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, full)
        with pytest.raises(LongtailError, match=r"No space left on device.*free some space.*--resume"):
            checkpoint.save(tmp_path, small_state(2), step=2)
    assert steps_in(tmp_path) == [1]
    assert same(checkpoint.load(tmp_path), small_state(1))


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "256k") as disk:
        checkpoint.save(disk, torch.zeros(30_000), step=1)
        with pytest.raises(LongtailError, match="No space left on device"):
            checkpoint.save(disk, torch.ones(60_000), step=2)
        assert steps_in(disk) == [1]
        assert torch.equal(checkpoint.load(disk), torch.zeros(30_000))
        checkpoint.save(disk, torch.ones(20_000), step=2)
        assert steps_in(disk) == [1, 2]


def test_a_disk_that_may_not_be_written(tmp_path: Path) -> None:
    with read_only(tmp_path / "disk") as disk, pytest.raises(LongtailError, match=r"cannot write .*--out"):
        checkpoint.save(disk / "state", small_state(1), step=1)


# Forgeries: the checksum is right and the content is not


def forge(folder: Path, data: bytes) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"step-000000001-{hashlib.sha256(data).hexdigest()[:16]}.safetensors").write_bytes(data)


def forge_structure(folder: Path, structure: bytes) -> None:
    tensors = {"structure": torch.frombuffer(bytearray(structure), dtype=torch.uint8), "t": torch.ones(2)}
    forge(folder, safetensors.torch.save(tensors))


@pytest.mark.parametrize(
    "state",
    [
        ["lambda", "t"],
        ["tensor", "unknown", [0]],
        ["tensor", "t", [0, 0]],
        ["tensor", "t", [5]],
        ["tensor", "t"],
        ["dict", [["list"], 1]],
        ["dict", 3],
        ["dict", [{}, 1]],
        ["array", ["t"]],
        [],
        [[]],
    ],
)
def test_a_forged_structure_is_refused(tmp_path: Path, state: Any) -> None:
    forge_structure(tmp_path, json.dumps({"format": 1, "state": state}).encode())
    with pytest.raises(LongtailError, match="is not a checkpoint"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize(
    "structure", [b"", b"\xff", b"[]", b"{}", b'{"format": "1", "state": 1}', b'{"format":1}', b"[" * 100_000]
)
def test_a_forged_description_is_refused(tmp_path: Path, structure: bytes) -> None:
    forge_structure(tmp_path, structure or b" ")
    with pytest.raises(LongtailError, match="is not a checkpoint"):
        checkpoint.load(tmp_path)


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "exploded"),)

    forge(tmp_path / "state", pickle.dumps(Bomb()))
    with pytest.raises(LongtailError, match="is not a checkpoint"):
        checkpoint.load(tmp_path / "state")
    assert not (tmp_path / "exploded").exists()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    forge_structure(tmp_path, b'{"format": 99, "state": 1}')
    with pytest.raises(LongtailError, match=r"newer longtail .format 99.: upgrade"):
        checkpoint.load(tmp_path)


# Models

CARD = {
    "model": "resnet32",
    "classes": ["cat", "犬"],
    "counts": [9, 1],
    "log_added": [0.0, 0.0],
    "log_mass": [-0.1, -2.3],
    "mean": [0.5, 0.5, 0.5],
    "std": [0.2, 0.2, 0.2],
    "settings": {"tau": 0.1},
}


def test_a_model_comes_back(tmp_path: Path) -> None:
    weight = torch.randn(4, 3, 2, 2, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    tensors = {"w": weight, "tied": weight, "n": torch.tensor(3)}
    checkpoint.save_model(tmp_path, tensors, CARD)
    loaded, card = checkpoint.load_model(tmp_path)
    assert same(tensors, {name: loaded[name] for name in tensors})
    assert card.items() >= CARD.items()
    by_others = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert same(tensors, {name: by_others[name] for name in tensors})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": 99}, "newer longtail; upgrade"),
        ({"format": None}, "no format number"),
        ({"sha256": 3}, "'sha256' is not a string"),
        ({"model": None}, "'model' is not a string"),
        ({"classes": []}, "'classes' is not a list of names"),
        ({"classes": ["a", 3]}, "'classes' is not a list of names"),
        ({"classes": ["a", "a"]}, "same name twice"),
        ({"counts": [1]}, "'counts' is not a list of 2 numbers"),
        ({"log_mass": [0.0, float("nan")]}, "'log_mass' is not a list of 2 numbers"),
        ({"log_added": {"a": 1}}, "'log_added' is not a list of 2 numbers"),
        ({"std": [1.0, True, 1.0]}, "'std' is not a list of 3 numbers"),
    ],
)
def test_a_card_that_describes_no_model(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    checkpoint.save_model(tmp_path, {}, CARD)
    path = tmp_path / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(LongtailError, match=sentence):
        checkpoint.load_model(tmp_path)


def test_model_files_that_are_not(tmp_path: Path) -> None:
    with pytest.raises(LongtailError, match="holds no model"):
        checkpoint.load_model(tmp_path)
    checkpoint.save_model(tmp_path, {"w": torch.ones(100)}, CARD)
    weights, about = tmp_path / "model.safetensors", tmp_path / "model.json"
    good = weights.read_bytes()
    for bad in (good[:-1], b"", b"PK\3\4", good[:300] + b"\1" + good[301:]):
        weights.write_bytes(bad)
        with pytest.raises(LongtailError, match="checksum differs"):
            checkpoint.load_model(tmp_path)
    weights.unlink()
    with pytest.raises(LongtailError, match=r"cannot read .*No such file"):
        checkpoint.load_model(tmp_path)
    foreign = pickle.dumps({"w": 1})
    weights.write_bytes(foreign)
    about.write_text(json.dumps(json.loads(about.read_text()) | {"sha256": hashlib.sha256(foreign).hexdigest()}))
    with pytest.raises(LongtailError, match="not a safetensors file"):
        checkpoint.load_model(tmp_path)
    for bad in ("", "[1]", "{", "[" * 100_000, '{"format": ' + "9" * 5000 + "}"):
        about.write_text(bad)
        with pytest.raises(LongtailError, match=r"model\.json"):
            checkpoint.load_model(tmp_path)
