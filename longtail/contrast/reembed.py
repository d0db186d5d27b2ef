"""Which rows of a bank are embedded in a step.

The bank holds features of the key encoder; an MLP that is being trained embeds them. The paper embeds all k rows at
every step ("all", the default). For 65,536 rows 2,048 wide that is a large part of a step, so there are two ways to
embed a share of them only:

- "turns": every row when its turn comes, and at once when it is new. The others keep the embedding that they last had,
  and give no gradient. The loss sees every key, some of them a few steps old.
- "in_use": the segments of the batch's own classes, and of as many others, drawn at random, as the share has room for.
  A class that was drawn stands for those that were not: log(others / drawn) is added to its score. Nothing is old, but
  the sum over the classes is an estimate. (Close to unbiased: a long segment is the likelier to find no room.) Where
  there is no room for all of the batch's classes, some of them are drawn, and the other queries go without the term:
  `without_class` in the log says how many. It is made for banks that are much larger than what a batch needs.

In both the MLP's batch statistics are those of the rows that are embedded. A bank in bfloat16 takes half the memory and
is embedded in bfloat16 whatever the precision of the run. Nothing here waits for a device, and no shape depends on
the data.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from longtail.contrast.bank import Bank
from longtail.errors import LongtailError
from longtail.ranks import ALONE, Ranks
from longtail.segments import Segments

WAYS = ("all", "turns", "in_use")


class Contrasts(NamedTuple):
    """What a step's queries are contrasted with: the bank, or some of its segments."""

    keys_kd: Tensor
    segments: Segments
    ids_k: Tensor
    filled_k: Tensor | None  # None: all are
    known_c: Tensor  # bool: the class has a key
    log_weight_c: Tensor | None = None  # what a drawn class adds to its score for those that were not drawn


class Reembedding(nn.Module):
    """The contrasts of a step, from a bank and the MLP that embeds it."""

    def __init__(self, way: str = "all", share: float = 0.25, *, rows: int, dim: int, shard: bool = False) -> None:
        super().__init__()
        if way not in WAYS:
            raise LongtailError(f"reembed is {', '.join(WAYS[:-1])} or {WAYS[-1]}, not {way!r}")
        if not 0 < share <= 1:
            raise LongtailError(f"reembed_share is a share of the bank's rows, over 0 and at most 1, not {share:g}")
        if shard and way != "all":
            raise LongtailError(f"shard_bank embeds all of the bank, and reembed={way!r} some of it: choose one")
        self.way, self.share, self.shard = way, share, shard
        self.turns = Turns(rows, dim, every=round(1 / share)) if way == "turns" else None

    def begin(self, rows: int) -> None:
        """With another bank, of so many rows."""
        if self.turns is not None:
            last = self.turns.last
            self.turns = Turns(rows, last.shape[1], self.turns.every).to(last.device)

    def entered(self, rows: Tensor) -> None:
        """These rows of the bank are new; `len(bank)` for a key that found no place."""
        if self.turns is not None:
            self.turns.new.append(rows)

    def forward(self, bank: Bank, embed: nn.Module, labels: Tensor, ranks: Ranks = ALONE) -> Contrasts:
        if self.way == "in_use" and (rows := max(1, int(self.share * len(bank)))) < len(bank):
            if bank.segments.longest > rows:
                raise LongtailError(
                    f"reembed_share={self.share:g} of the bank is {rows:,} rows, and its largest class alone has "
                    f"{bank.segments.longest:,}: choose a larger share"
                )
            return _in_use(bank, embed, labels, rows)
        if self.turns is not None:
            keys_kd = self.turns(bank, embed)
        elif self.shard:
            keys_kd = _sharded(bank, embed, ranks)
        else:
            keys_kd = embedded(embed, bank.features, bank.mask)
        return Contrasts(keys_kd, bank.segments, bank.ids, bank.mask, bank.filled_counts() > 0)


