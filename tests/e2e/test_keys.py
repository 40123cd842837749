"""API keys, with client libraries and commands."""
import json
import re

import anthropic
import ollama
import openai
import pytest

from conftest import puna, running, wait_for

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def locked():
    """A server with a key for inference and one for everything."""
    with running() as server:
        keys = {"user": new_key(server.env, "user"), "boss": new_key(server.env, "boss", "--scope", "admin")}
        assert wait_for(lambda: server.knows(keys["boss"]))
        yield server, keys


def new_key(env, name, *args):
    return puna("key", "add", name, *args, env=env, check=True).stdout.strip()


def test_every_client_needs_a_valid_key(locked):
    server, keys = locked
    ollama_client = lambda key: ollama.Client(host=server.url, headers={"Authorization": f"Bearer {key}"})
    assert ollama_client(keys["user"]).chat("cria", MESSAGES, think=False).message.content == "Paris."
    with pytest.raises(ollama.ResponseError) as error:
        ollama_client("puna-wrong").chat("cria", MESSAGES)
    assert error.value.status_code == 401

    openai_client = lambda key: openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)
    assert openai_client(keys["user"]).chat.completions.create(model="cria", messages=MESSAGES).choices
    with pytest.raises(openai.AuthenticationError, match="unknown API key"):
        openai_client("none").models.list()

    anthropic_client = lambda key: anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0)
    assert anthropic_client(keys["user"]).messages.create(model="cria", max_tokens=50, messages=MESSAGES).content
    with pytest.raises(anthropic.AuthenticationError):
        anthropic_client("none").messages.create(model="cria", max_tokens=50, messages=MESSAGES)


def test_commands_send_their_key(locked):
    server, keys = locked
    done = puna("list", env=server.env)
    assert done.returncode == 1 and "PUNA_API_KEY" in done.stderr, done
    assert "cria" in puna("list", env=server.env | {"PUNA_API_KEY": keys["user"]}, check=True).stdout
    done = puna("cp", "cria", "mine", env=server.env | {"PUNA_API_KEY": keys["user"]})
    assert done.returncode == 1 and 'the API key "user" may not do this: it lacks the scope models' in done.stderr, done
    puna("cp", "cria", "mine", env=server.env | {"OLLAMA_API_KEY": keys["boss"]}, check=True)


def test_keys_are_listed_and_removed_but_never_shown_again(locked):
    server, keys = locked
    listed = puna("key", "list", "--json", env=server.env, check=True).stdout
    assert [k["name"] for k in json.loads(listed)["keys"]] == ["user", "boss"]
    assert not any(secret in listed for secret in keys.values())
    extra = new_key(server.env, "extra")
    assert wait_for(lambda: server.knows(extra))
    assert puna("key", "add", "extra", env=server.env).returncode == 1
    puna("key", "rm", "extra", env=server.env, check=True)
    assert wait_for(lambda: not server.knows(extra))
    done = puna("list", env=server.env | {"PUNA_API_KEY": extra})
    assert done.returncode == 1 and "unknown API key" in done.stderr


def test_a_key_over_its_rate_limit_gets_a_retry_after(locked):
    server, _ = locked
    key = new_key(server.env, "slow", "--requests-per-minute", "2")
    # Asking whether it is known would use it up; what was added later is known later.
    later = new_key(server.env, "later")
    assert wait_for(lambda: server.knows(later))
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)
    client.models.list(), client.models.list()
    with pytest.raises(openai.RateLimitError, match="2 a minute") as error:
        client.models.list()
    assert 1 <= int(error.value.response.headers["retry-after"]) <= 30
    assert wait_for(lambda: re.search('status=429 .*key="slow"', server.log.read_text())), "the log names the key of a refused request"
