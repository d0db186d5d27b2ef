"""What an objective has that trains an encoder only: no head, so no scores."""

from __future__ import annotations

from typing import NoReturn

from longtail.errors import LongtailError


def refuse_scores(method: str) -> NoReturn:
    raise LongtailError(
        f"{method} trains an encoder, which has no head to answer with: train one on it, in a stage that starts from it"
    )
