"""Training has not moved: the demo's loss, step by step."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from curve import CURVE, STEPS, losses


def test_the_first_steps_are_the_recorded_ones_and_repeat_to_the_bit(tmp_path):
    first, again = losses(tmp_path, epochs=6), losses(tmp_path, epochs=6)
    assert first == again
    recorded = [float(line.split()[1]) for line in CURVE.read_text().splitlines()]
    assert first[:STEPS] == pytest.approx(recorded[:STEPS], rel=1e-3)
