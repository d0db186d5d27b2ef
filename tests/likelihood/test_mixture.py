"""Against the definition, written as a loop over classes in float64."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from longtail.likelihood import mixture
from longtail.likelihood.mixture import mixture_loglik, mixture_loglik_excluding_own
from longtail.segments import Segments

GOLDEN = Path(__file__).parents[1] / "golden" / "gml_loss.npz"


class Problem(NamedTuple):
    query: Tensor
    keys: Tensor
    segments: Segments
    tau: Tensor
    labels: Tensor
    ids: Tensor
    key_ids: Tensor
    filled: Tensor | None

    def plain(self, **options):
        return mixture_loglik(self.query, self.keys, self.segments, self.tau, self.filled, **options)

    def both(self, **options):
        return mixture_loglik_excluding_own(*self[:7], self.filled, **options)


def problem(lengths=(7, 1, 4, 2, 1), batch=6, dim=5, tau=0.1, dtype=torch.float64, fill=1.0, seed=0) -> Problem:
    """Half of the queries have some of their own sample's keys in their class."""
    torch.manual_seed(seed)
    segments = Segments.of(torch.tensor(lengths))
    k = sum(lengths)
    query = F.normalize(torch.randn(batch, dim, dtype=dtype)).requires_grad_()
    keys = F.normalize(torch.randn(k, dim, dtype=dtype)).requires_grad_()
    labels = segments.class_of_row[torch.randint(k, (batch,))]
    key_ids = torch.arange(k) // 2 + 1000 * segments.class_of_row
    start, length = segments.offsets[labels], segments.offsets.diff()[labels]
    ids = torch.where(torch.arange(batch) % 2 == 0, key_ids[start + torch.randint(1000, (batch,)) % length], -1)
    filled = None if fill == 1 else torch.rand(k) < fill
    return Problem(
        query, keys, segments, torch.tensor(tau, dtype=dtype, requires_grad=True), labels, ids, key_ids, filled
    )


def oracle(p: Problem, exclude: bool) -> tuple[Tensor, Tensor]:
    """-> loglik [B, C] in float64, and whether the true class has a key left [B]."""
    score = p.query.double() @ p.keys.double().T / p.tau.double()
    there = torch.ones_like(p.key_ids, dtype=torch.bool) if p.filled is None else p.filled
    columns, valid = [], torch.ones_like(p.labels, dtype=torch.bool)
    for c in range(p.segments.num_classes):
        of_class = (there & (p.segments.class_of_row == c)).expand(len(p.query), -1)
        if exclude:
            others = of_class & ~((p.ids[:, None] == p.key_ids) & (p.labels == c)[:, None])
            left = others.any(1)
            valid &= left | (p.labels != c)
            of_class = torch.where(left[:, None], others, of_class)
        columns.append(score.masked_fill(~of_class, -torch.inf).logsumexp(1) - of_class.sum(1).double().log())
    return torch.stack(columns, 1).nan_to_num(nan=-torch.inf), valid


def loss_of(loglik: Tensor, labels: Tensor, keep: Tensor | None = None) -> Tensor:
    prior = torch.arange(loglik.shape[1], 0, -1, dtype=loglik.dtype).log_softmax(0)
    values = F.cross_entropy(loglik + prior, labels, reduction="none")
    return (values if keep is None else torch.where(keep, values, 0)).sum()


