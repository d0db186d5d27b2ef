"""What is decided once about the device."""

import platform

import pytest
import torch

from longtail.engine import device as devices


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep or return memory as they like")
def test_memory_of_one_step_is_there_for_the_next():
    import resource

    def new_pages() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(2**24)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    devices.choose("float32", "cpu")
    least = min(new_pages() for _ in range(10))  # a piece that something small was put into may be too small at first
    assert least < 2**26 / 4096 / 10, "64 MB were handed back to the system and fetched again"
