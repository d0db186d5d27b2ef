"""How every page that is made from results/ writes a number over seeds, and a table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def over_seeds(values: Sequence[float]) -> str:
    """Mean ± sample standard deviation of shares, in per cent; a single seed has no deviation and an asterisk."""
    error = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else "\\*"
    return f"{100 * statistics.mean(values):.1f}{error}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
