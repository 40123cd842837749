"""The unmodified `litellm`: one way of asking, four ways of talking to the server."""
import asyncio
import json

import litellm
import pytest

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
PROVIDERS = ["ollama", "ollama_chat", "openai", "anthropic"]


def asked(url, provider, **kw):
    base = f"{url}/v1" if provider == "openai" else url
    return {"model": f"{provider}/cria", "api_base": base, "api_key": "none", "temperature": 0, "max_tokens": 200, "messages": QUESTION, **kw}


def each(check, url):
    """Runs a check for every provider; what fails names it."""
    for provider in PROVIDERS:
        try:
            check(url, provider)
        except Exception as error:
            raise AssertionError(f"{provider}: {error}") from error


def test_completions_answer(url):
    def check(url, provider):
        answer = litellm.completion(**asked(url, provider))
        assert answer.choices[0].message.content.strip() == "Paris." and answer.choices[0].finish_reason == "stop", answer
        assert answer.usage.prompt_tokens > 0 and answer.usage.completion_tokens > 0

    each(check, url)


def test_reasoning_is_separate_from_content(url):
    def check(url, provider):
        message = litellm.completion(**asked(url, provider)).choices[0].message
        assert message.reasoning_content and "<think>" not in message.content, message

    # The first of them knows nothing of thoughts.
    for provider in PROVIDERS[1:]:
        check(url, provider)


def test_streamed_chunks_join_to_the_answer(url):
    def check(url, provider):
        chunks = list(litellm.completion(**asked(url, provider, stream=True)))
        whole = litellm.stream_chunk_builder(chunks, messages=QUESTION)
        assert whole.choices[0].message.content.strip() == "Paris." and whole.choices[0].finish_reason == "stop", whole

    each(check, url)


def test_tools_are_called_and_their_results_answered(url):
    def check(url, provider):
        question = [{"role": "user", "content": "What's the weather like in Cairo?"}]
        ask = lambda messages, **kw: litellm.completion(**asked(url, provider, messages=messages, tools=[WEATHER], **kw)).choices[0]
        first = ask(question)
        [call] = first.message.tool_calls
        assert first.finish_reason == "tool_calls" and call.function.name == "get_weather", first
        assert json.loads(call.function.arguments) == {"city": "Cairo"}
        result = {"role": "tool", "tool_call_id": call.id, "name": "get_weather", "content": "12 degrees, cloudy"}
        assert "12" in ask([*question, first.message.model_dump(), result]).message.content

    # The first of them writes tools into the prompt and reads calls from JSON of its own.
    for provider in PROVIDERS[1:]:
        check(url, provider)


def test_streamed_calls_join_to_complete_calls(url):
    def check(url, provider):
        question = [{"role": "user", "content": "What's the weather like in Cairo?"}]
        chunks = list(litellm.completion(**asked(url, provider, messages=question, tools=[WEATHER], stream=True)))
        [call] = litellm.stream_chunk_builder(chunks, messages=question).choices[0].message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Cairo"})

    for provider in PROVIDERS[1:]:
        check(url, provider)


def test_answers_follow_a_json_schema(url):
    schema = {"type": "object", "properties": {"capital": {"type": "string"}}, "required": ["capital"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "capital", "schema": schema, "strict": True}}
    for provider in PROVIDERS[:3]:
        answer = litellm.completion(**asked(url, provider, response_format=form))
        assert list(json.loads(answer.choices[0].message.content)) == ["capital"], (provider, answer)


def test_embeddings_agree_across_providers(url, embedder):
    vectors = [
        litellm.embedding(model=f"{provider}/{embedder}", input=["hello", "world"], api_base=base, api_key="none", **kw).data
        for provider, base, kw in [("ollama", url, {}), ("openai", f"{url}/v1", {"encoding_format": "float"})]
    ]
    for one, other in zip(*vectors):
        assert one["embedding"] == pytest.approx(other["embedding"], abs=1e-6)


def test_asynchronous_completions_are_answered(url):
    async def all_at_once():
        return await asyncio.gather(*(litellm.acompletion(**asked(url, provider)) for provider in PROVIDERS))

    answers = asyncio.run(all_at_once())
    assert [a.choices[0].message.content.strip() for a in answers] == ["Paris."] * 4


def test_errors_have_the_expected_classes(url):
    for provider in PROVIDERS[1:]:
        with pytest.raises((litellm.NotFoundError, litellm.APIConnectionError, litellm.BadRequestError)) as error:
            litellm.completion(**{**asked(url, provider), "model": f"{provider}/nothing"})
        assert "not found" in str(error.value), provider
