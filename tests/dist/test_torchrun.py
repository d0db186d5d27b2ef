"""The command under `torchrun`: a rank that is killed is started again to the same result, and two nodes are one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from curves import DATA, GML

from longtail.recipe import Recipe, to_dict

pytestmark = pytest.mark.slow  # each rank imports torch anew

MORTAL = Path(__file__).parent / "mortal.py"
STAGE = replace(GML, model="small", keys="momentum", epochs=4, settings={"k": 96, "k_m": 2, "shard_bank": True})


def launch(cwd: Path, *options: str, inside: Sequence[str] = (), **environment: str) -> subprocess.Popen[str]:
    """`torchrun OPTIONS longtail train` on 64 images a step, carried on if it is started again."""
    cwd.mkdir(exist_ok=True)
    (cwd / "recipe.json").write_text(json.dumps(to_dict(Recipe(DATA, (STAGE,), precision="float32"))))
    arguments = ("train", "--config", "recipe.json", "--out", "run", "--device", "cpu", "--resume")
    return subprocess.Popen(
        [*inside, sys.executable, "-m", "torch.distributed.run", *options, str(MORTAL), *arguments],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "LONGTAIL_CACHE": str(cwd / "cache"), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(*processes: subprocess.Popen[str]) -> str:
    said = "\n".join(process.communicate(timeout=1500)[0] for process in processes)
    assert all(process.returncode == 0 for process in processes), said
    return said


def left_by(run: Path) -> dict[str, Any]:
    """Weights, bank and answers to the byte, and what the epochs measured."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    timeless = [{k: v for k, v in row.items() if k not in ("seconds", "images_per_second")} for row in rows]
    names = ("model.safetensors", "bank.safetensors", "backbone.safetensors", "model.json", "per_class.csv")
    return {"rows": timeless} | {name: (run / name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two ranks on one machine leave that nobody disturbs."""
    cwd = tmp_path_factory.mktemp("straight")
    said = finished(launch(cwd, "--standalone", "--nproc-per-node", "2"))
    assert "batch 64 = 2 ranks x 1 steps x 32" in said
    return left_by(cwd / "run")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_started_again_to_the_same_result(tmp_path: Path, rank: int, two_ranks: Any) -> None:
    """In epoch 3 of 4: torchrun ends the other rank too, and both carry on from the checkpoint of epoch 2."""
    options = ("--standalone", "--nproc-per-node", "2", "--max-restarts", "1")
    said = finished(launch(tmp_path, *options, DIES=f"{rank} at 13"))
    assert "carrying on from epoch 2, step 0" in said
    found = left_by(tmp_path / "run")
    assert [row["epoch"] for row in found["rows"]] == [1, 2, 3, 4]
    assert [name for name in two_ranks if found[name] != two_ranks[name]] == []
    assert not (tmp_path / "run" / ".lock").exists()


# Two nodes


def ip(*arguments: str) -> bool:
    try:
        return subprocess.run(["ip", *arguments], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.fixture
def nodes() -> Iterator[list[tuple[str, str, str]]]:
    """Two network namespaces joined by a cable: (name, address, interface) of each."""
    tag = os.getpid() % 10_000
    ends = [(f"lt{tag}{side}", f"10.77.{tag % 250}.{side}", f"lt{tag}v{side}") for side in (1, 2)]
    try:
        if not all(ip("netns", "add", name) for name, _, _ in ends):
            pytest.skip("needs the right to make network namespaces")
        one, two = (interface for _, _, interface in ends)
        if not ip("link", "add", one, "type", "veth", "peer", "name", two):
            pytest.skip("needs the right to make virtual interfaces")
        for name, address, interface in ends:
            assert ip("link", "set", interface, "netns", name)
            assert ip("-n", name, "address", "add", f"{address}/24", "dev", interface)
            assert ip("-n", name, "link", "set", interface, "up")
            assert ip("-n", name, "link", "set", "lo", "up")
        yield ends
    finally:
        for name, _, _ in ends:
            ip("netns", "delete", name)  # takes its end of the cable along


def test_two_nodes_in_their_own_networks(tmp_path: Path, nodes: list[tuple[str, str, str]], two_ranks: Any) -> None:
    """One rank on each, which reach each other by their addresses alone; the run folder is on shared storage."""
    processes = [
        launch(
            tmp_path,
            *("--nnodes", "2", "--node-rank", str(number), "--nproc-per-node", "1"),
            *("--master-addr", nodes[0][1], "--master-port", "29511"),
            inside=("ip", "netns", "exec", name),
            GLOO_SOCKET_IFNAME=interface,
        )
        for number, (name, _, interface) in enumerate(nodes)
    ]
    said = finished(*processes)
    assert "batch 64 = 2 ranks x 1 steps x 32" in said
    found = left_by(tmp_path / "run")
    assert [name for name in two_ranks if found[name] != two_ranks[name]] == []


def test_two_launchers_that_meet_at_a_rendezvous(tmp_path: Path, two_ranks: Any) -> None:
    """As two machines do; the ranks are numbered by whoever comes first."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    options = ("--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "tests")
    processes = []
    for _ in range(2):
        processes.append(launch(tmp_path, *options, "--rdzv-endpoint", f"127.0.0.1:{port}"))
        time.sleep(1)
    finished(*processes)
    found = left_by(tmp_path / "run")
    assert [name for name in two_ranks if found[name] != two_ranks[name]] == []
