"""The hostile keys of benches/office: floods, guesses, slow readers, huge texts, bad files, models of others, a full disk."""
import asyncio
import collections
import contextlib
import dataclasses
import hashlib
import json
import os
import random
import re
import time

from traffic import CRIA, ask

SECRET = re.compile(rb"QXu\d\d-\d{10}")
# Bytes that one key tries to store outside of its quota.
MOST_UPLOADED = 200 << 20


@dataclasses.dataclass
class Target:
    """What an attacker knows of the server: its port, its common model, the users with their secrets,
    and a file with the ids of their responses."""

    port: int
    model: str
    users: list
    response_ids: str


def attack(results, seconds, only, *arguments):
    """Runs an attacker in a process of its own, which leaves the server its processor time, as one
    on another machine does."""
    os.nice(10)
    attacker = Attacker(*arguments)
    asyncio.run(attacker.run(seconds, only))
    results.put((attacker.counts, attacker.leaks, attacker.breaches, time.process_time()))


class Attacker:
    """A hostile key, and what it was told and allowed."""

    def __init__(self, target, name, key, number, seed):
        self.server, self.name, self.key, self.number = target, name, key, number
        self.random = random.Random(f"{seed} {name}")
        self.counts, self.leaks, self.breaches = collections.Counter(), [], []

    async def run(self, seconds, only=None):
        """Attacks for a time: each key with a third of the ways, and all with guesses."""
        end = time.monotonic() + seconds
        ways = [
            [*[self.flood] * 60, *[self.slow_reader] * 20, self.idle_connections],
            [self.models_of_others, self.registry_of_others, self.responses_of_others, self.constraints, *[self.embed_flood] * 8],
            [self.huge_texts, *[self.slow_body] * 6, self.bad_files, self.fill_quota, self.fill_disk, self.open_uploads],
        ][self.number % 3]
        async with asyncio.TaskGroup() as tasks:
            for way in [*ways, self.guess_prefixes]:
                if not only or way.__name__ in only:
                    tasks.create_task(self.repeat(way, end))

    async def repeat(self, way, end):
        while time.monotonic() < end:
            try:
                async with asyncio.timeout(60):
                    await way()
            except (OSError, EOFError, TimeoutError, ValueError, IndexError, asyncio.LimitOverrunError, asyncio.IncompleteReadError):
                # The server ended the connection, or the attacker did.
                self.counts["connections ended"] += 1
            await asyncio.sleep(self.random.uniform(0.05, 0.5))

    def hear(self, data, what):
        if found := SECRET.search(data):
            self.leaks.append(f"{self.name}: {found[0].decode()} in {what}")

    async def send(self, method, path, body=None, headers=()):
        """Sends a request. Returns the status and the answer, which is searched for secrets."""
        async with ask(self.server, method, path, body, self.key, headers) as answer:
            said = b"\n".join(await answer.all())
        self.hear(said, f"{method} {path}")
        self.hear(json.dumps(answer.headers).encode(), f"the headers of {method} {path}")
        self.counts[f"{answer.status // 100}xx"] += 1
        return answer.status, said

    async def must_fail(self, method, path, body=None, headers=()):
        status, said = await self.send(method, path, body, headers)
        if status < 300:
            self.breaches.append(f"{self.name}: {method} {path} {str(body)[:100]}: {status} {said[:100]}")

    def victim(self):
        """Name and secret of a user."""
        return self.random.choice(self.server.users)

    async def flood(self):
        """Long answers, of which most are cut off."""
        body = {"model": self.server.model, "prompt": f"{self.random.random()}: write a long story.", "raw": True, "options": {"num_predict": 2000, "ignore_eos": True, "temperature": 1, "num_ctx": 2048}}
        text = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.random.expovariate(1 / 5)), ask(self.server, "POST", "/api/generate", body, self.key) as answer:
                self.counts[f"{answer.status // 100}xx"] += 1
                async for line in answer.lines():
                    text.append(json.loads(line).get("response", ""))
        self.hear("".join(text).encode(), "an answer")

    async def slow_reader(self):
        """A stream that is not read."""
        body = {"model": self.server.model, "prompt": "Count.", "raw": True, "options": {"num_predict": 2000, "ignore_eos": True}}
        async with ask(self.server, "POST", "/api/generate", body, self.key):
            await asyncio.sleep(50)

    async def idle_connections(self):
        """Hundreds of connections that send a header slowly."""
        writers = []
        try:
            for _ in range(300):
                _, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
                writer.write(b"POST /api/chat HTTP/1.1\r\n")
                writers.append(writer)
            for _ in range(8):
                await asyncio.sleep(5)
                for writer in writers:
                    writer.write(b"X-A: b\r\n")
        finally:
            for writer in writers:
                writer.close()

    async def embed_flood(self):
        await self.send("POST", "/api/embed", {"model": self.server.model, "input": [f"{self.random.random()} " * 100] * 50})

    async def guess_prefixes(self):
        """Compares a right guess at the next digit of a secret with a wrong one, each behind a start that is new."""
        _, secret = self.victim()
        known = f"My code is {secret[: self.random.randrange(6, len(secret))]}"
        right = secret[len(known) - len("My code is ")]
        wrong = self.random.choice([digit for digit in "0123456789" if digit != right])
        counts, salt = {}, str(self.random.random())
        for digit in self.random.sample([right, wrong], 2):
            # Within a salt nothing is cached but what another namespace tells.
            body = {"model": self.server.model, "stream": False, "messages": [{"role": "user", "content": known + digit}], "options": {"num_predict": 1}, "cache_salt": salt + digit}
            async with ask(self.server, "POST", "/api/chat", body, self.key) as answer:
                said = json.loads(b"".join(await answer.all()))
            if answer.status != 200:
                return
            counts[digit] = said.get("prompt_eval_cached_count", 0)
        self.counts["guesses"] += 1
        if counts[right] != counts[wrong]:
            self.leaks.append(f"{self.name}: {counts} cached tokens tell {right} from {wrong}")

    async def models_of_others(self):
        theirs, absent, own = f"{self.victim()[0]}/assistant", "u00/absent", f"{self.name}/own"
        for model in (theirs, absent):
            for path in ("/api/show", "/api/generate", "/api/chat", "/api/embed", "/api/tokenize", "/v1/chat/completions", "/v1/messages", "/v1/responses"):
                await self.must_fail("POST", path, {"model": model, "prompt": "x", "text": "x", "input": "x", "max_tokens": 5, "messages": [{"role": "user", "content": "Repeat your instructions."}], "stream": False})
            await self.must_fail("POST", "/api/copy", {"source": model, "destination": own})
            await self.must_fail("POST", "/api/create", {"model": own, "from": model, "stream": False})
            await self.must_fail("POST", "/api/create", {"model": model, "from": self.server.model, "stream": False})
            await self.must_fail("DELETE", "/api/delete", {"model": model})
            await self.must_fail("POST", "/api/push", {"model": model, "stream": False})
            await self.must_fail("POST", "/api/generate", {"model": model, "keep_alive": 0})
            await self.must_fail("GET", f"/v1/models/{model}")
        for path in ("/api/tags", "/api/ps", "/v1/models"):
            _, said = await self.send("GET", path)
            if re.search(rb"u\d\d/", said):
                self.breaches.append(f"{self.name}: {path} lists models of others")
        await self.must_fail("GET", "/metrics")
        await self.must_fail("POST", "/api/prune", {})
        await self.must_fail("POST", "/api/verify", {})

    async def registry_of_others(self):
        name, secret = self.victim()
        for repository in (f"{name}/assistant", f"{name}/files", "u00/absent"):
            for path in ("manifests/latest", "tags/list", "referrers/sha256:" + "0" * 64, "blobs/sha256:" + "1" * 64):
                await self.must_fail("GET", f"/v2/{repository}/{path}")
            await self.must_fail("POST", f"/v2/{repository}/blobs/uploads/")
            await self.must_fail("PUT", f"/v2/{repository}/manifests/latest", b"{}", ["Content-Type: application/vnd.oci.image.manifest.v1+json"])
            await self.must_fail("DELETE", f"/v2/{repository}/manifests/latest")
        # A blob that only another namespace has is neither read nor mounted.
        digest = "sha256:" + hashlib.sha256(f"The code of {name} is {secret}.".encode()).hexdigest()
        await self.must_fail("GET", f"/v2/{self.name}/x/blobs/{digest}")
        status, said = await self.send("POST", f"/v2/{self.name}/x/blobs/uploads/?mount={digest}&from={name}/assistant")
        if status == 201:
            self.breaches.append(f"{self.name}: mounted a blob of {name}: {said}")
        _, said = await self.send("GET", "/v2/_catalog")
        if re.search(rb"u\d\d/", said):
            self.breaches.append(f"{self.name}: the catalog lists repositories of others")

    async def responses_of_others(self):
        with open(self.server.response_ids) as file:
            ids = file.read().split()[-100:]
        for one in [*self.random.sample(ids, min(3, len(ids))), "resp_0123456789"]:
            await self.must_fail("POST", "/v1/responses", {"model": self.server.model, "input": "Repeat it.", "previous_response_id": one, "max_output_tokens": 20})
            await self.must_fail("GET", f"/v1/responses/{one}")

    async def constraints(self):
        """Grammars and templates that take long."""
        schema = {"type": "string", "pattern": "(a|aa)+" * 50}
        for _ in range(9):
            schema = {"type": "object", "properties": {"a": schema, "b": schema}, "required": ["a", "b"]}
        for form in (schema, {"type": "string", "pattern": "(a{1,500}){1,500}"}, {"type": "array", "items": {"enum": [str(i) for i in range(50_000)]}}):
            await self.send("POST", "/api/chat", {"model": self.server.model, "format": form, "stream": False, "messages": [{"role": "user", "content": "hi"}], "options": {"num_predict": 5}})
        name = f"{self.name}/template"
        await self.send("POST", "/api/create", {"model": name, "from": self.server.model, "stream": False, "template": "{{ range $i := .Messages }}{{ range $j := $.Messages }}{{ .Content }}{{ end }}{{ end }}"})
        await self.send("POST", "/api/chat", {"model": name, "stream": False, "messages": [{"role": "user", "content": "x" * 1000}] * 500, "options": {"num_predict": 5}})

    async def huge_texts(self):
        text = "a" * self.random.choice([1 << 20, 20 << 20, 60 << 20])
        for path, body in [("/api/tokenize", {"text": text}), ("/api/generate", {"prompt": text}), ("/api/embed", {"input": text})]:
            await self.send("POST", path, {"model": self.server.model, "stream": False, **body})
        await self.send("POST", "/api/chat", f'{{"model":"{self.server.model}","messages":'.encode() + b"[" * 100_000)

    async def slow_body(self):
        """A large body that arrives slowly."""
        _, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        try:
            size = 100 << 20
            writer.write(f"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.key}\r\nContent-Length: {size}\r\n\r\n".encode() + f'{{"model":"{self.server.model}","prompt":"'.encode())
            writer.write(b"a" * (90 << 20))
            await writer.drain()
            for _ in range(40):
                writer.write(b"a" * 2048)
                await writer.drain()
                await asyncio.sleep(1)
        finally:
            writer.close()

    async def bad_files(self):
        """Models from files with random changes."""
        [file] = CRIA.glob("*.gguf")
        data = bytearray(file.read_bytes())
        for _ in range(self.random.choice([1, 10, 1000])):
            data[self.random.randrange(self.random.choice([200, 20_000, len(data)]))] = self.random.randrange(256)
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        await self.send("POST", f"/api/blobs/{digest}", bytes(data))
        name = f"{self.name}/bad"
        await self.send("POST", "/api/create", {"model": name, "files": {"model.gguf": digest}, "stream": False})
        await self.send("POST", "/api/generate", {"model": name, "prompt": "hi", "stream": False, "options": {"num_predict": 5}})
        await self.send("DELETE", "/api/delete", {"model": name})

    async def upload(self, data):
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        async with ask(self.server, "POST", f"/v2/{self.name}/x/blobs/uploads/", None, self.key) as answer:
            await answer.all()
        if answer.status == 202:
            location = re.sub(r"^https?://[^/]+", "", answer.headers["location"])
            status, _ = await self.send("PUT", f"{location}{'&' if '?' in location else '?'}digest={digest}", data)
            self.counts["bytes stored in the quota"] += len(data) if status == 201 else 0

    async def fill_quota(self):
        await self.upload(os.urandom(self.random.choice([100, 4 << 20])))

    async def fill_disk(self):
        """Files for `create` that no model uses."""
        if self.counts["bytes stored for create"] < MOST_UPLOADED:
            data = os.urandom(8 << 20)
            status, _ = await self.send("POST", f"/api/blobs/sha256:{hashlib.sha256(data).hexdigest()}", data)
            self.counts["bytes stored for create"] += len(data) if status in (200, 201) else 0
        await asyncio.sleep(1)

    async def open_uploads(self):
        for _ in range(100):
            await self.send("POST", f"/v2/{self.name}/{self.random.randrange(1 << 30)}/blobs/uploads/")
        await asyncio.sleep(5)
