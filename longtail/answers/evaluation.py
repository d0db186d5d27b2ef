"""`longtail evaluate`: how good is a run, on which images, under which prior, and where does it go wrong?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from longtail.answers.run import PriorLike, Run, answered, collected, questions, read_prior, ruled_out
from longtail.data.table import ImageTable
from longtail.files import make_folder, told_apart, write_json
from longtail.measure import logits
from longtail.measure.counters import Counters
from longtail.measure.groups import NAMES, Groups
from longtail.measure.metrics import HEADLINE, REST, Summary, render, summarise, where_answers_go
from longtail.measure.per_class import PerClass, write_csv
from longtail.measure.priors import PriorEstimate, estimate_prior
from longtail.prior import log_prior, to_file, uniform
from longtail.wording import number_of


@dataclass(frozen=True)
class Evaluation:
    """Counts of one pass and what follows from them; printed, it is the report."""

    run: str
    data: str
    split: str
    prior: str  # in words
    head: str
    absent: tuple[str, ...]  # classes ruled out on top of the prior
    classes: tuple[str, ...]
    counts: np.ndarray  # [C] training images
    groups: Groups
    per_class: PerClass
    summary: Summary
    probabilities: np.ndarray | None  # [C] the prior that was added; None for scores as trained
    estimate: PriorEstimate | None = None
    scores: logits.Logits | None = None  # prior-free, where they were to be kept
    skipped: int = 0  # images that could not be read
    kernel_weight: float | None = None  # of the head `both`
    fitted: bool = False  # was that weight fitted on val?
    other_data: str = ""  # where they are, if they are not the run's own
    prior_file: str = ""

    def __str__(self) -> str:
        row = {f"prior {self.prior}": self.summary}
        images = number_of(int(self.per_class.n.sum()), "image")
        lines = [
            f"{self.run} on {self.data} {self.split}: {images}, head {self.head}",
            *self._weight(),
            *([f"ruled out: {', '.join(self.absent)}"] if self.absent else []),
            *([f"could not be read and left out: {number_of(self.skipped, 'image')}"] if self.skipped else []),
            str(self.groups),
            "",
            render(row, HEADLINE),
            "",
            render(row, REST),
            "per cent; the last epoch, never a selected one; classes without an image are in no mean",
            "",
            *self._errors(),
            *self._worst(),
            *self._estimate(),
        ]
        return "\n".join(lines)

    def _weight(self) -> list[str]:
        if self.kernel_weight is None:
            return []
        how = "fitted on val" if self.fitted else "not fitted: no image was held out of training"
        return [f"{1 - self.kernel_weight:.2f} cosine + {self.kernel_weight:.2f} kernel ({how})"]

    def _errors(self) -> list[str]:
        shares = where_answers_go(self.per_class, self.groups)
        assert shares is not None
        lines = [f"images of{'right':>13}   wrong, called{''.join(f'{name:>9}' for name in NAMES)}"]
        for name, row in zip(NAMES, shares, strict=True):
            right, *wrong = ["-" if np.isnan(share) else f"{100 * share:.1f}" for share in row]
            lines.append(f"{name:<12}{right:>10}{'':16}{''.join(f'{cell:>9}' for cell in wrong)}")
        return [*lines, ""]

    def _worst(self, shown: int = 5) -> list[str]:
        measured = np.flatnonzero(self.per_class.n)
        accuracy = self.per_class.accuracy
        worst = measured[np.argsort(accuracy[measured], kind="stable")][:shown]
        some = ", ".join(
            f"{self.classes[c]}: {100 * accuracy[c]:.0f} % ({self.counts[c]:,} in training)" for c in worst
        )
        missing = len(self.classes) - len(measured)
        return [f"worst classes: {some}"] + (
            [f"not measured: {number_of(missing, 'class')} without a test image"] if missing else []
        )

    def _estimate(self, shown: int = 5) -> list[str]:
        if self.estimate is None:
            return []
        prior, interval = self.estimate.prior, self.estimate.interval
        assert interval is not None
        top = np.argsort(-prior, kind="stable")[:shown]
        lines = ["", "class mix learned from the images without their labels (90 % interval):"]
        lines += [
            f"  {self.classes[c]}: {100 * prior[c]:.1f} % ({100 * interval[0, c]:.1f} to {100 * interval[1, c]:.1f})"
            for c in top
        ]
        true = self.per_class.n / self.per_class.n.sum()
        return [
            *lines,
            f"  {np.abs(prior - true).sum() / 2:.2f} from the true mix (total variation; 0 is equal, 1 apart)",
        ]

    def save(self, folder: Path) -> Path:
        """report.json and per_class.csv; prior.csv where a prior was added, which can be given as --prior again."""
        make_folder(folder)
        bounds = dict(zip(NAMES, self.groups.bounds, strict=True))
        about = {name: getattr(self, name) for name in ("run", "data", "split", "prior", "head", "absent", "skipped")}
        report = {**about, "groups": bounds, "summary": self.summary}
        if self.estimate is not None and self.estimate.interval is not None:
            low, high = self.estimate.interval.tolist()
            report["estimate"] = {"low": low, "high": high, "gap_nats": self.estimate.gap}
        write_json(folder / "report.json", report)
        write_csv(folder / "per_class.csv", self.per_class, self.classes, self.counts, self.groups)
        if self.probabilities is not None:
            to_file(folder / "prior.csv", self.classes, self.probabilities.tolist())
        if self.scores is not None:
            logits.save(folder / "scores.npz", self.scores)
        return folder

    @property
    def name(self) -> str:
        """Of its folder in RUN/eval: test-uniform, val-estimated-kernel."""
        prior = "adjusted" if self.prior.startswith("as adjusted") else Path(self.prior).stem
        head = (self.head,) if self.head != "cosine" else ()
        absent = (f"without-{len(self.absent)}",) if self.absent else ()
        elsewhere = (self.data,) if self.other_data else ()
        words = "-".join((self.split, prior, *head, *absent, *elsewhere))
        return told_apart(words, self.prior_file, self.other_data, *sorted(self.absent))


def evaluate(
    run: Run,
    data: str | Path | ImageTable | None = None,
    *,
    split: str | None = None,
    prior: PriorLike | None = None,
    head: str = "cosine",
    absent: Sequence[str] = (),
    keep_scores: bool = False,
) -> Evaluation:
    """Answer labelled images under a prior and count. `prior=None` is as-trained, or uniform for the other heads.

    Memory is O(classes), but for `estimate`, which has to see all scores at once, and where the scores are kept.
    """
    prior = ("as-trained" if head == "cosine" else "uniform") if prior is None else prior
    as_trained = isinstance(prior, str) and prior == "as-trained"
    run.check_head(head, prior)
    mask_c = ruled_out(run.classes, absent)
    asked = questions(run, data, split)
    kept, estimate, prior_file = None, None, ""
    if keep_scores or (isinstance(prior, str) and prior == "estimate"):
        kept = logits.Logits(
            *collected(run, asked.loader, uniform(len(run.classes)), head), run.classes, run.counts, "uniform"
        )
    if as_trained:
        word, log_prior_c = f"as adjusted ({run.model.adjusted['what']})" if run.model.adjusted else "as-trained", None
    elif isinstance(prior, str) and prior == "estimate":
        assert kept is not None
        estimate = estimate_prior(kept.scores, possible=mask_c.isfinite().numpy())
        word, log_prior_c = "estimated", log_prior(torch.from_numpy(estimate.prior))
    else:
        counts = {"train": run.counts} | {name: asked.table.counts(name) for name in ("val", "test")}
        word = str(prior) if isinstance(prior, str | Path) else "given"
        prior_file = word if isinstance(prior, str | Path) and word not in ("uniform", *counts) else ""
        log_prior_c = read_prior(prior, run.classes, counts, ("estimate", "as-trained")) + mask_c
    counters = Counters(len(run.classes), groups=torch.from_numpy(run.groups.codes), device=run.device.torch)
    again = None if kept is None or log_prior_c is None else _kept(kept, log_prior_c)  # answered already
    for scores_bc, labels in again or answered(run, asked.loader, log_prior_c, head):
        counters.update(scores_bc + mask_c.to(scores_bc.device), labels)
    per_class = counters.per_class()
    return Evaluation(
        run=str(run.folder),
        data=asked.table.name,
        split=asked.split,
        prior=word,
        head=head,
        absent=tuple(absent),
        classes=run.classes,
        counts=run.counts,
        groups=run.groups,
        per_class=per_class,
        summary=summarise(per_class, run.counts, lambda counts: run.groups),
        probabilities=None if log_prior_c is None else log_prior_c.double().softmax(0).numpy(),
        estimate=estimate,
        scores=kept if keep_scores else None,
        skipped=len(getattr(asked.loader, "bad", ())),
        kernel_weight=run.model.kernel_weight if head == "both" else None,
        fitted="kernel_weight" in run.model.card,
        other_data="" if data is None else asked.table.name if isinstance(data, ImageTable) else str(data),
        prior_file=prior_file,
    )


def _kept(kept: logits.Logits, log_prior_c: Tensor, size: int = 1024) -> Iterator[tuple[Tensor, Tensor]]:
    """Scores that are there already, under a prior."""
    scores, labels = torch.from_numpy(kept.scores), torch.from_numpy(kept.labels)
    for part in zip(scores.split(size), labels.split(size), strict=True):
        yield part[0] + log_prior_c, part[1]
