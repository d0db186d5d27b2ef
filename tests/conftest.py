"""Fixtures every test may use."""

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # the arrays are tiny, and tests may run in parallel


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data: $LONGTAIL_DATA, else the folder shared/data beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("LONGTAIL_DATA") or beside)
    if not folder.is_dir():
        pytest.skip(f"needs real data: LONGTAIL_DATA is not set and {beside} does not exist")
    return folder
