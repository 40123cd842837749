"""Pull-through cache: the mirror fetches models from an upstream registry and sends them on while they arrive."""
import hashlib
import http.client
import http.server
import json
import os
import re
import shutil
import threading
import time

import pytest

from conftest import REPOSITORY, puna, wait_for
from test_mirror import DOCKER, call, digest, figures, image, mirror, storage  # noqa: F401 (fixtures)
from test_registry import Registry


@pytest.fixture
def upstream():
    """A registry that stands for Ollama's."""
    server = Registry()
    yield server
    server.shutdown()
    server.server_close()


def through(mirror, upstream, **env):
    return mirror(PUNA_MIRROR_UPSTREAMS="registry.ollama.ai", PUNA_REGISTRY_DEFAULT=f"http://{upstream.host}", PUNA_MIRROR_PRIVATE="me,team-*", **env)


def test_one_fetch_serves_many_clients_while_it_runs(mirror, upstream):
    data = os.urandom(6 << 20)
    upstream.put("library/big:latest", [("application/vnd.ollama.image.model", data), ("application/vnd.docker.container.image.v1+json", b"{}")])
    upstream.pace = 0.02
    it = through(mirror, upstream)
    status, manifest = it.get("/v2/library/big/manifests/latest")
    assert (status, manifest) == (200, upstream.manifests["library/big:latest"])
    blob, got, sent = f"/v2/library/big/blobs/{digest(data)}", [], {}

    def fetch(first, last):
        status, body = it.send("GET", blob, headers={} if last is None else {"Range": f"bytes={first}-{last}"})
        sent[first, last] = upstream.sent
        got.append((status, body == data[first : None if last is None else last + 1]))

    asked = [(0, None), (0, None), (0, 65535), (1 << 20, (3 << 20) - 1), (5 << 20, len(data) - 1)]
    readers = [threading.Thread(target=fetch, args=part) for part in asked]
    for reader in readers:
        reader.start()
    page = it.get("/mirror")[1].decode()
    assert re.search(r"Running fetches.*library/big:latest<td>[^<]+ of 6\.3 MB", page) and "No models stored yet" in page
    for reader in readers:
        reader.join()
    assert sorted(got) == [(200, True)] * 2 + [(206, True)] * 3
    assert sent[0, 65535] < len(data), "the first bytes waited for the last ones"
    # Each for himself they would be 2.5 times as many. What was under way when another took the rest of a part comes twice.
    assert upstream.sent < len(data) * 3 // 2, "it came once"
    assert wait_for(lambda: "big:latest" in it.cli("list", check=True).stdout)
    # A little later the fetch is over for the page, too.
    assert wait_for(lambda: "Being fetched" not in it.get("/mirror")[1].decode())
    page = it.get("/mirror")[1].decode()
    assert "library/big:latest<td>6.3 MB" in page and "Last pulls" in page
    assert f"puna pull --insecure {it.host}/library/" in page and not re.search(r"(src|href)=|https?://", page)
    # Nothing is asked for again while it is fresh.
    upstream.asked.clear()
    assert it.get("/v2/library/big/manifests/latest")[1] == manifest and not upstream.asked


def test_a_fetch_resumes_after_a_killed_mirror(mirror, upstream):
    data = os.urandom(6 << 20)
    upstream.put("library/big:latest", [("application/vnd.ollama.image.model", data), ("application/vnd.docker.container.image.v1+json", b"{}")])
    upstream.pace = 0.02  # 96 pieces
    it = through(mirror, upstream, OLLAMA_MAX_TRANSFER_STREAMS=1)
    assert it.get("/v2/library/big/manifests/latest")[0] == 200
    partial = it.home / f".ollama/models/blobs/{digest(data).replace(':', '-')}-partial-0"
    assert wait_for(lambda: partial.exists() and json.loads(partial.read_text())["Completed"]) and upstream.sent < len(data)
    it.kill()
    it.start()
    upstream.asked.clear()
    assert it.get(f"/v2/library/big/blobs/{digest(data)}") == (200, data)
    # It went on, after it had asked how large the blob is.
    assert min(first for of, first, last in upstream.asked if of == digest(data) and last > 0) > 0
    assert it.get(f"/v2/library/big/blobs/{digest(b'another')}")[0] == 404
    assert it.get("/v2/library/big/manifests/latest")[0] == 200
    assert wait_for(lambda: "big:latest" in it.cli("list", check=True).stdout)


