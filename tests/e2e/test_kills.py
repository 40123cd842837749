"""Pulls, pushes and mirrors that are killed at random times under load. `benches/kills` runs longer."""
import importlib.machinery
import importlib.util
import os
import pathlib

import pytest

from conftest import BINARY, wait_for

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "benches" / "kills"
KILLS = int(os.environ.get("PUNA_TEST_KILLS", 5))


@pytest.fixture(scope="module")
def kills():
    """The script as a module."""
    loader = importlib.machinery.SourceFileLoader("kills", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("kills", loader))
    loader.exec_module(module)
    return module


@pytest.mark.parametrize("victim", ["pull", "push", "mirror"])
def test_bytes_received_before_a_kill_are_reused_and_nothing_corrupt_is_served_or_listed(kills, victim, tmp_path):
    worker = kills.VICTIMS[victim](str(BINARY), size=24_000_000, rate=16_000_000, seed=3, folder=tmp_path)
    worker.run(KILLS)
    assert worker.kills >= KILLS and worker.done >= 1
    assert worker.kept > 0, "nothing went on from what was there"


def test_a_push_killed_within_a_blob_sends_only_the_rest(kills, tmp_path):
    size, rate = 24_000_000, 12_000_000
    worker = kills.Push(str(BINARY), size=size, rate=rate, seed=5, folder=tmp_path)
    there = kills.Store(tmp_path / "there")
    worker.start_mirror(there.root)
    try:
        way, client = kills.Forward(worker.port), kills.Client(worker.port)
        manifest, blobs = kills.model(worker.random.randbytes(size))
        [weights] = [of for of, data in blobs.items() if len(data) == size]
        name = f"127.0.0.1:{way.here}/me/m"
        worker.store.put(f"{name}/latest", manifest, blobs)
        push = lambda: worker.start("push", "--insecure", name, PUNA_REGISTRY_LIMIT_RATE=str(rate))
        killed = push()
        assert wait_for(lambda: way.passed > size // 3, 30), worker.said("push")
        killed.kill()
        killed.wait()
        first, way.passed = way.passed, 0
        assert first < size, "it was too fast to be interrupted"
        assert push().wait(60) == 0, worker.said("push")
        assert way.passed < size - first + 2 * kills.SLACK, f"{first} bytes of {size} came first, then {way.passed}"
        assert client.ask("GET", f"/v2/me/m/blobs/{weights}")[2] == blobs[weights]
        there.check()
        assert not list(worker.store.root.glob("puna-tmp/*.push"))
    finally:
        worker.stop()
