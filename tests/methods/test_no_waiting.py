"""A step on an accelerator is told what to do and never asked: nothing in it waits for the device.

Shown on the CPU, operator by operator. A value asked for on the host, or a shape that depends on values, would wait; so
would a Python loop over classes or samples, a little for each, and the number of operators gives that away.
"""

from collections import Counter

import pytest
import torch
from test_every_method import OF_IMAGES, build, trained_stage
from torch.utils._python_dispatch import TorchDispatchMode

from longtail.contrast import bank as banks
from longtail.engine import logs
from longtail.engine.logs import NaNWatch, StepLog
from longtail.engine.optim import build_optimiser
from longtail.methods import build_objective
from longtail.methods.method import Method
from longtail.models.backbone import SmallConvNet
from longtail.models.teacher import Teacher
from longtail.recipe import Optim
from longtail.types import Batch

aten = torch.ops.aten
WAITS = {
    *(aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.is_nonzero, aten.equal, aten._unique2),
    *(aten.unique_dim, aten.unique_consecutive, aten.bincount, aten.repeat_interleave, aten.histc),
}
CLASSES, K, DIM = 12, 64, 8


class Told(TorchDispatchMode):
    """Counts the operators, and fails at one that waits."""

    def __init__(self):
        super().__init__()
        self.operators = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        packet = func.overloadpacket
        # A size given beforehand is all that repeat_interleave would have asked for.
        assert packet not in WAITS or kwargs.get("output_size") is not None, func
        if packet in (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_):
            indices = [i for i in args[1] if isinstance(i, torch.Tensor)]
            assert all(i.dtype not in (torch.bool, torch.uint8) for i in indices), f"{func} with a mask"
        self.operators[packet] += 1
        return func(*args, **kwargs)


class Never:
    def query(self):
        return False

    def synchronize(self):
        raise AssertionError("waited")


@pytest.fixture(autouse=True)
def _as_on_a_device(monkeypatch):
    monkeypatch.setattr(logs, "_to_host", lambda values: (values, Never()))
    monkeypatch.setattr(banks, "_poll", lambda device: 64)


def gml(classes=CLASSES, rows=K, **settings) -> Method:
    torch.manual_seed(0)
    backbone, counts = SmallConvNet(DIM), torch.arange(classes, 0, -1) * 3
    head = build_objective("logit_adjusted", counts, backbone.dim, {}).likelihood
    objective = build_objective("gml", counts, backbone.dim, {"k": rows, "k_m": 1} | settings, backbone.dim)
    return Method(backbone, objective, Teacher(SmallConvNet(DIM), head)).train()


def batch_of(method: Method, size: int, classes: int, picture=None) -> Batch:
    ids = torch.arange(size)
    return Batch(tuple(torch.randn(size, 3, 8, 8) for _ in method.views), ids % classes, ids, picture)


def operators(method: Method, batch: Batch, tmp_path, steps=1) -> Counter:
    """Of a whole step as the loop takes it, forward to moving averages."""
    optimiser = build_optimiser(method, Optim(lr=0.01))
    log, watch = StepLog(), NaNWatch(tmp_path / "nonfinite.json")
    for step in range(steps + 1):  # the first one may look whether the bank is empty
        with Told() if step else torch.enable_grad() as told:
            losses = method(batch)
            losses.per_sample.mean().backward()
            watch.look(losses, 0, step, batch.ids)
            log.add({"loss": losses.per_sample.detach().mean(), **losses.parts}, len(batch.labels))
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            method.after_step()
    return told.operators


# Not mixup: its one number a batch is drawn on the host, which no mode here can tell from a device.
GML = {
    "ring": {},
    "learned temperature": {"learn_tau": True},
    "distillation": {"kd_weight": 1.0},
    "in turns": {"reembed": "turns", "learn_tau": True},
    "in use": {"reembed": "in_use", "reembed_share": 0.5, "learn_tau": True},
    "in bfloat16": {"bank_dtype": "bfloat16"},
    "vmf": {"vmf_below": 3},
    "both views": {"both_views": True},
    "keys of the class view": {"keys_of": "class", "kd_weight": 1.0},
}