@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_a_client_resuming_after_a_restart_gets_no_corrupt_rest(mirror, upstream, where, request):
    data = os.urandom(3 << 20)
    lie = bytes([data[0] ^ 1]) + data[1:]
    upstream.put("library/big:latest", [("application/vnd.ollama.image.model", data), ("application/vnd.docker.container.image.v1+json", b"{}")])
    of, manifest = digest(data), upstream.manifests["library/big:latest"]
    blob, half = f"/v2/library/big/blobs/{of}", 1 << 20
    it = through(mirror, upstream, OLLAMA_MAX_TRANSFER_STREAMS=1, **(request.getfixturevalue("storage").env() if where == "bucket" else {}))
    upstream.blobs[of], upstream.pace = lie, 0.1  # 48 pieces
    assert it.get("/v2/library/big/manifests/latest") == (200, manifest)
    assert it.send("GET", blob, headers={"Range": f"bytes=0-{half - 1}"}) == (206, lie[:half]), "nobody knows yet"
    assert upstream.sent < len(data), "the test is too slow to tell"
    it.kill()
    # The last byte is another one than the client thinks, as the upstream says, and then as a manifest of its says, too.
    upstream.blobs[of], upstream.pace = lie + bytes(1000), 0
    moved = manifest.replace(str(len(data)).encode(), str(len(data) + 1000).encode())
    rest = {"Range": f"bytes={half}-{len(data) - 1}"}
    for says in (None, moved):
        it.start()
        if says:
            upstream.manifests["library/big:latest"] = says
            assert it.get("/v2/library/big/manifests/latest") == (200, says)
        try:
            status, body = it.send("GET", blob, headers=rest)
        except http.client.IncompleteRead as cut:
            status, body = 206, cut.partial
        assert status == 502 or len(body) == 0, f"{status}: {len(body)} bytes of {len(data) - half}"
        it.kill()
    # What is right is given.
    upstream.blobs[of], upstream.manifests["library/big:latest"] = data, manifest
    it.start()
    assert wait_for(lambda: it.send("GET", blob, headers=rest) == (206, data[half:]), 30)


def test_a_pushed_manifest_waits_for_blobs_in_flight(mirror, upstream):
    data = os.urandom(6 << 20)
    upstream.put("library/big:latest", [("application/vnd.ollama.image.model", data), ("application/vnd.docker.container.image.v1+json", b"{}")])
    upstream.pace = 0.02  # 96 pieces
    it = through(mirror, upstream, OLLAMA_MAX_TRANSFER_STREAMS=1)
    status, manifest = it.get("/v2/library/big/manifests/latest")
    assert status == 200
    # Who pushes a copy of it is told that this is here, and does not send it.
    for blob in (data, b"{}"):
        assert it.send("HEAD", f"/v2/me/copy/blobs/{digest(blob)}")[0] == 200
    assert upstream.sent < len(data), "the test is too slow to tell"
    put = it.send("PUT", "/v2/me/copy/manifests/latest", manifest, headers={"Content-Type": DOCKER})
    assert put[0] == 201 and upstream.sent >= len(data), put
    assert it.get(f"/v2/me/copy/blobs/{digest(data)}") == (200, data)


def test_a_distant_range_does_not_wait_for_earlier_bytes(mirror, upstream):
    data = os.urandom(24 << 20)
    upstream.put("library/big:latest", [("application/vnd.ollama.image.model", data), ("application/vnd.docker.container.image.v1+json", b"{}")])
    upstream.pace = 0.05  # 384 pieces
    it = through(mirror, upstream, OLLAMA_MAX_TRANSFER_STREAMS=1)
    assert it.get("/v2/library/big/manifests/latest")[0] == 200
    blob = f"/v2/library/big/blobs/{digest(data)}"
    for first in (20 << 20, 9 << 20):
        assert it.send("GET", blob, headers={"Range": f"bytes={first}-{first + 99_999}"}) == (206, data[first : first + 100_000])
        assert upstream.sent < 6 << 20, "most of what is before it came first"
    upstream.pace = 0
    assert it.get(blob) == (200, data)
    # What was under way where a part was cut, up to a socket's buffers each time, comes again.
    assert upstream.sent < len(data) * 1.5, "it came once"


