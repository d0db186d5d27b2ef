"""Embedding a share of the bank: equal to embedding all of it wherever it has to be."""

import copy

import pytest
import torch

from longtail.contrast.bank import Bank
from longtail.errors import LongtailError
from longtail.methods import gml

COUNTS = [40, 20, 9, 9, 3, 1]
DIM, K = 6, 32


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def objective(like=None, **settings):
    """In double precision, with a bank of which three quarters are filled."""
    made = gml(COUNTS, DIM, **{"k": K, "gamma": 0.0} | settings).double()
    if like is not None:
        made.load_state_dict({k: v.double() for k, v in like.state_dict().items()}, strict=False)
        made.bank = copy.deepcopy(like.bank)
        made.bank.double()
        return made
    for _ in range(6):
        made.enqueue(*batch(4))
    return made


def batch(size=8):
    features = torch.randn(size, DIM, dtype=torch.float64)
    return features, torch.multinomial(torch.tensor(COUNTS, dtype=torch.float64), size, True), torch.arange(size)


def frozen_statistics(made):
    """With these the embedding of a row does not depend on what else is embedded."""
    made.embed_key.eval()
    return made


def step(made, query, labels, ids):
    """Loss per query, and the gradient of its mean to all that is learned."""
    made.zero_grad()
    loss_b, _ = made.contrast(query, labels, ids)
    loss_b.mean().backward()
    return loss_b.detach(), {name: p.grad.clone() for name, p in made.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("learn_tau", [False, True])
@pytest.mark.parametrize("way", ["turns", "in_use"])
def test_the_whole_share_is_all_of_the_bank(way, learn_tau):
    whole = objective(learn_tau=learn_tau)
    part = objective(whole, reembed=way, reembed_share=1.0, learn_tau=learn_tau)
    for _ in range(3):
        keys, given = batch(), batch()
        for made in (whole, part):
            made.enqueue(*keys)
        torch.testing.assert_close(step(part, *given), step(whole, *given), rtol=1e-10, atol=1e-12)


def test_once_all_had_their_turn_an_mlp_that_stands_still_gives_the_same_loss():
    whole = frozen_statistics(objective())
    part = frozen_statistics(objective(whole, reembed="turns", reembed_share=0.25))
    with torch.no_grad():
        part.contrast(*batch())  # embeds all that is there
        for made in (whole, part):
            torch.manual_seed(1)
            made.embed_key.out.weight.add_(torch.randn_like(made.embed_key.out.weight))
        for turn in range(4):
            given = batch()
            agrees = torch.allclose(part.contrast(*given)[0], whole.contrast(*given)[0], rtol=1e-10)
            assert agrees == (turn == 3)  # the fourth quarter was the last to be old


def test_old_embeddings_count_and_give_no_gradient():
    whole = frozen_statistics(objective())
    part = frozen_statistics(objective(whole, reembed="turns", reembed_share=0.25))
    part.contrast(*batch())
    part.enqueue(*(keys := batch(3)))
    whole.enqueue(*keys)
    place = {tuple(row): i for i, row in enumerate(whole.bank.features.tolist())}
    due = set(range(0, K, 4)) | {place[tuple(row)] for row in keys[0].tolist()}
    fresh_k1 = torch.tensor([i in due for i in range(K)])[:, None]
    embed = whole.embed_key.forward
    whole.embed_key.forward = lambda *a: torch.where(fresh_k1, z := embed(*a), z.detach())
    given = batch()
    torch.testing.assert_close(step(part, *given), step(whole, *given), rtol=1e-10, atol=1e-12)


def test_new_rows_are_embedded_at_once_and_once():
    part = frozen_statistics(objective(reembed="turns", reembed_share=0.1))
    for size in (1, 5, 20):  # of the last more than some rings hold
        part.enqueue(*batch(size))
        part.enqueue(*batch(2))  # twice between two steps
        part.contrast(*batch())
        filled = part.bank.filled
        expected = part.embed_key(part.bank.features)
        torch.testing.assert_close(part.reembedding.turns.last[:-1][filled], expected[filled])


def test_a_restart_goes_on_with_the_embeddings_that_were_there():
    straight = objective(reembed="turns", reembed_share=0.25)
    straight.contrast(*batch())
    with torch.no_grad():
        straight.embed_key.out.weight.mul_(1.1)
    straight.contrast(*batch())
    restarted = gml(COUNTS, DIM, k=K, gamma=0.0, reembed="turns", reembed_share=0.25).double()
    restarted.load_state_dict(straight.state_dict())
    for _ in range(3):
        keys, given = batch(), batch()
        for made in (straight, restarted):
            made.enqueue(*keys)
        torch.testing.assert_close(step(restarted, *given), step(straight, *given), rtol=0, atol=0)


def test_a_full_bank_takes_turns_too():
    full, part = (gml(COUNTS, DIM, bank="full", gamma=0.0, reembed=way, reembed_share=0.5) for way in ("all", "turns"))
    part.load_state_dict(full.state_dict(), strict=False)
    features, labels, ids = torch.randn(82, DIM), torch.tensor(COUNTS).cumsum(0), torch.arange(82)
    labels = torch.searchsorted(labels, ids, right=True)
    for made in (full, part):
        frozen_statistics(made).fill(features, labels, ids)
    given = features[:8] + 1, labels[:8], ids[:8]
    for _ in range(3):  # nothing learns between the steps, so nothing is old
        torch.testing.assert_close(part.contrast(*given)[0], full.contrast(*given)[0])


def test_the_batchs_own_classes_are_in_use_and_the_rest_as_room_allows():
    made = objective(reembed="in_use", reembed_share=0.5, k=64, k_m=4)
    made.enqueue(*batch(200))
    labels = torch.tensor([4, 5, 4, 2])
    lengths = made.bank.segments.offsets.diff()
    for _ in range(20):
        used = made.reembedding(made.bank, made.embed_key, labels)
        assert used.known_c[labels].all()
        assert len(used.keys_kd) == 32 >= lengths[used.known_c].sum()
        known = made.bank.filled & used.known_c[made.bank.segments.class_of_row]
        assert sorted(used.ids_k[used.filled_k].tolist()) == sorted(made.bank.ids[known].tolist())
        counted = torch.zeros_like(lengths).index_add_(0, used.segments.class_of_row, used.filled_k.long())
        torch.testing.assert_close(counted, torch.where(used.known_c, made.bank.filled_counts(), 0))
        torch.testing.assert_close(used.segments.offsets.diff(), used.segments.class_of_row.bincount(minlength=6))


def test_drawn_classes_stand_for_those_that_were_not():
    """The sum over the classes, of which half a draw's is seen, is right in the mean."""
    counts = [8] * 40  # segments of one length: the estimate is then exactly unbiased
    made = frozen_statistics(gml(counts, DIM, k=160, k_m=4, gamma=0.0, reembed="in_use", reembed_share=0.3).double())
    everything = torch.arange(160)
    made.enqueue(torch.randn(160, DIM, dtype=torch.float64), everything // 4, everything)
    whole = copy.deepcopy(made)
    whole.reembedding.way = "all"
    query, labels = torch.randn(6, DIM, dtype=torch.float64), torch.tensor([0, 0, 7, 20, 20, 39])
    given = query, labels, torch.arange(6) + 1000
    with torch.no_grad():
        # exp(loss) is the sum over the classes divided by the true class, which is always there
        draws = torch.stack([made.contrast(*given)[0].exp() for _ in range(2000)])
        expected = whole.contrast(*given)[0].exp()
    error = (draws.mean(0) - expected) / (draws.std(0) / 2000**0.5)
    assert draws.std(0).min() > 0
    assert error.abs().max() < 4


def test_a_share_that_cannot_hold_the_largest_class_is_refused():
    with pytest.raises(LongtailError, match="its largest class alone has"):
        objective(reembed="in_use", reembed_share=0.2).contrast(*batch())


def test_where_the_batchs_classes_have_no_room_some_are_drawn_and_the_estimate_holds():
    """Four classes of four rows, all in the batch, and room for two of them."""
    made = frozen_statistics(gml([8] * 4, DIM, k=16, k_m=4, gamma=0.0, reembed="in_use", reembed_share=0.5).double())
    everything = torch.arange(16)
    made.enqueue(torch.randn(16, DIM, dtype=torch.float64), everything // 4, everything)
    whole = copy.deepcopy(made)
    whole.reembedding.way = "all"
    given = torch.randn(4, DIM, dtype=torch.float64), torch.arange(4), torch.arange(4) + 1000
    with torch.no_grad():
        draws = torch.stack([made.contrast(*given)[0] for _ in range(2000)])
        expected = whole.contrast(*given)[0].exp()
    assert ((draws > 0).sum(1) == 2).all()  # two classes, and a query of each
    for query in range(4):
        seen = draws[:, query][draws[:, query] > 0].exp()
        assert abs(seen.mean() - expected[query]) < 4 * seen.std() / len(seen) ** 0.5
    assert made.contrast(*given)[1]["without_class"] == 0.5


def test_a_batch_whose_classes_have_no_key_gives_nothing_and_no_nan():
    made = gml(COUNTS, DIM, k=K, gamma=0.0, reembed="in_use", reembed_share=0.5).double()
    made.enqueue(torch.randn(1, DIM, dtype=torch.float64), torch.tensor([3]), torch.tensor([0]))
    loss_b, gradients = step(
        made, torch.randn(4, DIM, dtype=torch.float64), torch.tensor([0, 0, 1, 2]), torch.arange(4)
    )
    assert (loss_b == 0).all()
    assert all(g.isfinite().all() for g in gradients.values())
    query = torch.randn(4, DIM, dtype=torch.float64, requires_grad=True)
    nowhere = torch.full((4, len(COUNTS)), -torch.inf, dtype=torch.float64) + 0 * query.sum()
    lost_b = made._classify(nowhere, torch.tensor([0, 0, 1, 2]), torch.zeros(4, dtype=torch.bool), None)
    lost_b.sum().backward()
    assert query.grad is not None
    assert query.grad.isfinite().all()


def test_a_bank_in_bfloat16_takes_half_and_gives_nearly_the_same():
    whole = gml(COUNTS, DIM, k=K, gamma=0.0)
    half = gml(COUNTS, DIM, k=K, gamma=0.0, bank_dtype="bfloat16")
    half.load_state_dict(whole.state_dict())
    keys = torch.randn(30, DIM).bfloat16().float()  # a teacher under autocast says it in bfloat16 anyway
    given = [x.float() if x.is_floating_point() else x for x in batch()]
    for made in (whole, half):
        made.enqueue(keys, torch.arange(30) % 6, torch.arange(30))
    assert half.bank.features.dtype == torch.bfloat16
    torch.testing.assert_close(half.bank.features.float(), whole.bank.features, rtol=0, atol=0)
    loss, gradients = step(whole, *given)
    loss_half, gradients_half = step(half, *given)
    torch.testing.assert_close(loss_half, loss, rtol=0.05, atol=0.05)
    direction, expected = (torch.cat([g.flatten() for g in x.values()]) for x in (gradients_half, gradients))
    assert torch.cosine_similarity(direction, expected, dim=0) > 0.99
    torch.testing.assert_close(half.kernel_loglik(given[0]), whole.kernel_loglik(given[0]), rtol=0.05, atol=0.1)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"reembed": "some"}, "reembed is all, turns or in_use, not 'some'"),
        ({"reembed": "turns", "reembed_share": 0.0}, "over 0 and at most 1, not 0"),
        ({"reembed": "turns", "shard_bank": True}, "choose one"),
        ({"reembed": "in_use", "vmf_below": 3}, "all keys of a class"),
        ({"bank_dtype": "float16"}, "float32 or bfloat16, not 'float16'"),
    ],
)
def test_a_mistake_is_one_sentence(settings, sentence):
    with pytest.raises(LongtailError, match=sentence):
        gml(COUNTS, DIM, k=K, **settings)


def test_what_a_ring_wrote_is_told():
    bank = Bank.ring(COUNTS, 16, 1, dim=2)
    rows = bank.enqueue(torch.ones(9, 2), torch.tensor([5, 5, 5, 0, 1, 2, 3, 4, 4]), torch.arange(9))
    no_place = 9 - int(bank.filled.sum())
    assert no_place > 0
    assert sorted(rows.tolist()) == [*bank.filled.nonzero()[:, 0].tolist(), *[16] * no_place]
