"""Full and read-only disks and wrong clocks: a clear error and no data loss. The small disk is a tmpfs, which only
root can mount."""
import contextlib
import os
import socket
import subprocess
import threading
import time

import ollama
import pytest

from conftest import DATA, REPOSITORY, Puna, puna, wait_for
from test_mirror import Mirror, digest, raw
from test_registry import Registry

CRIA = REPOSITORY / "models/cria/cria-q8_0.gguf"
CONFIG = ("application/vnd.docker.container.image.v1+json", b"{}")
MODEL = "application/vnd.ollama.image.model"


@pytest.fixture
def disk(tmp_path):
    """Mounts disks: `disk(24)` is the folder of one of 24 MiB."""
    mounted = []

    def mount(size):
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}m", "none", folder], capture_output=True).returncode:
            pytest.skip("SKIPPED: a small disk can be mounted by root alone")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def registry():
    server = Registry()
    yield server
    server.shutdown()
    server.server_close()


def fill(folder, leave=0):
    """Takes what is free, but for so many bytes."""
    free = os.statvfs(folder)
    path = folder / "filler"
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
        file.write(b"x" * max(0, free.f_bavail * free.f_frsize - leave))
    return path


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.suffix not in (".lock", ".work") and path.name != "filler")


def test_a_pull_that_does_not_fit_is_refused_and_resumes_once_space_is_free(disk, registry, home):
    small = disk(32)
    env = home | {"OLLAMA_MODELS": str(small / "models")}
    name = f"{registry.host}/me/m"
    registry.put("me/m:latest", [(MODEL, bytes(40 << 20)), CONFIG])
    refused = puna("pull", "--insecure", name, env=env)
    assert refused.returncode == 1 and "not enough space for the model" in refused.stderr and "OLLAMA_MODELS" in refused.stderr
    assert registry.sent == 0 and not [path for path in files(small) if "blobs" in path or "manifests" in path]

    data = os.urandom(20 << 20)
    registry.put("me/m:latest", [(MODEL, data), CONFIG])
    registry.pace = 0.04
    done = []
    pull = threading.Thread(target=lambda: done.append(puna("pull", "--insecure", name, env=env)))
    pull.start()
    assert wait_for(lambda: registry.sent > 12 << 20, 20)
    filler = fill(small)
    pull.join(60)
    assert done[0].returncode == 1 and ("not enough space" in done[0].stderr or "No space left" in done[0].stderr), done[0].stderr
    assert "OLLAMA_MODELS" in done[0].stderr, "the way out is told"
    assert not [path for path in files(small) if "manifests" in path]
    # What is there can be looked at, and room can be made.
    assert puna("list", env=env).returncode == 0 and puna("prune", env=env).returncode == 0
    filler.unlink()
    registry.pace, registry.asked = 0.0, []
    puna("pull", "--insecure", name, env=env, check=True)
    again = sum(last + 1 - first for of, first, last in registry.asked if of == digest(data))
    assert again < len(data) - (1 << 20), "all of it was asked for again"
    assert (small / "models/blobs" / digest(data).replace(":", "-")).read_bytes() == data


def test_a_full_disk_leaves_no_incomplete_models(disk, tmp_path):
    small, home = disk(20), tmp_path / "home"
    home.mkdir()
    server = Puna(home, OLLAMA_MODELS=small / "models")
    try:
        server.cli("cp", "cria", "mine", check=True)
        before, filler = files(small), fill(small, leave=64 << 10)
        floats, data = DATA / "zoo/llama-f16.gguf", os.urandom(1 << 20)
        for options in ([], ["-q", "q4_0"]):
            made = server.cli("create", "other", *options, "-f", "-", input=f"FROM {floats}\n")
            assert made.returncode == 1 and "space" in made.stderr and "OLLAMA_MODELS" in made.stderr, made.stderr
        status, body = server.send("POST", f"/api/blobs/{digest(data)}", data)
        assert status >= 500 and b"space" in body, body
        fill(small)
        copied = server.cli("cp", "mine", "again")
        assert copied.returncode == 1 and "space" in copied.stderr, copied.stderr
        assert files(small) == before, "something was left behind"
        # What is there works, and goes, and then there is room.
        assert server.client().chat("mine", [{"role": "user", "content": "What is the capital of France?"}], think=False).message.content == "Paris."
        server.cli("rm", "mine", check=True)
        filler.unlink()
        server.cli("create", "other", "-q", "q4_0", "-f", "-", input=f"FROM {floats}\n", check=True)
        assert server.client().show("other").details.family
    finally:
        server.kill()