def test_stored_models_are_served_while_the_upstream_is_unavailable(mirror, upstream):
    layers = [("application/vnd.ollama.image.model", b"weights"), ("application/vnd.docker.container.image.v1+json", b"{}")]
    upstream.put("library/m:latest", layers)
    it = through(mirror, upstream, PUNA_MIRROR_FRESH="1ns")
    manifest = upstream.manifests["library/m:latest"]
    assert it.get("/v2/library/m/manifests/latest") == (200, manifest)
    assert wait_for(lambda: "m:latest" in it.cli("list", check=True).stdout)
    # It moves there, and here with it.
    upstream.put("library/m:latest", [("application/vnd.ollama.image.model", b"other weights"), layers[1]])
    # As soon as the fetching has ended, which is a moment after the model is listed.
    moved = (200, upstream.manifests["library/m:latest"])
    assert wait_for(lambda: it.get("/v2/library/m/manifests/latest") == moved, 5)
    assert it.get("/v2/library/absent/manifests/latest")[0] == 404
    assert wait_for(lambda: it.get(f"/v2/library/m/blobs/{digest(b'other weights')}")[0] == 200)
    time.sleep(0.2)
    upstream.manifests.clear()
    assert it.get("/v2/library/m/manifests/latest")[0] == 200
    it.kill()
    it.env["PUNA_REGISTRY_DEFAULT"] = "http://127.0.0.1:9"
    it.start()
    assert it.get("/v2/library/m/manifests/latest")[0] == 200
    status, body = it.get("/v2/library/other/manifests/latest")
    assert status == 502 and b"upstream registry" in body


@pytest.mark.parametrize("format", ["docker", "modelpack"])
def test_other_formats_pass_unchanged_and_become_models_at_the_client(format, mirror, upstream, home, tmp_path):
    name = f"{upstream.host}/ai/cria"
    puna("cp", "cria", name, env=home, check=True)
    puna("push", "--insecure", "--format", format, name, env=home, check=True)
    manifest = upstream.manifests["ai/cria:latest"]
    it = through(mirror, upstream)
    status, served = it.get("/v2/ai/cria/manifests/latest")
    assert (status, served) == (200, manifest)
    layers = json.loads(manifest)
    for layer in [*layers["layers"], layers["config"]]:
        status, body = it.get(f"/v2/ai/cria/blobs/{layer['digest']}")
        assert (status, digest(body)) == (200, layer["digest"])
    models = it.home / ".ollama/models"
    assert wait_for(lambda: list(models.glob("puna-registry/repositories/*/tags/latest")))
    # No Ollama on this store finds a manifest that it does not know.
    assert not list(models.glob("manifests/*/*/*/*"))
    if skopeo := shutil.which("skopeo"):
        call(skopeo, "copy", "--src-tls-verify=false", f"docker://{it.host}/ai/cria:latest", f"dir:{tmp_path / 'copy'}")
        assert (tmp_path / "copy/manifest.json").read_bytes() == manifest
    upstream.manifests.clear()
    it.kill()
    it.start()
    assert it.get("/v2/ai/cria/manifests/latest") == (200, manifest), "it is served while the upstream is away"
    puna("pull", "--mirror", f"http://{it.host}", "ai/cria", env=home, check=True)
    assert puna("run", "ai/cria", "What is the capital of France?", env=home, check=True).stdout.strip().endswith("Paris.")


class Hub(http.server.BaseHTTPRequestHandler):
    """A hub that refuses what comes in several files where it plays a registry, and lists them."""

    protocol_version, commit = "HTTP/1.1", "0123456789abcdef0123456789abcdef01234567"

    def log_message(self, *_):
        pass

    def do_GET(self):
        path, files = self.path.partition("?")[0], self.server.files
        if path.startswith("/v2/"):
            return self.answer(400, b'{"error":"The specified repository contains sharded GGUF."}')
        if path.endswith("/refs"):
            return self.answer(200, json.dumps({"branches": [{"name": "main", "targetCommit": self.commit}]}).encode())
        if path.endswith(f"/tree/{self.commit}"):
            entry = lambda name, data: {"type": "file", "path": name, "size": len(data), "lfs": {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}}
            return self.answer(200, json.dumps([entry(*file) for file in files.items()]).encode())
        data = files[path.rsplit("/", 1)[-1]]
        first, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups())
        time.sleep(self.server.pause)
        self.server.asked += 1
        self.answer(206, data[first : last + 1], **{"Content-Range": f"bytes {first}-{last}/{len(data)}"})

    def answer(self, status, body, **headers):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": len(body)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)


