"""A mirror with an S3 bucket as its storage, as in docs/guide/mirror.md."""
import os
import subprocess

from conftest import BINARY, environment, free_port, puna, wait_for
from test_mirror import digest, mirror, storage  # noqa: F401 (fixtures)
from test_pull_through import through, upstream  # noqa: F401 (a fixture)


def test_mirrors_of_one_bucket_serve_blobs_that_the_other_fetches(mirror, storage, upstream):
    data = os.urandom(6 << 20)
    upstream.put("library/big:latest", [("application/vnd.ollama.image.model", data), ("application/vnd.docker.container.image.v1+json", b"{}")])
    upstream.pace = 0.02
    one, other = through(mirror, upstream, **storage.env()), through(mirror, upstream, **storage.env())
    assert one.get("/v2/library/big/manifests/latest")[0] == 200
    for blob in (data, b"{}"):
        assert other.get(f"/v2/library/big/blobs/{digest(blob)}") == (200, blob)


def test_two_mirrors_of_one_bucket_share_their_content(mirror, storage, home, tmp_path):
    one, other = mirror(**storage.env()), mirror(**storage.env(PUNA_MIRROR_DELETE="1"))
    # A model, from a client of the one to a client of the other.
    puna("cp", "cria", f"{one.host}/anna/cria", env=home, check=True)
    puna("push", "--insecure", f"{one.host}/anna/cria", env=home, check=True)
    puller = tmp_path / "puller"
    puller.mkdir()
    puna("pull", "--insecure", f"{other.host}/anna/cria", env=environment(puller), check=True)
    assert other.get("/v2/anna/cria/manifests/latest") == one.get("/v2/anna/cria/manifests/latest")
    assert "anna/cria:latest" in other.get("/mirror")[1].decode()
    # An upload that goes on at the other, behind a balancer that knows of no sessions, and after both were killed.
    data, at, mirrors = os.urandom(40 << 20), 0, [one, other]
    path = one.location("POST", "/v2/team/thing/blobs/uploads/")
    while at < len(data):
        piece = data[at : at + (15 << 20)]
        status, _ = mirrors[0].send("PATCH", path, piece, headers={"Content-Range": f"{at}-{at + len(piece) - 1}"})
        assert status == 202
        at += len(piece)
        mirrors[0].kill()
        mirrors[0].start()
        mirrors.reverse()
    blob = f"/v2/team/thing/blobs/{digest(data)}"
    assert one.get(blob)[0] == 404
    assert one.send("PUT", f"{path}?digest={digest(data)}", b"")[0] == 201
    assert other.get(blob) == (200, data)
    assert other.send("GET", blob, headers={"Range": "bytes=33554000-33555000"}) == (206, data[33554000:33555001])
    assert other.send("GET", blob, headers={"If-None-Match": f'"{digest(data)}"'})[0] == 304
    assert one.send("HEAD", "/v2/anna/cria/manifests/latest")[0] == 200
    assert other.send("DELETE", "/v2/anna/cria/manifests/latest")[0] == 202
    assert one.get("/v2/anna/cria/manifests/latest")[0] == 404
    # Nothing of it lies on the machines, and nothing tells the key.
    for it in (one, other):
        assert not [p for p in it.home.glob(".ollama/models/**/*") if p.is_file() and p.stat().st_size > 1000]
        settings = it.cli("config", check=True).stdout
        assert storage.bucket in settings and storage.secret not in settings + it.log.read_text()


def test_fetched_models_are_stored_in_the_bucket(mirror, storage, upstream):
    data = os.urandom(3 << 20)
    upstream.put("library/big:latest", [("application/vnd.ollama.image.model", data), ("application/vnd.docker.container.image.v1+json", b"{}")])
    one, other = through(mirror, upstream, **storage.env()), mirror(**storage.env())
    manifest, blob = "/v2/library/big/manifests/latest", f"/v2/library/big/blobs/{digest(data)}"
    assert one.get(manifest) == (200, upstream.manifests["library/big:latest"])
    assert one.get(blob) == (200, data)
    assert wait_for(lambda: other.get(manifest)[0] == 200)
    upstream.manifests.clear()
    assert other.get(blob) == (200, data)
    passing = one.home / ".ollama/models/puna-registry/passing"
    assert wait_for(lambda: not [p for p in passing.glob("*/**/*") if p.is_file() and p.stat().st_size > 1000])


def test_a_missing_bucket_is_reported_at_start(mirror, storage, tmp_path):
    def refusal(**env):
        env = {**environment(tmp_path), "PUNA_MIRROR_HOST": f"127.0.0.1:{free_port()}", **storage.env(**env)}
        done = subprocess.run([BINARY, "mirror"], env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1, done.stderr
        return done.stderr

    assert "s3://nowhere/x" in (text := refusal(PUNA_MIRROR_STORAGE="s3://nowhere/x")) and "bucket" in text, text
    text = refusal(AWS_SECRET_ACCESS_KEY="wrong-secret")
    assert "credentials" in text and "mirror.storage_secret" in text and "wrong-secret" not in text, text
    assert "must be s3://BUCKET" in refusal(PUNA_MIRROR_STORAGE="models")
    text = refusal(PUNA_MIRROR_STORAGE_ENDPOINT=f"http://127.0.0.1:{free_port()}")
    assert "mirror.storage_endpoint" in text, text
