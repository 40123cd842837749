"""What a mirror clears away by itself."""
import os
import time

import pytest

from conftest import wait_for
from test_mirror import digest, mirror  # noqa: F401 (a fixture)

HOURS = 60 * 60


@pytest.mark.parametrize("keeps", [False, True])
def test_a_mirror_removes_what_no_model_uses(mirror, keeps):  # noqa: F811
    it = mirror(**({"OLLAMA_NOPRUNE": "1"} if keeps else {}))
    it.stop()
    it.model("library/there/latest", [("application/vnd.ollama.image.template", b"of a model"), ("config", b"{}")])
    blobs = it.home / ".ollama/models/blobs"
    left, used, coming = (blobs / digest(data).replace(":", "-") for data in (b"of the model before", b"of a model", b"coming"))
    left.write_bytes(b"of the model before")
    coming = coming.with_name(coming.name + "-partial")
    coming.write_bytes(b"com")
    for file in (left, used, coming):
        os.utime(file, (time.time() - 2 * HOURS,) * 2)
    it.start()
    gone = wait_for(lambda: not left.exists(), 2 if keeps else 10)
    assert bool(gone) != keeps
    assert used.exists() and coming.exists(), "what is used, and a download that may go on"
