"""The server that the suites talk to: the one that the end-to-end tests started."""
import os

import pytest

# Without it every import asks another server for prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["LANGSMITH_TRACING"] = "false"


@pytest.fixture(scope="session")
def url():
    return os.environ["PUNA_URL"]


@pytest.fixture(scope="session")
def embedder():
    return os.environ["PUNA_EMBEDDER"]