def close(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    assert torch.equal(ours.isinf(), theirs.isinf())
    ours, theirs = ours.double().nan_to_num(neginf=0), theirs.double().nan_to_num(neginf=0)
    assert (ours - theirs).norm() <= tolerance * theirs.norm().clamp(min=1e-30)


@pytest.fixture(params=[mixture.BLOCK, 20], ids=["one block", "many blocks"], autouse=True)
def block(request, monkeypatch):
    """Blocks so small that classes are cut must change nothing anywhere in this file."""
    monkeypatch.setattr(mixture, "BLOCK", request.param)


PROBLEMS = {
    "full": {},
    "partly filled": {"fill": 0.6},
    "a class without rows": {"lengths": (5, 0, 3, 0)},
    "one query": {"batch": 1},
    "one class": {"lengths": (9,)},
    "cold": {"tau": 0.01},
}


@pytest.mark.parametrize("options", PROBLEMS.values(), ids=PROBLEMS.keys())
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_values_and_gradients_are_those_of_the_definition(options, dtype, tolerance):
    p = problem(dtype=dtype, **options)
    loglik, excluded, valid = p.both()
    expected, (expected_excluded, expected_valid) = oracle(p, False)[0], oracle(p, True)
    close(loglik, expected, tolerance)
    assert torch.equal(valid, expected_valid)
    close(excluded[valid], expected_excluded[valid], tolerance)
    close(p.plain(), loglik, 0)

    there = ~expected.gather(1, p.labels[:, None])[:, 0].isinf()
    ours = torch.autograd.grad(loss_of(loglik, p.labels, there), [p.query, p.keys], retain_graph=True)
    theirs = torch.autograd.grad(loss_of(expected, p.labels, there), [p.query, p.keys])
    for mine, their in zip(ours, theirs, strict=True):
        close(mine, their, tolerance)
    (mine,) = torch.autograd.grad(loss_of(excluded, p.labels, valid), [p.tau])
    (their,) = torch.autograd.grad(loss_of(expected_excluded, p.labels, valid), [p.tau])
    close(mine, their, tolerance)


@pytest.mark.parametrize("fill", [1.0, 0.7])
def test_gradcheck(fill):
    p = problem(fill=fill, lengths=(4, 2, 3), batch=3, dim=4)
    there = ~p.plain().isinf()

    def plain(query, keys):
        return p._replace(query=query, keys=keys).plain()[there]

    def excluded(tau):
        return p._replace(tau=tau, query=p.query.detach(), keys=p.keys.detach()).both().excluded_bc[there]

    assert torch.autograd.gradcheck(plain, (p.query, p.keys))
    assert torch.autograd.gradcheck(excluded, (p.tau,))


def test_each_table_moves_its_own_parameters_only():
    p = problem()
    loglik, excluded, valid = p.both()
    assert torch.autograd.grad(loglik[:, 0].sum(), [p.tau], allow_unused=True, retain_graph=True) == (None,)
    used = torch.autograd.grad(excluded[:, 0].sum(), [p.query, p.keys], allow_unused=True)
    assert used == (None, None)
    assert not valid.requires_grad
    assert not mixture_loglik(p.query.detach(), p.keys.detach(), p.segments, p.tau).requires_grad


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_golden_values_of_the_authors_loss(dtype, tolerance):
    stored = {name: torch.from_numpy(value) for name, value in np.load(GOLDEN).items()}
    order = stored["bank_labels"].argsort(stable=True)
    query = stored["query"].to(dtype).requires_grad_()
    bank = stored["bank"].to(dtype).requires_grad_()
    log_tau = stored["tau"].log().to(dtype).requires_grad_()
    segments = Segments.of(stored["bank_labels"].bincount(minlength=len(stored["counts"])))
    log_prior = (stored["counts"].to(dtype) / stored["counts"].sum()).log()

    loglik, excluded, valid = mixture_loglik_excluding_own(
        query, bank[order], segments, log_tau.exp(), stored["labels"], stored["query_ids"], stored["bank_ids"][order]
    )
    loss = F.cross_entropy(loglik + log_prior, stored["labels"])
    loss_excluded = F.cross_entropy(excluded + log_prior, stored["labels"])
    (loss + loss_excluded).backward()

    assert valid.all()
    close(loglik, stored["class_loglik"], tolerance)
    close(loss, stored["loss_gml"], tolerance)
    close(loss_excluded, stored["loss_gml_excl_own"], tolerance)
    close(query.grad, stored["grad_query"], tolerance)
    close(bank.grad, stored["grad_bank"], tolerance)
    close(log_tau.grad, stored["grad_log_tau"][0], tolerance)


def test_the_order_inside_a_class_does_not_matter():
    p = problem()
    order = (p.segments.class_of_row + torch.rand(len(p.keys)).double()).argsort()
    shuffled = p._replace(keys=p.keys[order], key_ids=p.key_ids[order]).both()
    for ours, theirs in zip(shuffled[:2], p.both()[:2], strict=True):
        close(ours, theirs, 1e-14)


def test_a_class_200_below_the_row_maximum_is_right():
    """In float32, exp of it is 0: only its own maximum can save it."""
    p = problem(lengths=(3, 4), tau=0.01, dtype=torch.float32)
    query = F.normalize(torch.ones(1, 5))
    keys = F.normalize(torch.cat([query + 0.01 * torch.randn(3, 5), -query + 0.01 * torch.randn(4, 5)]))
    p = p._replace(
        query=query.requires_grad_(), keys=keys.requires_grad_(), labels=torch.tensor([1]), ids=torch.tensor([-1])
    )
    loglik, expected = p.plain(), oracle(p, False)[0]
    assert expected[0, 0] - expected[0, 1] > 199
    close(loglik, expected, 1e-6)
    ours, theirs = (torch.autograd.grad(loss_of(x, p.labels), [p.query, p.keys]) for x in (loglik, expected))
    for mine, their in zip(ours, theirs, strict=True):
        close(mine, their, 1e-4)


def test_leaving_out_the_heaviest_key_loses_no_digits():
    """Subtracting it from the sum would leave nothing in float32: it is exp(60) times the rest."""
    query = torch.tensor([[1.0, 0.0]])
    keys = torch.tensor([[1.0, 0.0], [0.4, 0.0]])
    excluded = mixture_loglik_excluding_own(
        query, keys, Segments.of(torch.tensor([2])), 0.01, torch.tensor([0]), torch.tensor([5]), torch.tensor([5, 6])
    ).excluded_bc
    assert excluded.item() == pytest.approx(40, rel=1e-6)


def test_where_nothing_else_is_left_the_row_is_marked_and_finite():
    p = problem(lengths=(2, 1), batch=2)._replace(
        labels=torch.tensor([0, 1]), ids=torch.tensor([7, 9]), key_ids=torch.tensor([7, 7, 9])
    )
    loglik, excluded, valid = p.both()
    assert valid.tolist() == [False, False]
    close(excluded, loglik, 1e-14)
    loss_of(excluded, p.labels, valid).backward()
    assert p.tau.grad == 0


def test_a_class_with_nothing_in_the_bank_takes_no_part():
    p = problem(lengths=(3, 2, 4))
    without = p._replace(filled=p.segments.class_of_row != 1, labels=2 * torch.ones_like(p.labels))
    loglik = without.plain()
    assert (loglik[:, 1] == -torch.inf).all()
    assert loglik[:, [0, 2]].isfinite().all()
    grad_keys = torch.autograd.grad(loss_of(loglik, without.labels), [p.keys])[0]
    assert (grad_keys[3:5] == 0).all()
    assert grad_keys.isfinite().all()


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=6).filter(any),
    batch=st.integers(1, 5),
    tau=st.floats(0.01, 1),
    fill=st.sampled_from([0.3, 0.8, 1.0]),
    bf16=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_everything_is_finite(lengths, batch, tau, fill, bf16, seed):
    p = problem(tuple(lengths), batch, tau=tau, fill=fill, dtype=torch.float32, seed=seed)
    if p.filled is not None:
        p.filled[p.segments.offsets[p.labels]] = True  # the batch enters the bank before it is scored
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loglik, excluded, valid = p.both()
        loss = loss_of(loglik, p.labels) + loss_of(excluded, p.labels, valid)
    grads = torch.autograd.grad(loss, [p.query, p.keys, p.tau])
    assert loglik.dtype == torch.float32
    assert not loglik.isnan().any()
    assert not (loglik == torch.inf).any()
    assert all(value.isfinite().all() for value in (loss, *grads))
    # bfloat16 keeps 8 bits of a cosine, which the temperature then divides.
    close(loglik, oracle(p, False)[0], 0.02 / tau if bf16 else 1e-4)