class Turns(nn.Module):
    """Every row's embedding as it was last computed, in a checkpoint too."""

    last: Tensor

    def __init__(self, rows: int, dim: int, every: int) -> None:
        super().__init__()
        self.every, self.turn, self.begun = every, 0, False
        self.new: list[Tensor] = []
        self.register_buffer("last", torch.zeros(rows + 1, dim))  # one more, for what finds no place

    def forward(self, bank: Bank, embed: nn.Module) -> Tensor:
        """[k, dim], with gradient to what is embedded now."""
        k, device = len(bank), self.last.device
        if self.begun:
            rows = torch.cat([torch.arange(self.turn % self.every, k, self.every, device=device), *self.new])
            rows = rows.sort().values
            again = torch.cat([rows.new_zeros(1, dtype=torch.bool), rows[1:] == rows[:-1]])
            rows = torch.where(again, k, rows)  # what is new and due counts once
            self.turn += 1
        else:
            rows = torch.arange(k, device=device)
        self.begun, self.new = True, []
        features, filled = bank.with_spare_row()
        fresh = embedded(embed, features[rows], filled[rows]).to(self.last.dtype)
        keys = self.last.index_put((rows,), fresh)
        self.last.copy_(keys.detach())
        return keys[:k]

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.turn, self.begun])

    def set_extra_state(self, state: Any) -> None:
        turn, begun = state.tolist()
        self.turn, self.begun = turn, bool(begun)


def embedded(embed: nn.Module, features_kd: Tensor, filled_k: Tensor | None, ranks: Ranks = ALONE) -> Tensor:
    """A bank in bfloat16 is embedded in it."""
    kind = features_kd.device.type
    half = features_kd.dtype == torch.bfloat16 and not torch.is_autocast_enabled(kind)
    with torch.autocast(kind, torch.bfloat16) if half else nullcontext():
        return embed(features_kd, filled_k, ranks)


def _sharded(bank: Bank, embed: nn.Module, ranks: Ranks) -> Tensor:
    """Each rank embeds its part, and all get all of them, with gradient back to where they came from."""
    k, mask = len(bank), bank.mask
    ends = [k * (rank + 1) // ranks.world for rank in range(ranks.world)]
    starts = [0, *ends[:-1]]
    mine = slice(starts[ranks.rank], ends[ranks.rank])
    keys_kd = embedded(embed, bank.features[mine], None if mask is None else mask[mine], ranks)
    return ranks.gather(keys_kd, [end - start for start, end in zip(starts, ends, strict=True)])


def _stands_for(of: Tensor, drawn: Tensor) -> Tensor:
    """log(of / drawn), and 0 where nothing was drawn or there is nothing to draw from."""
    return (of.clamp(min=1) / drawn.clamp(min=1)).log() * (drawn > 0)


def _in_use(bank: Bank, embed: nn.Module, labels: Tensor, rows: int) -> Contrasts:
    """Classes in random order, the batch's own first, for as long as their segments fit into so many rows."""
    whole = bank.segments
    filled_c = bank.filled_counts() > 0
    own_c = torch.zeros_like(filled_c).index_fill_(0, labels, True)
    # Own classes, then others, then those with nothing to embed.
    rank_c = torch.rand(len(own_c)).to(labels.device, non_blocking=True) + own_c.float() - 2 * (~filled_c).float()
    order = rank_c.argsort(descending=True)
    fits = whole.offsets.diff()[order].cumsum(0) <= rows
    chosen_c = torch.zeros_like(own_c).scatter_(0, order, fits) & filled_c

    # So many rows whatever was chosen, in the bank's order; what is in excess counts as not filled.
    inside_k = chosen_c[whole.class_of_row]
    row = inside_k.to(torch.int8).argsort(descending=True, stable=True)[:rows].sort().values
    segments = Segments(torch.searchsorted(row, whole.offsets), whole.class_of_row[row], whole.longest)
    filled_k = inside_k[row] & bank.filled[row]

    # Drawn classes stand for those of their kind. A query's own class is given, so one of the batch's is not drawn.
    batch_c, others_c = filled_c & own_c, filled_c & ~own_c
    weight_of_batch = _stands_for(batch_c.sum() - 1, (batch_c & chosen_c).sum() - 1)
    weight_of_others = _stands_for(others_c.sum(), (others_c & chosen_c).sum())
    log_weight_c = torch.where(chosen_c, torch.where(own_c, weight_of_batch, weight_of_others), 0.0)
    keys_kd = embedded(embed, bank.features[row], filled_k)
    return Contrasts(keys_kd, segments, bank.ids[row], filled_k, chosen_c, log_weight_c)
