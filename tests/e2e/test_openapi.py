"""The OpenAPI document against the running server, with generated requests."""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
from conftest import REPOSITORY, wait_for

SETTINGS = REPOSITORY / "tests/schema"
# Ends a run that hangs. On a busy machine one takes minutes.
HANGS_SECONDS = 1200


@pytest.fixture(autouse=True)
def schemathesis():
    if importlib.util.find_spec("schemathesis") is None:
        pytest.skip("SKIPPED: schemathesis is not to be had here (tests/schema/requirements.txt)")


def run(folder, document, url, *arguments):
    """Runs schemathesis over a document; its exit must be clean."""
    path = pathlib.Path(folder) / "openapi.json"
    path.write_text(json.dumps(document))
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", SETTINGS / "schemathesis.toml", "run", path, "--url", url, *arguments]
    done = subprocess.run(list(map(str, command)), cwd=folder, env={**os.environ, "PYTHONPATH": str(SETTINGS)}, capture_output=True, text=True, timeout=HANGS_SECONDS)
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-2000:]
    return done.stdout


def test_responses_match_the_openapi_document(fresh, tmp_path):
    server = fresh()
    document = json.loads(server.get("/openapi.json")[1])
    # One worker: Python 3.11 counts the depth of its parser for all threads together, and fails where two of them read code.
    run(tmp_path, document, server.url, "--phases", "examples,coverage,fuzzing", "--max-examples", "10", "--workers", "1")
    assert server.process.poll() is None and server.get("/health")[0] == 200
    # Nothing was left behind that hinders others.
    status, answer = server.post("/api/chat", {"model": "cria", "messages": [{"role": "user", "content": "Hello!"}], "stream": False})
    assert status == 200 and answer["done"]


def test_routes_that_need_a_key_refuse_requests_without_one(fresh, tmp_path):
    server = fresh()
    secret = server.cli("key", "add", "tester", "--scope", "admin", check=True).stdout.strip()
    assert wait_for(lambda: server.knows(secret))
    document = json.loads(server.get("/openapi.json")[1])
    # With keys nobody comes without.
    for _, _, operation in operations(document):
        operation["security"] = [way for way in operation["security"] if way]
    run(tmp_path, document, server.url, "--phases", "examples,coverage", "--max-examples", "1", "--mode", "positive", "--checks", "ignored_auth,not_a_server_error", "-H", f"Authorization: Bearer {secret}")


def operations(document):
    return [(path, method, operation) for path, methods in document["paths"].items() for method, operation in methods.items()]
