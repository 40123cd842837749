"""Pulls, pushes and mirrors that are killed at random moments under load. `benches/kills` does the same at length."""
import importlib.machinery
import importlib.util
import os
import pathlib

import pytest

from conftest import BINARY

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "benches" / "kills"
KILLS = int(os.environ.get("PUNA_TEST_KILLS", 5))


@pytest.mark.parametrize("victim", ["pull", "push", "mirror"])
def test_what_arrived_before_a_kill_is_not_moved_again_and_nothing_corrupt_is_served_or_listed(victim, tmp_path):
    loader = importlib.machinery.SourceFileLoader("kills", str(SCRIPT))
    kills = importlib.util.module_from_spec(importlib.util.spec_from_loader("kills", loader))
    loader.exec_module(kills)
    worker = kills.VICTIMS[victim](str(BINARY), size=24_000_000, rate=16_000_000, seed=3, folder=tmp_path)
    worker.run(KILLS)
    assert worker.kills >= KILLS and worker.done >= 1
    assert worker.kept > 0, "nothing went on from what was there"
