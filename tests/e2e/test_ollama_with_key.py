"""Recorded requests of Ollama to a registry that requires authentication: challenge, signed token request, and
blob parts without credentials."""
import base64
import concurrent.futures
import os
import re
import shutil
import subprocess
import time
import urllib.parse

import pytest

from conftest import wait_for
from test_mirror import AGENT, DOCKER, digest, mirror, raw

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="SKIPPED: no openssl")

# The base64 of the hexadecimal SHA-256 of nothing, which ends what is signed.
NOTHING = "ZTNiMGM0NDI5OGZjMWMxNDlhZmJmNGM4OTk2ZmI5MjQyN2FlNDFlNDY0OWI5MzRjYTQ5NTk5MWI3ODUyYjg1NQ=="


class Key:
    """An Ed25519 key as Ollama keeps one."""

    def __init__(self, folder):
        self.path, self.text = folder / "ollama.pem", folder / "signed"
        self.openssl("genpkey", "-algorithm", "ed25519", "-out", self.path)
        public = self.openssl("pkey", "-in", self.path, "-pubout", "-outform", "DER")[-32:]
        wire = b"".join(len(part).to_bytes(4, "big") + part for part in (b"ssh-ed25519", public))
        self.public = base64.b64encode(wire).decode()
        (folder / "ollama.pub").write_text(f"ssh-ed25519 {self.public} ollama\n")

    def openssl(self, *arguments):
        return subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True).stdout

    def proof(self, url):
        """What stands in `Authorization` of a question for a token."""
        self.text.write_text(f"GET,{url},{NOTHING}")
        signature = self.openssl("pkeyutl", "-sign", "-rawin", "-inkey", self.path, "-in", self.text)
        return f"{self.public}:{base64.b64encode(signature).decode()}"


@pytest.fixture
def guarded(mirror, tmp_path):
    """A mirror with a model, open to the holder of a key."""
    it, key = mirror(), Key(tmp_path)
    weights, template = os.urandom(3_000_001), b"{{ .Prompt }}"
    layers = [("application/vnd.ollama.image.model", weights), ("application/vnd.ollama.image.template", template), ("application/vnd.docker.container.image.v1+json", b"{}")]
    manifest = it.model("test/m/latest", layers)
    it.cli("key", "add", "ollama", "--scope", "models", "--namespace", "test", "--public-key", tmp_path / "ollama.pub", check=True)
    assert wait_for(lambda: it.get("/v2/")[0] == 401)
    return it, key, manifest, weights, template


def challenge(it):
    """(realm, service, scope) as the classic client reads them from the first challenge."""
    head = f"GET /v2/test/m/manifests/latest HTTP/1.1\nHost: {it.host}\nUser-Agent: {AGENT}\nAccept: {DOCKER}\nAccept-Encoding: gzip\n"
    status, headers, _ = raw(it, head)
    assert status == 401
    # Two characters behind the first `key=`, up to a quote that a comma follows or that ends it.
    return [re.search(rf'{key}="(.*?)"(?:,|$)', headers["www-authenticate"])[1] for key in ("realm", "service", "scope")]


def question(realm, service, scope, nonce):
    """The address of a token, with its parameters in their order."""
    query = {"nonce": nonce, "scope": scope, "service": service, "ts": int(time.time())}
    return f"{realm}?{urllib.parse.urlencode(query)}"


def ask_for_token(it, url, proof):
    path = url.removeprefix(f"http://{it.host}")
    return raw(it, f"GET {path} HTTP/1.1\nHost: {it.host}\nUser-Agent: {AGENT}\nAuthorization: {proof}\nAccept-Encoding: gzip\n")


def nonce():
    return base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")


def test_every_request_of_an_authenticated_pull_is_answered(guarded):
    it, key, manifest, weights, template = guarded
    realm, service, scope = challenge(it)
    # It asks nobody else for a token.
    assert urllib.parse.urlsplit(realm).netloc == it.host and scope == "repository:test/m:pull"
    url = question(realm, service, scope, nonce())
    status, _, body = ask_for_token(it, url, key.proof(url))
    assert status == 200, body
    [token] = re.findall(rb'"token":"([^"]+)"', body)
    shown = f"Host: {it.host}\nUser-Agent: {AGENT}\nAuthorization: Bearer {token.decode()}\n"
    status, headers, body = raw(it, f"GET /v2/test/m/manifests/latest HTTP/1.1\n{shown}Accept: {DOCKER}\nAccept-Encoding: gzip\n")
    assert (status, body) == (200, manifest)
    for data in (weights, template):
        blob = f"/v2/test/m/blobs/{digest(data)}"
        status, headers, _ = raw(it, f"HEAD {blob} HTTP/1.1\n{shown}")
        assert (status, headers["content-length"]) == (200, str(len(data)))
        status, headers, _ = raw(it, f"GET {blob} HTTP/1.1\n{shown}Accept-Encoding: gzip\n")
        assert status == 200
        # Parts come from the address of that answer, at once, without proof and by another program.
        location = headers["location"].removeprefix(f"http://{it.host}")
        parts = [(first, min(first + 1_000_000, len(data)) - 1) for first in range(0, len(data), 1_000_000)]
        fetch = lambda part: raw(it, f"GET {location} HTTP/1.1\nHost: {it.host}\nUser-Agent: Go-http-client/1.1\nRange: bytes={part[0]}-{part[1]}\nAccept-Encoding: gzip\n")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            answers = list(pool.map(fetch, parts))
        assert [status for status, *_ in answers] == [206] * len(parts)
        assert b"".join(body for *_, body in answers) == data
        # Nobody else has them without one.
        assert raw(it, f"GET {blob} HTTP/1.1\nHost: {it.host}\nRange: bytes=0-9\n")[0] == 401


def test_signatures_of_another_time_address_or_key_are_rejected(guarded, tmp_path):
    it, key, *_ = guarded
    realm, service, scope = challenge(it)
    url = question(realm, service, scope, nonce())
    proof = key.proof(url)
    (tmp_path / "other").mkdir()
    late = re.sub(r"ts=\d+", f"ts={int(time.time()) - 3600}", url)
    attempts = {
        "another key": (url, Key(tmp_path / "other").proof(url)),
        "a signature of another address": (question(realm, service, scope, nonce()), proof),
        "an hour ago": (late, key.proof(late)),
        "no signature": (url, key.public),
        "half a signature": (url, proof[:-40]),
    }
    for what, (address, shown) in attempts.items():
        assert ask_for_token(it, address, shown)[0] in (400, 401, 403), what
    assert ask_for_token(it, url, proof)[0] == 200
    assert ask_for_token(it, url, proof)[0] == 401, "a signature counts once"
