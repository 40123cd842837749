"""Pulls that are killed at random moments. `benches/kills` does the same at length."""
import importlib.machinery
import importlib.util
import pathlib

from conftest import BINARY

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "benches" / "kills"


def test_what_arrived_before_a_kill_is_not_fetched_again_and_nothing_corrupt_is_listed(tmp_path):
    loader = importlib.machinery.SourceFileLoader("kills", str(SCRIPT))
    kills = importlib.util.module_from_spec(importlib.util.spec_from_loader("kills", loader))
    loader.exec_module(kills)
    worker = kills.Worker(str(BINARY), size=40_000_000, rate=20_000_000, seed=3, folder=tmp_path)
    worker.run(6)
    assert worker.kills >= 6 and worker.pulls >= 1
    assert worker.kept > 0, "no pull went on from what another one had left"