@pytest.mark.parametrize("way", GML)
def test_gml_never_waits(way, tmp_path):
    method = gml(**GML[way])
    operators(method, batch_of(method, 16, CLASSES), tmp_path, steps=3)


@pytest.mark.parametrize("way", ["ring", "learned temperature", "in turns", "in use"])
def test_there_is_no_loop_over_classes_or_samples(way, tmp_path):
    few, many = gml(**GML[way]), gml(classes=60, rows=480, **GML[way])
    assert operators(few, batch_of(few, 16, CLASSES), tmp_path) == operators(many, batch_of(many, 48, 60), tmp_path)


def test_a_full_bank_and_a_teacher_that_is_remembered_never_wait(tmp_path):
    method = gml(bank="full", bank_views=2, kd_weight=1.0, learn_tau=True)
    batch = batch_of(method, 16, CLASSES, picture=1)
    asked = [(torch.randn(16, DIM * 4), torch.randn(16, CLASSES)) for _ in range(2)]
    dim = method.key_encoder.dim
    method.key_encoder.remember(
        batch.ids, batch.labels, [f[:, :dim] for f, _ in asked], [scores for _, scores in asked]
    )
    method.prepare([])
    operators(method, batch, tmp_path, steps=2)


@pytest.mark.parametrize("name", [name for name in OF_IMAGES if trained_stage(name).epochs])
def test_no_method_waits(name, tmp_path):
    method = build(name)
    labels = torch.repeat_interleave(torch.arange(4), 4)
    views = tuple(torch.randn(16, 3, 8, 8) for _ in method.views)
    operators(method, Batch(views, labels, torch.arange(16)), tmp_path, steps=2)


def places(method: Method) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in (*method.named_parameters(), *method.named_buffers())}


# What a CUDA graph asks of a step, as far as a CPU can tell: the same operators at every replay, on state that stays
# where it is. Not in turns, whose turn is a number on the host, nor in use, whose classes are drawn there.
@pytest.mark.parametrize("way", sorted(GML.keys() - {"in turns", "in use"}))
def test_a_graph_could_replay_a_gml_step(way, tmp_path):
    method = gml(**GML[way])
    replayed(method, batch_of(method, 16, CLASSES), tmp_path)


@pytest.mark.parametrize("name", [name for name in OF_IMAGES if trained_stage(name).epochs])
def test_a_graph_could_replay_a_step(name, tmp_path):
    method = build(name)
    labels = torch.repeat_interleave(torch.arange(4), 4)
    views = tuple(torch.randn(16, 3, 8, 8) for _ in method.views)
    replayed(method, Batch(views, labels, torch.arange(16)), tmp_path)


def replayed(method: Method, batch: Batch, tmp_path) -> None:
    operators(method, batch, tmp_path, steps=2)  # what is made once has been made
    before = places(method)
    first, second = (operators(method, batch, tmp_path, steps=2) for _ in range(2))
    assert first == second
    assert places(method) == before


@pytest.mark.parametrize("way", ["ring", "learned temperature", "in turns", "in use"])
def test_torch_compile_takes_the_step_and_gives_the_same(way):
    plain, compiled = gml(**GML[way]), gml(**GML[way])
    step = torch.compile(compiled, backend="aot_eager")
    for number in range(3):
        batch = batch_of(plain, 16, CLASSES)
        losses = []
        for method, forward in ((plain, plain), (compiled, step)):
            method.zero_grad()
            torch.manual_seed(number)
            loss = forward(batch).per_sample
            loss.mean().backward()
            losses.append(loss.detach())
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)
        for (name, ours), theirs in zip(compiled.named_parameters(), plain.parameters(), strict=True):
            if theirs.grad is not None:
                torch.testing.assert_close(
                    ours.grad, theirs.grad, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
                )
