"""Random numbers as a pure function of (seed, epoch, position, view).

No generator is carried along, so there is no state to save: a resumed run, another number of workers, another number
of ranks or another batch size draw the same numbers for the same sample. Each number is a hash of its coordinates
(the splitmix64 finaliser), computed with wrapping int64 arithmetic, which gives the same bits on every device.
"""

import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed integer: the splitmix64 increment
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift; torch's own is arithmetic and would drag the sign bit along."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _scramble(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def keys(seed: int, epoch: int, positions: Tensor, view: int = 0) -> Tensor:
    """One 64-bit key a sample. `positions` [B] are places in the epoch's order: a sample drawn twice gets two."""
    start = torch.tensor([seed, epoch, view], dtype=torch.int64, device=positions.device)
    state = torch.zeros((), dtype=torch.int64, device=positions.device)
    for part in start:
        state = _scramble(state + part * _GOLDEN + _GOLDEN)
    return _scramble(positions.to(torch.int64) * _GOLDEN + state)


def uniforms(keys: Tensor, draws: int) -> Tensor:
    """[B] keys -> [B, draws] numbers in [0, 1), float32 with 24 random bits each."""
    counter = torch.arange(1, draws + 1, dtype=torch.int64, device=keys.device)
    bits = _shift(_scramble(keys[:, None] + counter * _GOLDEN), 40)  # [B, draws], 24 bits
    return bits.to(torch.float32) * 2.0**-24