def test_a_key_with_namespaces_leaves_disk_space_for_others(disk, tmp_path):
    large, home = disk(300), tmp_path / "home"
    home.mkdir()
    server = Puna(home, OLLAMA_MODELS=large / "models")
    try:
        server.cli("cp", "cria", "mine", check=True)
        key = server.cli("key", "add", "eve", "--scope", "inference,models", "--namespace", "eve", check=True).stdout.strip()
        everywhere = server.cli("key", "add", "ann", "--scope", "inference,models", check=True).stdout.strip()
        assert wait_for(lambda: server.knows(key) and server.knows(everywhere))
        filler = fill(large, leave=255 << 20)
        body = b'{"model": "%s", "from": "cria", "system": "' + b"x" * (1 << 20) + b'", "stream": false}'
        create = lambda name, **headers: server.send("POST", "/api/create", body % name, headers=headers)[:2]
        status, said = create(b"eve/large", Authorization=f"Bearer {key}")
        assert status == 507 and b"not enough space" in said and b"bytes" not in said, (status, said)
        assert create(b"large", Authorization=f"Bearer {everywhere}")[0] == 200
        filler.unlink()
        assert create(b"eve/large", Authorization=f"Bearer {key}")[0] == 200
    finally:
        server.kill()


def test_a_push_to_a_full_mirror_is_refused_once_and_leaves_nothing(disk, home, tmp_path):
    small = disk(24)
    (tmp_path / "mirror").mkdir()
    it = Mirror(tmp_path / "mirror", OLLAMA_MODELS=small / "models")
    try:
        puna("cp", "cria", f"{it.host}/me/cria", env=home, check=True)
        begun = time.monotonic()
        refused = puna("push", "--insecure", f"{it.host}/me/cria", env=home)
        assert refused.returncode == 1 and "507" in refused.stderr and "not enough disk space for this upload" in refused.stderr, refused.stderr
        assert time.monotonic() - begun < 15, "what does not pass is tried again and again"
        assert it.get("/v2/_catalog") == (200, b'{"repositories":[]}')
    finally:
        it.kill()


def test_a_disk_that_fills_during_an_upload_loses_no_confirmed_bytes(disk, tmp_path):
    large = disk(280)
    (tmp_path / "mirror").mkdir()
    it = Mirror(tmp_path / "mirror", OLLAMA_MODELS=large / "models")
    try:
        data, host = os.urandom(3 << 20), f"Host: {it.host}\n"
        path = raw(it, f"POST /v2/me/thing/blobs/uploads/ HTTP/1.1\n{host}Content-Length: 0\n")[1]["location"].removeprefix(f"http://{it.host}")
        first = 1 << 20
        assert raw(it, f"PATCH {path} HTTP/1.1\n{host}Content-Length: {first}\nContent-Range: 0-{first - 1}\n", data[:first])[0] == 202
        with socket.create_connection(("127.0.0.1", it.port), timeout=30) as s:
            s.sendall(f"PATCH {path} HTTP/1.1\r\nHost: {it.host}\r\nContent-Length: {len(data) - first}\r\nContent-Range: {first}-{len(data) - 1}\r\n\r\n".encode() + data[first : first + 1000])
            uploads = large / "models/puna-registry/uploads"
            assert wait_for(lambda: any(p.stat().st_size > first for p in uploads.iterdir() if not p.suffix))
            filler = fill(large)
            with contextlib.suppress(OSError):
                s.sendall(data[first + 1000 :])
            answer = s.recv(1 << 16)
        assert b" 507 " in answer.splitlines()[0] and b"the disk of this registry is full" in answer, answer
        filler.unlink()
        status, headers, _ = raw(it, f"GET {path} HTTP/1.1\n{host}")
        assert (status, headers["range"]) == (204, f"0-{first - 1}")
        assert raw(it, f"PATCH {path} HTTP/1.1\n{host}Content-Length: {len(data) - first}\nContent-Range: {first}-{len(data) - 1}\n", data[first:])[0] == 202
        assert raw(it, f"PUT {path}?digest={digest(data)} HTTP/1.1\n{host}Content-Length: 0\n")[0] == 201
        assert it.get(f"/v2/me/thing/blobs/{digest(data)}") == (200, data)
    finally:
        it.kill()


