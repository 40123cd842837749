"""What a request finds in the cache of a model: prefixes of its own key, and no trace of another one's."""
import os
import subprocess

import requests
from conftest import BINARY, running, wait_for

SECRET = "The access code of the vault is 4938172650 and nobody else may know it."


def add_key(puna, name, *options):
    command = [BINARY, "key", "add", name, "--scope", "inference,models", *options]
    key = subprocess.run(command, env=puna.env, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    assert wait_for(lambda: puna.knows(key))
    return key


def cached(puna, key, text, model="cria", address="127.0.0.1", **more):
    """Number of prompt tokens that the server took from the cache for a user's text."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    headers |= more.pop("headers", {})
    body = {
        "model": model, "stream": False, "messages": [{"role": "user", "content": text}],
        "options": {"num_predict": 1}, **more,
    }
    answer = requests.post(f"http://{address}:{puna.port}/api/chat", json=body, headers=headers, timeout=120)
    answer.raise_for_status()
    return answer.json().get("prompt_eval_cached_count", 0)


def test_a_guess_at_the_prompt_of_another_key_finds_nothing():
    with running() as puna:
        victim, attacker = (add_key(puna, name) for name in ("victim", "attacker"))
        public = cached(puna, attacker, "Hello")
        cached(puna, victim, SECRET)
        # As the attack does: one more right character of the secret would be one more cached token.
        cached(puna, attacker, SECRET[:36])
        counts = {guess: cached(puna, attacker, SECRET[:36] + guess) for guess in "0123456789"}
        assert len(set(counts.values())) == 1, f"{counts} tell the digits apart"
        # The whole prompt is known to the victim, and as new as any text to the attacker.
        assert cached(puna, victim, SECRET) > public + 20
        unrelated = cached(puna, attacker, "Nothing that anybody has sent before.")
        assert cached(puna, attacker, "Vault: " + SECRET) == unrelated


def test_a_guess_at_the_system_prompt_of_another_namespace_finds_nothing():
    with running() as puna:
        ann, eve = (add_key(puna, name, "--namespace", name) for name in ("ann", "eve"))

        def create(key, model, system):
            body = {"model": model, "from": "cria", "system": system, "stream": False}
            requests.post(f"http://127.0.0.1:{puna.port}/api/create", json=body, headers={"Authorization": f"Bearer {key}"}, timeout=60).raise_for_status()

        system = f"{SECRET} " * 20
        create(ann, "ann/notes", system)
        create(eve, "eve/right", system)
        create(eve, "eve/wrong", system.replace("4938172650", "4938172651"))
        first = cached(puna, ann, "Hello", "ann/notes")
        assert cached(puna, ann, "Something else", "ann/notes") > first + 100, "its own users share it"
        assert cached(puna, eve, "Hello", "eve/right") == cached(puna, eve, "Hello", "eve/wrong") == first


def test_another_client_unloads_no_model_in_use():
    with running() as puna:
        ann, eve = (add_key(puna, name) for name in ("ann", "eve"))
        admin = add_key(puna, "admin", "--scope", "admin")

        def generate(key, **body):
            answer = requests.post(f"http://127.0.0.1:{puna.port}/api/generate", json={"model": "cria", "stream": False, **body}, headers={"Authorization": f"Bearer {key}"}, timeout=60)
            answer.raise_for_status()

        generate(ann, prompt="Hello", options={"num_predict": 1})
        [runner] = puna.runners()
        generate(eve, keep_alive=0)
        generate(eve, prompt="Hello", options={"num_predict": 1}, keep_alive=0)
        generate(ann, prompt="Hello", options={"num_predict": 1})
        assert puna.runners() == [runner]
        generate(admin, keep_alive=0)
        assert wait_for(lambda: runner not in puna.runners())


def test_a_salt_separates_the_requests_of_one_key():
    with running() as puna:
        first = cached(puna, None, SECRET, cache_salt="a")
        assert cached(puna, None, SECRET, cache_salt="b") == first
        assert cached(puna, None, SECRET) == first
        assert cached(puna, None, SECRET, cache_salt="a") > first + 10
        for path, body in [
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 1}),
            ("/v1/messages", {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 1}),
            ("/v1/responses", {"input": SECRET, "max_output_tokens": 1}),
            ("/v1/completions", {"prompt": SECRET, "max_tokens": 1}),
            ("/api/generate", {"prompt": SECRET, "stream": False, "options": {"num_predict": 1}}),
        ]:
            def tokens(salt):
                answer = requests.post(f"http://127.0.0.1:{puna.port}{path}", json={"model": "cria", **body, "cache_salt": salt}, timeout=120)
                assert "x-puna-ignored" not in answer.headers, path
                answer.raise_for_status()
                usage = answer.json().get("usage", answer.json())
                details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or usage
                names = ("cached_tokens", "cache_read_input_tokens", "prompt_eval_cached_count")
                return next((details[name] for name in names if details.get(name) is not None), 0)
            new = tokens(path)
            assert tokens(path + "2") == new < tokens(path), path


def test_groups_and_servers_that_share_all():
    for sharing, shared in [("key", [0, 0]), ("group", [1, 0]), ("all", [1, 1])]:
        with running(PUNA_PREFIX_SHARING=sharing) as puna:
            ann = add_key(puna, "ann", "--group", "team")
            bob = add_key(puna, "bob", "--group", "team")
            eve = add_key(puna, "eve")
            new = cached(puna, ann, SECRET)
            assert [int(cached(puna, key, SECRET) > new + 10) for key in (bob, eve)] == shared, sharing


def test_clients_behind_a_trusted_proxy_are_told_apart():
    def at(client):
        return {"headers": {"X-Forwarded-For": client}}

    with running(PUNA_TRUSTED_PROXIES="127.0.0.1") as puna:
        new = cached(puna, None, SECRET, **at("192.0.2.1"))
        assert cached(puna, None, SECRET, **at("192.0.2.2")) == new
        # The last address is the proxy's word, the others are the client's.
        assert cached(puna, None, SECRET, **at("192.0.2.1, 192.0.2.3")) == new
        assert cached(puna, None, SECRET, **at("192.0.2.9, 192.0.2.1")) > new + 10
    with running() as puna:
        new = cached(puna, None, SECRET, **at("192.0.2.1"))
        assert cached(puna, None, SECRET, **at("192.0.2.2")) > new + 10, "a header of anybody"


def test_the_own_system_prompt_of_a_model_is_shared_and_a_copy_with_another_one_tells_nothing():
    long = " ".join(f"Rule {i}: never tell what rule {i + 1} says." for i in range(30))
    with running() as puna:
        ann, bob = (add_key(puna, name) for name in ("ann", "bob"))
        for name, system in [("ann", long), ("bob", long + " Be kind.")]:
            body = {"model": f"{name}s", "from": "cria", "system": system, "stream": False}
            requests.post(f"http://127.0.0.1:{puna.port}/api/create", json=body, headers={"Authorization": f"Bearer {ann}"}, timeout=120).raise_for_status()
        assert cached(puna, ann, "Hello there", model="anns") == 0
        shared = cached(puna, bob, "Hi", model="anns")
        assert shared >= 128 and shared % 64 == 0, shared
        # Another model with the same weights and a system prompt that begins alike.
        assert cached(puna, bob, "Hi", model="bobs") == 0


def test_the_secret_of_owners_is_for_the_owner_of_the_server_only():
    with running() as puna:
        cached(puna, None, "Hello")
        secrets = [*puna.home.rglob("owner.secret")]
        assert len(secrets) == 1 and os.stat(secrets[0]).st_mode & 0o777 == 0o600
