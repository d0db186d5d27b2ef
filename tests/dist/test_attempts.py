"""Ranks that are started again meet each other, and not what their predecessors left in the launcher's store."""

import threading

import pytest
import torch.distributed as torch_dist

from longtail.engine import dist
from longtail.errors import LongtailError


def attempt(store: torch_dist.Store, size: int) -> list[str]:
    """What each rank reads under a key that rank 0 writes."""
    seen = [""] * size

    def rank(number: int) -> None:
        mine = dist.of_this_attempt(store, number, size, patience=60)
        if number == 0:
            mine.set("address", str(threading.get_ident()))
        seen[number] = mine.get("address").decode()

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen


def test_an_attempt_does_not_see_the_one_before() -> None:
    store = torch_dist.HashStore()
    first, second = attempt(store, 3), attempt(store, 3)
    assert len(set(first)) == len(set(second)) == 1
    assert first[0]


def test_one_that_broke_off_in_the_middle_is_no_riddle() -> None:
    store = torch_dist.HashStore()
    for number in (0, 1):  # rank 1 asked and died; rank 0 told it a name and died
        with pytest.raises(LongtailError, match=f"rank {number} waited .* for rank"):
            dist.of_this_attempt(store, number, 3, patience=0)
    assert len(set(attempt(store, 3))) == 1