@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_files_of_a_hub_are_assembled_into_a_model(mirror, tmp_path, where, request):
    env = request.getfixturevalue("storage").env() if where == "bucket" else {}
    hub = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    hub.files, hub.pause, hub.asked = {"m-Q8_0.gguf": (REPOSITORY / "models/cria/cria-q8_0.gguf").read_bytes()}, 1, 0
    hub.host, settings = f"127.0.0.1:{hub.server_port}", tmp_path / "puna.toml"
    settings.write_text(f'[registry.hosts."{hub.host}"]\nhttp = true\nhub = true\n')
    try:
        it, answers = through(mirror, hub, PUNA_CONFIG=settings, PUNA_MIRROR_FRESH="1ns", **env), []
        askers = [threading.Thread(target=lambda: answers.append(it.get("/v2/you/m/manifests/Q8_0"))) for _ in range(3)]
        [asker.start() for asker in askers]
        [asker.join() for asker in askers]
        assert [status for status, _ in answers] == [200] * 3 and len({body for _, body in answers}) == 1, answers
        asked = hub.asked
        for layer in json.loads(answers[0][1])["layers"]:
            assert digest(it.get(f"/v2/you/m/blobs/{layer['digest']}")[1]) == layer["digest"]
        for _ in range(3):
            assert it.get("/v2/you/m/manifests/Q8_0") == answers[0]
        assert figures(it)["puna_mirror_fetching"] == 0 and hub.asked == asked, "it was fetched again"
        assert figures(it)["puna_mirror_misses_total"] == 1 and figures(it)["puna_mirror_fetched_bytes_total"] == len(*hub.files.values())
        assert it.get("/v2/you/m/manifests/IQ1_S")[0] in (404, 502)
    finally:
        hub.shutdown()
        hub.server_close()


def test_pushes_to_namespaces_of_an_upstream_are_denied(mirror, upstream):
    it = through(mirror, upstream)
    status, body = it.send("POST", "/v2/library/m/blobs/uploads/", b"")
    assert status == 403 and json.loads(body)["errors"][0]["code"] == "DENIED"
    assert it.send("PUT", "/v2/library/m/manifests/latest", b'{"layers":[]}')[0] == 403
    for name in ("me/m", "team-a/m", "one", "a/b/c"):
        assert it.send("POST", f"/v2/{name}/blobs/uploads/", b"")[0] == 202, name


def test_metrics_count_served_and_fetched_bytes(mirror, upstream):
    data, config = os.urandom(100_000), b"{}"
    upstream.put("library/m:latest", [("application/vnd.ollama.image.model", data), ("application/vnd.docker.container.image.v1+json", config)])
    it = through(mirror, upstream, PUNA_MIRROR_QUOTAS="me=1MB")
    for _ in range(3):
        assert it.get("/v2/library/m/manifests/latest")[0] == 200
    assert it.send("GET", f"/v2/library/m/blobs/{digest(data)}", headers={"Range": "bytes=0-999"})[0] == 206
    assert wait_for(lambda: figures(it)["puna_mirror_fetching"] == 0)
    assert it.get("/v2/library/none/manifests/latest")[0] == 404
    assert image(it, "me/x", [data[:500]]) == 201
    assert wait_for(lambda: figures(it)["puna_mirror_manifests"] == 2, 15)
    found = figures(it)
    counted = lambda route, method, status: found.get(f'puna_mirror_requests_total{{route="{route}",method="{method}",status="{status}"}}')
    assert counted("manifest", "GET", 200) == 3 and counted("manifest", "GET", 404) == 1 == counted("blob", "GET", 206) == counted("upload", "POST", 202)
    assert found["puna_mirror_sent_bytes_total"] == 1000 and found["puna_mirror_received_bytes_total"] == 500
    assert found["puna_mirror_fetched_bytes_total"] == 100_002 and found["puna_mirror_misses_total"] == 1 and found["puna_mirror_hits_total"] == 2
    assert found["puna_mirror_library_bytes"] == 100_502 and found["puna_mirror_fetch_failures_total"] == 0
    assert 500 < found['puna_mirror_quota_used_bytes{namespace="me"}'] < 1500 and found['puna_mirror_quota_used_objects{namespace="me"}'] > 3
    assert found['puna_mirror_quota_bytes{namespace="me"}'] == 1e6
    it.cli("key", "add", "team", "--scope", "admin", "--namespace", "me", check=True)
    boss = it.cli("key", "add", "boss", "--scope", "admin", check=True).stdout.strip()
    assert wait_for(lambda: it.ask("GET", "/metrics")[0] == 401)
    assert figures(it, key=boss)["puna_mirror_manifests"] == 2


