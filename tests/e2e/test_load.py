"""Short runs of the checks of benches/load and benches/office; full runs are in benches/record."""
import json
import subprocess
import sys

from conftest import BINARY, REPOSITORY


def load(*arguments, script="load"):
    done = subprocess.run([sys.executable, REPOSITORY / "benches" / script, BINARY, *arguments], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_two_hundred_concurrent_streams_are_answered():
    told = load("streams")
    assert told["loaded"] == {"answered": 200}


def test_memory_does_not_grow_under_load():
    load("memory", "--requests", "5000")


def test_disturbed_traffic_leaves_no_state():
    told = load("chaos", "--seconds", "45")
    assert told["ends"]["answered"] > 0 and told["disturbed"], told


def test_hostile_keys_neither_learn_secrets_nor_keep_others_from_answers():
    told = load("--minutes", "0.3", "--users", "8", "--rate", "2", "--untimed", "--deterministic", script="office")
    assert told["hostile"]["answered"]["chat"] > 0 and told["hostile"]["attacks"]["4xx"] > 0, told
