"""Reranking over HTTP, with the small reranker of the test data."""
from pathlib import Path

import pytest

from conftest import create

FILE = Path(__file__).parents[1] / "data" / "zoo" / "bert-rank.gguf"
DOCUMENTS = ["hi", {"text": "The panda is a bear."}, "it is a fish"]


@pytest.fixture(scope="module")
def ranker(server):
    return create(server, "ranker", FILE)


@pytest.mark.parametrize("path", ["/api/rerank", "/v1/rerank", "/v2/rerank", "/rerank"])
def test_documents_are_sorted_by_score(server, ranker, path):
    status, answer = server.post(path, {"model": ranker, "query": "what is it?", "documents": DOCUMENTS, "return_documents": True})
    assert status == 200, answer
    scores = [result["relevance_score"] for result in answer["results"]]
    assert scores == sorted(scores, reverse=True) and sorted(r["index"] for r in answer["results"]) == [0, 1, 2]
    assert {r["index"]: r["document"]["text"] for r in answer["results"]}[1] == "The panda is a bear."
    status, best = server.post(path, {"model": ranker, "query": "what is it?", "documents": DOCUMENTS, "top_n": 1})
    assert [r["index"] for r in best["results"]] == [answer["results"][0]["index"]]


def test_errors_for_other_models_name_the_route_to_use(server, ranker):
    status, answer = server.post("/v1/rerank", {"model": "cria", "query": "a", "documents": ["b"]})
    assert status == 400 and "POST /api/chat" in answer["error"]["message"]
    status, answer = server.post("/api/embed", {"model": ranker, "input": "a"})
    assert status == 400 and "POST /api/rerank" in answer["error"]