@pytest.mark.parametrize("others", [0, 1])
def test_a_loop_of_mirrors_is_detected_at_once(mirror, others):
    all_of_them = [mirror(PUNA_MIRROR_UPSTREAMS="registry.ollama.ai") for _ in range(1 + others)]
    for it, upstream in zip(all_of_them, all_of_them[1:] + all_of_them[:1]):
        it.kill()
        it.env["PUNA_REGISTRY_DEFAULT"] = f"http://{upstream.host}"
        it.start()
    begun = time.monotonic()
    status, body = all_of_them[0].get("/v2/library/m/manifests/latest")
    assert (status, time.monotonic() - begun < 5) == (508, True), body
    assert "request loop" in (said := json.loads(body)["errors"][0]["message"]) and "mirror.upstreams" in said


def test_a_registry_with_a_port_can_be_an_upstream(mirror, upstream, home, tmp_path):
    data, config = os.urandom(200_000), b"{}"
    upstream.put("library/m:latest", [("application/vnd.ollama.image.model", data), ("application/vnd.docker.container.image.v1+json", config)])
    settings = tmp_path / "puna.toml"
    settings.write_text(f'[mirror]\nupstreams = ["{upstream.host}"]\n[registry.hosts."{upstream.host}"]\nhttp = true\n')
    it = mirror(PUNA_CONFIG=settings)
    manifest = upstream.manifests["library/m:latest"]
    assert it.get(f"/v2/library/m/manifests/latest?ns={upstream.host}") == (200, manifest)
    assert it.get(f"/v2/library/m/blobs/{digest(data)}?ns={upstream.host}") == (200, data)
    name = f"{upstream.host}/library/m"
    assert it.get(f"/v2/{name}/manifests/latest") == (200, manifest)
    assert wait_for(lambda: name in json.loads(it.get("/v2/_catalog")[1])["repositories"])
    # As a client has it that takes this for the mirror of that registry.
    upstream.manifests.clear()
    client = tmp_path / "client.toml"
    client.write_text(f'[registry.hosts."{upstream.host}"]\nhttp = true\nmirrors = ["http://{it.host}"]\n')
    puna("pull", name, env={**home, "PUNA_CONFIG": str(client)}, check=True)


@pytest.mark.parametrize("size", [300_000, 3_000_000])
@pytest.mark.parametrize("where", ["own folder", "folder that is only read"])
def test_a_damaged_blob_is_never_served_and_is_fetched_again(mirror, upstream, tmp_path, where, size):
    data, config = os.urandom(size), b"{}"
    upstream.put("library/m:latest", [("application/vnd.ollama.image.model", data), ("application/vnd.docker.container.image.v1+json", config)])
    it = through(mirror, upstream)
    blob, manifest = f"/v2/library/m/blobs/{digest(data)}", "/v2/library/m/manifests/latest"
    assert it.get(manifest)[0] == 200
    assert wait_for(lambda: "m:latest" in it.cli("list", check=True).stdout)
    it.kill()
    models = it.home / ".ollama/models"
    if where == "folder that is only read":
        models, it.env["PUNA_SEARCH_PATHS"] = tmp_path / "shared", str(tmp_path / "shared")
        models.mkdir()
        for part in ("blobs", "manifests"):
            (it.home / ".ollama/models" / part).rename(models / part)
    place = models / "blobs" / digest(data).replace(":", "-")
    place.chmod(0o644)
    times = place.stat()
    with place.open("r+b") as file:
        file.seek(1000)
        file.write(b"other bytes")
    # As a disk damages it, which changes no times.
    os.utime(place, ns=(times.st_atime_ns, times.st_mtime_ns))
    it.start()
    assert it.get(manifest)[0] == 200, "the tag is fresh"
    # Who is first is given the upstream's, or all but the last byte.
    try:
        assert it.get(blob) == (200, data)
    except http.client.IncompleteRead as cut:
        assert size > 1 << 20 and len(cut.partial) < size
    assert wait_for(lambda: "stopped serving damaged blob" in it.log.read_text())
    # It is put away, and who asks next is given the upstream's.
    assert it.get(blob) == (200, data)
    assert it.get(manifest)[0] == 200
    assert it.get(blob) == (200, data)
    assert digest(data) in it.log.read_text()
    if where == "own folder":
        assert list(models.glob("puna-registry/damaged/*"))
    else:
        assert b"other bytes" in place.read_bytes()
    # It lies here now, and is what is found after a restart.
    it.kill()
    it.start()
    assert it.get(blob) == (200, data)