@pytest.mark.parametrize("fill", [1.0, 0.6])
def test_a_few_queries_at_a_time_change_nothing(fill):
    p = problem(batch=7, fill=fill)
    inputs = [p.query, p.keys, p.tau]
    results = []
    for memory_mb in (1024, 1e-9):
        loglik, excluded, valid = p.both(memory_mb=memory_mb)
        there = ~loglik.gather(1, p.labels[:, None])[:, 0].isinf()
        loss = loss_of(loglik, p.labels, there) + loss_of(excluded, p.labels, valid)
        results.append((loglik, excluded, *torch.autograd.grad(loss, inputs)))
    for whole, parts in zip(*results, strict=True):
        close(parts, whole, 1e-13)


def test_backward_twice_gives_the_same():
    p = problem()
    loss = loss_of(p.plain(), p.labels)
    first = torch.autograd.grad(loss, [p.query, p.keys], retain_graph=True)
    second = torch.autograd.grad(loss, [p.query, p.keys])
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_segment_reduce_which_cuda_takes_agrees_with_the_indexed_operators():
    segments = Segments.of(torch.tensor([3, 0, 2, 5]))
    x = torch.randn(10, 4)
    for _, block in segments.blocks(4):
        rows = x[: len(block.class_of_row)]
        for name, method, start in (("max", block.maxima_, -1e30), ("sum", block.sums_, 0.0)):
            into = torch.full((4, 4), start)
            method(into, rows)
            reduced = torch.segment_reduce(rows, name, offsets=block.offsets, axis=0, unsafe=True, initial=start)
            torch.testing.assert_close(into, reduced)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torch_compile_leaves_it_alone(backend):
    p = problem(dtype=torch.float32)

    def loss(query, keys, tau):
        loglik, excluded, valid = p._replace(query=query * 1.0, keys=keys, tau=tau).both()
        return loss_of(loglik, p.labels) + loss_of(excluded, p.labels, valid)

    inputs = [p.query, p.keys, p.tau]
    expected, compiled = loss(*inputs), torch.compile(loss, backend=backend)(*inputs)
    torch.testing.assert_close(compiled, expected)
    for ours, theirs in zip(torch.autograd.grad(compiled, inputs), torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(ours, theirs)
