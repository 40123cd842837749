"""The unmodified `langchain-ollama` and `langchain-openai`."""
import asyncio

import pytest
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

QUESTION = "What is the capital of France?"


class Capital(BaseModel):
    """The capital of a country."""

    capital: str


@tool
def get_weather(city: str) -> str:
    """Get the weather in a city"""
    return "12 degrees, cloudy"


@pytest.fixture(scope="module")
def chat(url):
    return ChatOllama(model="cria", base_url=url, temperature=0, reasoning=False, validate_model_on_init=True)


@pytest.fixture(scope="module")
def other(url):
    return ChatOpenAI(model="cria", base_url=f"{url}/v1", api_key="none", temperature=0, reasoning_effort="none")


def test_chat_ollama_answers(chat, url):
    answer = chat.invoke([SystemMessage("Address the user as Wanda in every answer."), HumanMessage("What is bigger, 698 or 933?")])
    assert answer.content == "933, Wanda." and answer.usage_metadata["output_tokens"] > 0
    assert answer.response_metadata["done_reason"] == "stop"
    thoughtful = ChatOllama(model="cria", base_url=url, temperature=0, reasoning=True).invoke(QUESTION)
    assert thoughtful.content == "Paris." and thoughtful.additional_kwargs["reasoning_content"]


def test_chat_ollama_streams(chat):
    chunks = list(chat.stream(QUESTION))
    assert "".join(chunk.content for chunk in chunks) == "Paris." and len(chunks) > 1
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.usage_metadata["total_tokens"] > 0


def test_chat_ollama_answers_asynchronously(chat):
    async def ask():
        answer, pieces = await chat.ainvoke(QUESTION), [chunk.content async for chunk in chat.astream(QUESTION)]
        return answer.content, "".join(pieces)

    assert asyncio.run(ask()) == ("Paris.", "Paris.")


def tools_are_called(model):
    bound = model.bind_tools([get_weather])
    messages = [HumanMessage("What's the weather like in Cairo?")]
    asked = bound.invoke(messages)
    [call] = asked.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Cairo"})
    streamed = [chunk for part in bound.stream(messages) for chunk in part.tool_call_chunks]
    assert streamed[0]["name"] == "get_weather"
    result = get_weather.invoke(call)
    assert isinstance(result, ToolMessage)
    assert "12" in bound.invoke([*messages, asked, result]).text


def test_chat_ollama_calls_tools(chat):
    tools_are_called(chat)


def test_chat_openai_calls_tools(other):
    tools_are_called(other)


def test_chat_ollama_gives_structured_output(chat):
    for method in ("json_schema", "function_calling", "json_mode"):
        question = f"{QUESTION} Answer in JSON with the key capital." if method == "json_mode" else QUESTION
        form = Capital if method == "json_schema" else Capital.model_json_schema()
        answer = chat.with_structured_output(form, method=method).invoke(question)
        # The tiny model need not call what it was not made to.
        assert answer is None or isinstance(answer, (Capital, dict)), method
    assert isinstance(chat.with_structured_output(Capital).invoke(QUESTION), Capital)


def test_chat_openai_gives_structured_output(other):
    for method in ("json_schema", "function_calling"):
        answer = other.with_structured_output(Capital, method=method).invoke(QUESTION)
        assert isinstance(answer, Capital), method


def test_chat_openai_answers_and_streams(other):
    assert other.invoke(QUESTION).content == "Paris."
    assert "".join(chunk.content for chunk in other.stream(QUESTION)) == "Paris."


def test_chat_openai_uses_the_responses_api(url):
    model = ChatOpenAI(model="cria", base_url=f"{url}/v1", api_key="none", temperature=0, use_responses_api=True)
    assert model.invoke(QUESTION).text == "Paris."
    assert "".join(chunk.text for chunk in model.stream(QUESTION)) == "Paris."
    tools_are_called(ChatOpenAI(model="cria", base_url=f"{url}/v1", api_key="none", temperature=0, use_responses_api=True, reasoning={"effort": "none"}))


def test_ollama_llm_completes(url):
    model = OllamaLLM(model="cria", base_url=url, temperature=0, reasoning=False)
    assert model.invoke(QUESTION).strip() == "Paris."
    assert "".join(model.stream(QUESTION)).strip() == "Paris."


def test_embeddings_equal_those_of_the_model(url, embedder):
    one = OllamaEmbeddings(model=embedder, base_url=url)
    other = OpenAIEmbeddings(model=embedder, base_url=f"{url}/v1", api_key="none", check_embedding_ctx_length=False)
    assert one.embed_query("hello") == pytest.approx(one.embed_documents(["x", "hello"])[1], abs=1e-6)
    assert one.embed_query("hello") == pytest.approx(other.embed_query("hello"), abs=1e-6)
