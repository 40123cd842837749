"""Garbage collection of a mirror."""
import os
import time

import pytest

from conftest import wait_for
from test_mirror import digest, mirror  # noqa: F401 (a fixture)

HOURS = 60 * 60


@pytest.mark.parametrize("keeps", [False, True])
def test_a_mirror_removes_blobs_of_replaced_models_and_no_others(mirror, keeps):  # noqa: F811
    it = mirror(**({"OLLAMA_NOPRUNE": "1"} if keeps else {}))
    it.stop()
    it.model("library/there/latest", [("application/vnd.ollama.image.template", b"of a model"), ("config", b"{}")])
    models = it.home / ".ollama/models"
    blob = lambda data: models / "blobs" / digest(data).replace(":", "-")  # noqa: E731
    left, other, used, coming = (blob(data) for data in (b"of the model before", b"of another program", b"of a model", b"coming"))
    left.write_bytes(b"of the model before")
    other.write_bytes(b"of another program")
    coming = coming.with_name(coming.name + "-partial")
    coming.write_bytes(b"com")
    for file in (left, other, used, coming):
        os.utime(file, (time.time() - 2 * HOURS,) * 2)
    # The mirror notes which blobs a model needed that another one has replaced.
    note = models / "puna-tmp/removals/note"
    note.parent.mkdir(parents=True)
    note.write_text(digest(b"of the model before") + "\n" + digest(b"of a model") + "\n")
    it.start()
    gone = wait_for(lambda: not left.exists(), 2 if keeps else 10)
    assert bool(gone) != keeps
    assert used.exists() and coming.exists() and other.exists(), "what is needed, a download that may continue, and what is not ours"
