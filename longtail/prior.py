"""How often is class c seen: in training, and where the model is used.

A prior is a [C] tensor of log probabilities. Two of them describe what a loss did, and they are all that is needed to
take the training set's class mix out of a trained score, exactly once:

    log_added   what the loss added to its scores before the softmax
    log_mass    the class mass the loss saw: counts x sampler x class weights

A network that minimises cross-entropy of `scores + log_added` over a class mass `log_mass` learns
scores + log_added = log p(x|c) + log_mass, so `prior_free` gives log p(x|c) back (up to a term that no class sees).
Exact for priors; to first order for class weights and samplers, whose effect a finite network absorbs only in part.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from longtail.errors import LongtailError
from longtail.types import Counts


def log_prior(counts_c: Counts, tau: float = 1.0) -> Tensor:
    """tau * log p_c from class counts. A class that never occurs gets -inf: it can be no sample's label."""
    counts_c = torch.as_tensor(counts_c, dtype=torch.float64)
    if counts_c.ndim != 1 or len(counts_c) == 0 or (counts_c < 0).any() or counts_c.sum() <= 0:
        raise LongtailError(
            f"class counts must be a list of non-negative numbers with a positive sum, got {counts_c.tolist()}"
        )
    if tau == 0:
        return uniform(len(counts_c))
    return (tau * (counts_c / counts_c.sum()).log()).float()


def uniform(num_classes: int) -> Tensor:
    """The prior of a balanced test. Written as zeros, so that adding it changes no bit of a score."""
    return torch.zeros(num_classes)


def prior_free(scores_bc: Tensor, log_mass_c: Tensor, log_added_c: Tensor) -> Tensor:
    """scores - (log_mass - log_added): what remains is log p(x|c).

    A class without training images has no mass and was never learned; its score is left as it is. The result has at
    least the priors' float32: in bfloat16 the difference of two large scores would be off by a tenth.
    """
    correction_c = log_mass_c - log_added_c
    if scores_bc.ndim == 4:  # pixels, [B, C, H, W]
        correction_c = correction_c[:, None, None]
    return scores_bc - torch.where(correction_c.isfinite(), correction_c, torch.zeros_like(correction_c))


def from_file(path: str | Path, classes: Sequence[str]) -> Tensor:
    """Read `class,probability` lines (CSV or TSV, header or not). Every class must be named; zero means "not here"."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise LongtailError(f"cannot read the prior file {path}: {error}") from None
    rows = [row for row in csv.reader(text.splitlines(), delimiter="\t" if "\t" in text else ",") if row]
    if rows and not _is_number(rows[0][-1]):
        rows = rows[1:]
    known, given = {name: index for index, name in enumerate(classes)}, {}
    for row in rows:
        if len(row) != 2 or not _is_number(row[1]):
            raise LongtailError(f"{path}: expected `class,probability` on every line, found {','.join(row)!r}")
        if row[0] not in known:
            raise LongtailError(f"{path}: there is no class named {row[0]!r}; the model knows {_some(classes)}")
        given[row[0]] = float(row[1])
    missing = [name for name in classes if name not in given]
    if missing:
        raise LongtailError(f"{path} gives no probability for {_some(missing)}; write 0 for a class that cannot occur")
    probabilities = torch.tensor([given[name] for name in classes], dtype=torch.float64)
    if not probabilities.isfinite().all() or (probabilities < 0).any() or abs(probabilities.sum().item() - 1) > 1e-3:
        raise LongtailError(
            f"{path}: probabilities must be non-negative and sum to 1, these sum to {probabilities.sum():g}"
        )
    return (probabilities / probabilities.sum()).log().float()


def to_file(path: str | Path, classes: Sequence[str], probabilities: Sequence[float]) -> None:
    """Write what `from_file` reads."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("class", "probability"))
        writer.writerows(zip(classes, probabilities, strict=True))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _some(names: Sequence[str], limit: int = 5) -> str:
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
