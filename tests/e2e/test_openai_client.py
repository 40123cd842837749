"""The unmodified `openai` Python client against `puna serve`."""
import openai
import pytest

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_models_are_listed(client):
    assert "cria:latest" in [m.id for m in client.models.list()]
    assert client.models.retrieve("cria").object == "model"


def test_chat_completions_answer(client):
    answer = client.chat.completions.create(model="cria", messages=MESSAGES, temperature=0)
    assert answer.object == "chat.completion" and answer.model == "cria"
    assert answer.choices[0].message.content == "Paris." and answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_completions_stream(client):
    parts = list(client.chat.completions.create(model="cria", messages=MESSAGES, temperature=0, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.delta.content or "" for p in parts for c in p.choices) == "Paris."
    assert [c.finish_reason for p in parts for c in p.choices][-1] == "stop"
    assert parts[-1].choices == [] and parts[-1].usage.completion_tokens > 0


def test_max_tokens_and_stop(client):
    count = [{"role": "user", "content": "Count to 5."}]
    short = client.chat.completions.create(model="cria", messages=count, temperature=0, max_tokens=3)
    assert short.usage.completion_tokens == 3 and short.choices[0].finish_reason == "length"
    stopped = client.chat.completions.create(model="cria", messages=count, temperature=0, stop=", 4", extra_body={"reasoning_effort": "none"})
    assert stopped.choices[0].message.content == "1, 2, 3" and stopped.choices[0].finish_reason == "stop"


def test_errors_have_openai_s_shape(client):
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="nothing", messages=MESSAGES)
    assert "nothing" in error.value.message