def test_a_read_only_store_is_served_and_changes_are_refused(disk, registry, tmp_path):
    small, home = disk(40), tmp_path / "home"
    home.mkdir()
    env = {"OLLAMA_MODELS": small / "models"}
    registry.put("me/m:latest", [(MODEL, b"weights"), CONFIG])
    server = Puna(home, **env)
    try:
        server.cli("create", "mine", "-f", "-", input=f"FROM {CRIA}\nPARAMETER temperature 0\n", check=True)
        server.cli("cp", "mine", f"{registry.host}/me/mine", check=True)
        before = files(small)
        assert server.stop() == 0
        subprocess.run(["mount", "-o", "remount,ro", small], check=True)
        server.start()
        client = server.client()
        assert "mine:latest" in {m.model for m in client.list().models}
        question = [{"role": "user", "content": "What is the capital of France?"}]
        assert client.chat("mine", question, think=False).message.content == "Paris."
        assert client.show("mine").details.family and server.cli("verify", "mine").returncode == 0
        assert client.push(f"{registry.host}/me/mine", insecure=True).status == "success"
        for command in (["pull", "--insecure", f"{registry.host}/me/m"], ["cp", "mine", "other"], ["rm", "mine"], ["create", "new", "-f", str(modelfile(home))]):
            done = server.cli(*command)
            assert done.returncode == 1 and "Read-only file system" in done.stderr and "Traceback" not in done.stderr, f"{command}: {done.stderr}"
        with pytest.raises(ollama.ResponseError, match="Read-only file system"):
            client.create_blob(CRIA.with_name("Modelfile"))
        assert files(small) == before and server.process.poll() is None
        (tmp_path / "mirror").mkdir()
        it = Mirror(tmp_path / "mirror", **env)
        try:
            status, manifest = it.get("/v2/library/mine/manifests/latest")
            assert status == 200 and it.get(f"/v2/library/mine/blobs/{digest(CRIA.read_bytes())}") == (200, CRIA.read_bytes())
            status, body = it.send("POST", "/v2/me/x/blobs/uploads/", b"")
            assert status == 405 and b"the disk of this registry is read-only" in body, (status, body)
        finally:
            it.kill()
    finally:
        server.kill()


def modelfile(folder):
    path = folder / "Modelfile"
    path.write_text("FROM mine\nSYSTEM You answer.\n")
    return path


def test_files_with_past_and_future_times_are_listed_and_downloads_resume(registry, home):
    data = os.urandom(8 << 20)
    registry.put("me/m:latest", [(MODEL, data), CONFIG])
    registry.pace = 0.1
    name, models = f"{registry.host}/me/m", os.path.join(home["HOME"], ".ollama/models")
    puna("cp", "cria", "mine", env=home, check=True)
    with contextlib.suppress(subprocess.TimeoutExpired):
        puna("pull", "--insecure", name, env=home, timeout=1.5)
    partial = os.path.join(models, "blobs", digest(data).replace(":", "-") + "-partial")
    assert os.path.exists(partial)
    year = 365 * 24 * 3600
    for at in (time.time() + year, 1.0):
        for folder, _, names in os.walk(models):
            for path in names:
                os.utime(os.path.join(folder, path), (at, at))
        listed = puna("list", env=home, check=True).stdout
        assert "mine:latest" in listed and ("ago" in listed or "from now" in listed), listed
        if at > time.time():
            puna("prune", "--partial", "--dry-run", env=home, check=True)
            assert os.path.exists(partial)
    registry.pace, registry.asked = 0.0, []
    puna("pull", "--insecure", name, env=home, check=True)
    assert sum(last + 1 - first for of, first, last in registry.asked if of == digest(data)) < len(data), "all of it was asked for again"
    assert "mine:latest" in puna("list", env=home, check=True).stdout
