"""Access control of a mirror: keys, signatures and namespace quotas."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess

import pytest

from conftest import Puna, over_http, puna, wait_for
from test_mirror import artifact, call, digest, image, listing, mirror, storage  # noqa: F401 (fixtures)

OCI = "application/vnd.oci.image.manifest.v1+json"


def test_keys_grant_namespaces_to_signatures_and_passwords(mirror, home, tmp_path):
    it = mirror()
    home = home | over_http(tmp_path, it.host)
    skopeo = shutil.which("skopeo")
    puna("cp", "cria", f"{it.host}/anna/cria", env=home, check=True)
    # Without a key there is one now that nobody has shown.
    other = it.cli("key", "add", "ci", "--scope", "models", "--namespace", "team-*", check=True).stdout.strip()
    assert wait_for(lambda: it.get("/v2/")[0] == 401)
    refused = puna("push", "--insecure", f"{it.host}/anna/cria", env=home)
    assert refused.returncode == 1 and "not authorized" in refused.stderr
    public = pathlib.Path(home["HOME"]) / ".ollama/id_ed25519.pub"
    it.cli("key", "add", "anna", "--scope", "models", "--namespace", "anna", "--public-key", public, check=True)
    assert wait_for(lambda: puna("push", "--insecure", f"{it.host}/anna/cria", env=home).returncode == 0, 5)
    puna("rm", f"{it.host}/anna/cria", env=home, check=True)
    puna("pull", "--insecure", f"{it.host}/anna/cria", env=home, check=True)
    puna("cp", "cria", f"{it.host}/bert/cria", env=home, check=True)
    assert puna("push", "--insecure", f"{it.host}/bert/cria", env=home).returncode == 1
    # The other one sees its own namespace alone.
    shown = it.send("GET", "/v2/_catalog", headers={"Authorization": f"Bearer {other}"})
    assert shown == (200, b'{"repositories":[]}')
    assert it.send("GET", "/v2/anna/cria/tags/list", headers={"x-api-key": other})[0] == 403
    if skopeo:
        there = artifact(tmp_path / "there")
        to = ("copy", "--dest-tls-verify=false", "--dest-creds", f"anybody:{other}", f"dir:{there}")
        call(skopeo, *to, f"docker://{it.host}/team-a/thing:v1")
        assert subprocess.run([skopeo, *to, f"docker://{it.host}/anna/thing:v1"], capture_output=True).returncode != 0
    log = it.log.read_text()
    assert other not in log


def test_a_blob_url_ends_with_its_key_and_unknown_manifests_are_refused(mirror):
    it = mirror()
    key = lambda name: it.cli("key", "add", name, "--scope", "models", "--namespace", "team", check=True).stdout.strip()
    gone, stays = key("gone"), key("stays")
    assert wait_for(lambda: it.ask("GET", "/v2/", key=stays)[0] == 200)
    data = os.urandom(5000)
    assert image(it, "team/x", [data], key=gone) == 201
    urls = [it.ask("HEAD", f"/v2/team/x/blobs/{digest(data)}", key=one)[1]["Location"] for one in (gone, stays)]
    assert [it.ask("GET", url)[2] for url in urls] == [data, data]
    it.cli("key", "rm", "gone", check=True)
    assert wait_for(lambda: it.ask("GET", urls[0])[0] == 401)
    assert it.ask("GET", urls[1])[2] == data
    # Garbage collection would remove nothing any more.
    unknown = json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.x.unknown+json", "layers": []}).encode()
    status, _, body = it.ask("PUT", "/v2/team/x/manifests/odd", unknown, key=stays)
    assert (status, json.loads(body)["errors"][0]["code"]) == (400, "MANIFEST_INVALID"), body


@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_blobs_of_other_namespaces_are_not_served_by_digest(mirror, where, request):
    env = request.getfixturevalue("storage").env() if where == "bucket" else {}
    it = mirror(**env)
    secret, own = os.urandom(5000), os.urandom(6000)
    key = lambda name, *scope: it.cli("key", "add", name, "--scope", "models", *scope, check=True).stdout.strip()
    anna, bert, all_of_them = key("anna", "--namespace", "anna"), key("bert", "--namespace", "bert"), key("all")
    assert wait_for(lambda: (it.ask("GET", "/v2/")[0], it.ask("GET", "/v2/", key=all_of_them)[0]) == (401, 200))
    assert image(it, "anna/model", [secret], key=anna) == 201
    blob = lambda of, data: f"/v2/{of}/blobs/{digest(data)}"
    assert it.ask("GET", blob("anna/model", secret), key=anna)[2] == secret
    # Through his own repository, mounted there, asked about, and named in a manifest.
    assert image(it, "bert/mine", [own], key=bert) == 201
    for method in ("GET", "HEAD"):
        assert it.ask(method, blob("bert/mine", secret), key=bert)[0] == 404
        assert it.ask(method, blob("anna/model", secret), key=bert)[0] == 403
    assert it.ask("POST", f"/v2/bert/mine/blobs/uploads/?mount={digest(secret)}&from=anna/model", key=bert)[0] == 202
    assert it.ask("POST", f"/v2/bert/mine/blobs/uploads/?digest={digest(secret)}", key=bert)[0] == 202
    status, _, body = it.ask("PUT", "/v2/bert/mine/manifests/theft", listing([secret]), key=bert)
    assert (status, json.loads(body)["errors"][0]["code"]) == (400, "MANIFEST_BLOB_UNKNOWN")
    assert it.ask("GET", blob("bert/mine", own), key=bert)[2] == own
    # Who has the bytes may bring them, and keys without namespaces see all.
    assert image(it, "bert/mine", [secret], "same", key=bert) == 201
    assert it.ask("GET", blob("bert/mine", secret), key=bert)[2] == secret
    assert it.ask("POST", f"/v2/other/x/blobs/uploads/?mount={digest(own)}&from=bert/mine", key=all_of_them)[0] == 201


@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_a_namespace_cannot_exceed_its_quota(mirror, where, request):
    env = request.getfixturevalue("storage").env() if where == "bucket" else {}
    it = mirror(PUNA_MIRROR_QUOTAS="team-*=102KB, other=1TB", PUNA_MIRROR_DELETE=1, **env)
    one, two, three = os.urandom(60000), os.urandom(30000), os.urandom(20000)
    assert image(it, "team-a/x", [one, two]) == 201
    assert image(it, "team-a/y", [one]) == 201, "a blob counts once"
    path = it.location("POST", "/v2/team-a/x/blobs/uploads/")
    status, _, body = it.ask("PUT", f"{path}?digest={digest(three)}", three)
    error = json.loads(body)["errors"][0]
    assert (status, error["code"]) == (413, "DENIED") and all(part in error["message"] for part in ("team-a", "of 102000 bytes used", "20000 more")), error
    # Without a length, and in a manifest that lies about it.
    assert image(it, "team-b/x", [three]) == 201 == image(it, "free/x", [three])
    assert it.ask("PUT", "/v2/team-a/x/manifests/v2", listing([three]))[0] == 413
    assert it.ask("PUT", "/v2/team-a/x/manifests/v2", listing([three], size=1))[0] == 400
    assert re.search(r"team-a<td>9[01]\.\d kB of 102\.0 kB<td>\d\d %<td>\d+ of 100000", it.get("/mirror")[1].decode())
    assert it.ask("DELETE", f"/v2/team-a/x/manifests/{digest(listing([one, two]))}")[0] == 202
    assert it.ask("PUT", "/v2/team-a/x/manifests/v2", listing([three]))[0] == 201


@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_manifests_count_against_the_quota(mirror, where, request):
    env = request.getfixturevalue("storage").env() if where == "bucket" else {}
    it = mirror(PUNA_MIRROR_QUOTAS="team=1MB:20", **env)
    large = lambda n: json.dumps({"mediaType": OCI, "layers": [], "annotations": {"x": f"{n}" + "a" * 3_900_000}}).encode()
    assert {it.ask("PUT", f"/v2/team/x/manifests/t{n}", large(n))[0] for n in range(4)} == {413}
    small = lambda n: json.dumps({"mediaType": OCI, "layers": [], "annotations": {"x": f"{n}"}}).encode()
    assert [it.ask("PUT", f"/v2/team/r{n}/manifests/t", small(n))[0] for n in range(12)] == [201] * 10 + [413] * 2
    assert it.ask("PUT", "/v2/team/r0/manifests/t", small(0))[0] == 201, "it is there already"
    assert it.ask("PUT", "/v2/other/x/manifests/t", large(0))[0] == 201
    it.kill()
    it.start()
    assert it.ask("PUT", "/v2/team/x/manifests/t", small(99))[0] == 413


def location(it, path, headers):
    """The path of a new upload."""
    connection = http.client.HTTPConnection("127.0.0.1", it.port, timeout=10)
    with contextlib.closing(connection):
        connection.request("POST", path, None, headers)
        return connection.getresponse().headers["Location"].removeprefix(f"http://127.0.0.1:{it.port}")


def size_of(it, name, **kw):
    """Bytes that a model has, as `/api/tags` lists them."""
    models = json.loads(it.send("GET", "/api/tags", **kw)[1])["models"]
    return next((model["size"] for model in models if model["name"] == name), None)


def test_a_quota_counts_what_a_key_with_namespaces_makes_at_api(tmp_path):
    (home := tmp_path / "home").mkdir()
    it = Puna(home, PUNA_MIRROR_SERVE=1, PUNA_MIRROR_QUOTAS="few*=1GB:12, team=1GB, full=1000B")
    try:
        model = size_of(it, "cria:latest")
        it.kill()
        it.env["PUNA_MIRROR_QUOTAS"] = f"few*=1GB:12, team={model + 200_000}B, full=1000B"
        it.start()
        keys = {name: it.cli("key", "add", name, "--scope", "inference,models", "--namespace", name, check=True).stdout.strip() for name in ("team", "few-a", "full")}
        assert wait_for(lambda: it.knows(keys["full"]))
        auth = {name: {"Authorization": f"Bearer {key}"} for name, key in keys.items()}
        post = lambda path, body, key="team": it.post(path, body, headers=auth[key])
        upload = lambda data, key="team": it.send("POST", f"/api/blobs/{digest(data)}", data, headers=auth[key])
        create = lambda name, key="team", **more: post("/api/create", {"model": name, "from": "cria", "stream": False, **more}, key)

        # Uploads count before a model has them, and are refused while they arrive.
        one, two, large = os.urandom(60_000), os.urandom(60_000), os.urandom(model + 300_000)
        assert upload(large)[0] == 413
        assert upload(one)[0] == 201 == upload(two)[0], "the namespace is empty yet"
        assert upload(os.urandom(model + 100_000))[0] == 413, "earlier uploads count"
        status, body = upload(os.urandom(2000), "full")
        assert status == 413 and "quota of namespace full exceeded" in json.loads(body)["error"], body

        # A copy brings no blobs, but the namespace has them.
        assert it.send("POST", "/api/copy", {"source": "cria", "destination": "full/x"}, headers=auth["full"])[0] == 413
        assert it.send("POST", "/api/copy", {"source": "cria", "destination": "team/x"}, headers=auth["team"])[0] == 200
        assert it.send("POST", "/api/copy", {"source": "team/x", "destination": "team/y"}, headers=auth["team"])[0] == 200

        # A new model beyond the quota leaves nothing behind. The uploads count, too.
        status, answer = create("team/z", system="x" * 150_000)
        assert status == 413 and "quota of namespace team exceeded" in answer["error"], answer
        assert size_of(it, "team/z:latest", headers=auth["team"]) is None
        blobs = lambda: {path.name for path in (home / ".ollama/models/blobs").iterdir()}
        assert digest(b"x" * 150_000).replace(":", "-") not in blobs()
        assert create("team/z", system="y" * 50_000)[0] == 200
        assert create("team/z2", system="z" * 50_000)[0] == 413

        # What /api has made counts for pushes at once, and a removal gives it back.
        path = location(it, "/v2/team/p/blobs/uploads/", auth["team"])
        pushed = os.urandom(170_000)
        assert it.send("PUT", f"{path}?digest={digest(pushed)}", pushed, headers=auth["team"])[0] == 413
        assert it.send("DELETE", "/api/delete", {"model": "team/z"}, headers=auth["team"])[0] == 200
        assert create("team/z2", system="z" * 50_000)[0] == 200

        # The number of objects counts as well.
        assert {create(f"few-a/m{n}", "few-a", system=f"{n}")[0] for n in range(20)} == {200, 413}
    finally:
        it.kill()


def chunked(it, method, path, pieces):
    """The status of a request whose body does not say how long it is."""
    with socket.create_connection(("127.0.0.1", it.port), timeout=30) as s:
        s.sendall(f"{method} {path} HTTP/1.1\r\nHost: {it.host}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        for piece in pieces:
            s.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        answer = s.recv(1 << 16)
    return int(answer.split()[1])


@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_a_quota_applies_to_uploads_of_unknown_length(mirror, where, request):
    env = request.getfixturevalue("storage").env() if where == "bucket" else {}
    it = mirror(PUNA_MIRROR_QUOTAS="team=10KB", **env)
    path = it.location("POST", "/v2/team/x/blobs/uploads/")
    assert chunked(it, "PATCH", path, [os.urandom(3000)] * 4) == 413
    assert it.ask("GET", path)[0] == 404
    assert not [p for p in it.home.glob(".ollama/models/puna-registry/uploads/*")]


def test_signatures_for_other_host_names_are_rejected(mirror, home, tmp_path):
    it = mirror()
    home = home | over_http(tmp_path, it.host)
    it.kill()
    it.env["PUNA_MIRROR_NAMES"] = f"models.example, {it.host}"
    it.start()
    puna("cp", "cria", f"{it.host}/anna/cria", env=home, check=True)
    # The key is made when a registry first wants proof.
    it.cli("key", "add", "other", "--scope", "models", check=True)
    assert wait_for(lambda: it.get("/v2/")[0] == 401)
    assert puna("push", "--insecure", f"{it.host}/anna/cria", env=home).returncode == 1
    public = pathlib.Path(home["HOME"]) / ".ollama/id_ed25519.pub"
    it.cli("key", "add", "anna", "--scope", "models", "--namespace", "anna", "--public-key", public, check=True)
    assert wait_for(lambda: puna("push", "--insecure", f"{it.host}/anna/cria", env=home).returncode == 0, 5)
    it.kill()
    it.env["PUNA_MIRROR_NAMES"] = "models.example"
    it.start()
    puna("cp", "cria", f"{it.host}/anna/other", env=home, check=True)
    refused = puna("push", "--insecure", f"{it.host}/anna/other", env=home)
    assert refused.returncode == 1 and "mirror.names" in refused.stderr, refused.stderr


def test_keys_for_invalid_namespaces_are_refused(mirror):
    it = mirror()
    for bad in ("../x", "a//b", "a b", "*x", ""):
        refused = it.cli("key", "add", "k", "--namespace", bad)
        assert refused.returncode == 2 and "invalid namespace" in refused.stderr, refused
    assert it.get("/v2/")[0] == 200, "no key was made"


def test_a_registry_of_a_server_has_registry_errors_for_denied_requests(fresh):
    server = fresh(PUNA_MIRROR_SERVE=1)
    for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
        status, body = server.send("GET", "/v2/", headers=headers)
        assert status == 403 and json.loads(body)["errors"][0]["code"] == "DENIED", body
        assert server.send("GET", "/api/version", headers=headers) == (403, b"")


def ask_as(it, host, path="/v2/", **headers):
    """The status of a request to a mirror under a name."""
    with socket.create_connection(("127.0.0.1", it.port), timeout=5) as connection:
        lines = [f"GET {path} HTTP/1.1", f"Host: {host}", "Connection: close", *(f"{k}: {v}" for k, v in headers.items())]
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        return int(connection.makefile("rb").readline().split()[1])


def test_foreign_host_names_are_forbidden(mirror):
    it = mirror(PUNA_MIRROR_NAMES="models.example.com, hub.lan:5001")
    for host in ("127.0.0.1", "localhost:5000", "models.example.com", "MODELS.example.com:443", "hub.lan:5001"):
        assert ask_as(it, host) == 200, host
    for host in ("evil.test", f"evil.test:{it.port}", "hub.lan", "models.example.com.evil.test", "8.8.8.8"):
        for path in ("/v2/", "/v2/_catalog", "/mirror", "/metrics", "/health"):
            assert ask_as(it, host, path) == 403, (host, path)
        # A page may say what a proxy would.
        assert ask_as(it, host, **{"X-Forwarded-Host": "localhost", "X-Forwarded-For": "10.0.0.1"}) == 403, host


def test_the_limits_of_a_key_apply(mirror):
    it = mirror()
    key = it.cli("key", "add", "slow", "--scope", "models", "--requests-per-minute", "3", check=True).stdout.strip()
    assert wait_for(lambda: it.get("/v2/")[0] == 401)
    assert [it.ask("GET", "/v2/", key=key)[0] for _ in range(3)] == [200, 200, 200]
    status, headers, body = it.ask("GET", "/v2/", key=key)
    assert (status, json.loads(body)["errors"][0]["code"]) == (429, "TOOMANYREQUESTS")
    assert 1 <= int(headers["Retry-After"]) <= 20
