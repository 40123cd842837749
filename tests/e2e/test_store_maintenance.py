"""Store maintenance with the `puna` command: damaged files, unused files, unfinished pulls, linked files and read-
only folders."""
import fcntl
import json
import os
import struct
import time

import pytest

from conftest import REPOSITORY, environment, puna
from test_registry import digest, give_up, of_cria, registry, wait_for  # noqa: F401: a fixture

CRIA = REPOSITORY / "models/cria/cria-q8_0.gguf"
QUESTION = "What is the capital of France?"


def models(env):
    return REPOSITORY.__class__(env["HOME"]) / ".ollama/models"


def weights(env, name, host="registry.ollama.ai/library"):
    """The file of a model's weights."""
    manifest = json.loads((models(env) / "manifests" / host / name / "latest").read_text())
    return models(env) / "blobs" / manifest["layers"][0]["digest"].replace(":", "-")


def create(env, name, *flags, file=None):
    file = file or models(env).parents[1] / "mine.gguf"
    if not file.exists():
        file.write_bytes(CRIA.read_bytes())
    puna("create", name, "-f", "-", *flags, env=env, input=f"FROM {file}\n", check=True)
    return file


def test_damaged_blobs_are_found_and_fetched_again_from_their_registry(registry, fresh):
    server = fresh()
    name = of_cria(server, registry)
    assert server.cli("verify", check=True).stderr.splitlines()[-1] == "success"
    blob = weights(server.env, "cria", f"{registry.host}/me")
    whole = blob.read_bytes()
    blob.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    found = server.cli("verify", name)
    assert found.returncode == 1 and "does not match its digest" in found.stderr and "--repair" in found.stderr
    # This registry has no HTTPS, which the repair has to be told as the pull was.
    refused = server.cli("verify", name, "--repair")
    assert refused.returncode == 1 and "cannot repair " in refused.stderr, refused.stderr
    assert "add --insecure for models" in refused.stderr.splitlines()[-1] and blob.read_bytes() != whole
    server.cli("verify", name, "--repair", "--insecure", check=True)
    assert blob.read_bytes() == whole
    # Without the registry nothing is lost: not even what is damaged.
    blob.write_bytes(whole[:100])
    registry.manifests.clear()
    left = server.cli("verify", name, "--repair", "--insecure")
    assert left.returncode == 1 and "file does not exist" in left.stderr
    assert blob.read_bytes() == whole[:100]
    status, told = server.post("/api/verify", {"model": "absent"})
    assert (status, told["error"]) == (404, "model 'absent:latest' not found")


def test_a_broken_manifest_is_named_and_fetched_again(registry, fresh):
    server = fresh()
    name = of_cria(server, registry)
    path = models(server.env) / "manifests" / registry.host / "me/cria/latest"
    whole = path.read_bytes()
    for broken in (b"junk", b"", b"[]", b"{}", whole.replace(b"sha256:", b"sha256:../")):
        path.write_bytes(broken)
        for model in ([], [name]):
            found = server.cli("verify", *model)
            assert found.returncode == 1 and str(path) in found.stderr and "--repair" in found.stderr, found.stderr
            assert "success" not in found.stderr
        server.cli("verify", "--repair", "--insecure", check=True)
        assert path.read_bytes() == whole
    path.write_bytes(b"junk")
    registry.manifests.clear()
    left = server.cli("verify", "--repair", "--insecure")
    assert left.returncode == 1 and str(path) in left.stderr and "remove them with `puna rm`" in left.stderr


def test_creating_a_model_again_replaces_damaged_blobs(fresh):
    server = fresh()
    file = create(server.env, "mine")
    os.utime(file, (1_000_000_000,) * 2)
    blob = weights(server.env, "mine")
    whole = file.read_bytes()
    for damaged in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:100]):
        blob.unlink()
        blob.write_bytes(damaged)
        create(server.env, "again")
        assert blob.read_bytes() == whole and server.cli("verify").returncode == 0
    assert file.stat().st_mtime == 1_000_000_000
    # What is uploaded, too.
    blob.unlink()
    blob.write_bytes(damaged)
    assert server.send("POST", f"/api/blobs/{digest(whole)}", whole)[0] == 201
    assert blob.read_bytes() == whole


def make_old(path, hours):
    os.utime(path, (time.time() - hours * 3600,) * 2)


def test_prune_removes_unused_blobs_which_can_be_restored(fresh):
    server = fresh()
    old, young = os.urandom(1000), os.urandom(1000)
    for data in (old, young):
        assert server.send("POST", f"/api/blobs/{digest(data)}", data)[0] == 201
    blob = models(server.env) / "blobs" / digest(old).replace(":", "-")
    make_old(blob, 2)
    dry = server.cli("prune", "--dry-run", check=True).stdout
    assert blob.name in dry and "1 file would be removed" in dry and "1 more" in dry and blob.exists()
    assert "no model uses it" in dry
    removed = server.cli("prune", check=True).stdout
    assert "1 file removed" in removed and "--undo" in removed
    assert not blob.exists() and server.send("HEAD", f"/api/blobs/{digest(young)}")[0] == 200
    assert "1 file restored" in server.cli("prune", "--undo", check=True).stdout
    assert blob.read_bytes() == old
    make_old(blob, 2)
    server.cli("prune", check=True)
    assert "1 KB freed" in server.cli("prune", "--empty-trash", check=True).stdout
    assert "0 files restored" in server.cli("prune", "--undo", check=True).stdout and not blob.exists()
    # What is not known may need anything.
    (models(server.env) / "manifests-v3").mkdir()
    blob.write_bytes(old)
    make_old(blob, 2)
    blocked = server.cli("prune")
    assert blocked.returncode == 1 and "manifests-v3 is unknown" in blocked.stderr and blob.exists()


def test_a_starting_server_removes_only_unfinished_work_of_puna(fresh):
    server = fresh()
    ours, theirs = os.urandom(1000), os.urandom(1000)
    blobs = models(server.env) / "blobs"
    assert server.send("POST", f"/api/blobs/{digest(ours)}", ours)[0] == 201
    ours, other = (blobs / digest(data).replace(":", "-") for data in (ours, theirs))
    other.write_bytes(theirs)
    for blob in (ours, other):
        make_old(blob, 4)
    server.stop()
    server.start()
    # A model may still be made of what was uploaded today.
    time.sleep(0.5)
    assert ours.exists() and other.exists()
    for blob in (ours, other):
        make_old(blob, 25)
    server.stop()
    server.start()
    assert wait_for(lambda: not ours.exists()) and other.exists()
    assert "1 file restored" in server.cli("prune", "--undo", check=True).stdout and ours.exists()


def test_an_interrupted_pull_is_listed_until_it_is_completed_or_removed(registry, fresh):
    data = os.urandom(48 << 20)
    registry.put("me/big:latest", [("application/vnd.ollama.image.model", data), ("x/config", b"{}")])
    registry.pace = 0.02
    server = fresh()
    name = f"{registry.host}/me/big"
    lines = server.client().pull(name, insecure=True, stream=True)
    for line in lines:
        if (line.completed or 0) > 4 << 20:
            break
    listed = json.loads(server.cli("list", "--partial", "--json", check=True).stdout)["downloads"]
    assert [(d["model"], d["running"], d["total"]) for d in listed] == [(f"{name}:latest", True, len(data) + 2)]
    lines.close()
    row = wait_for(lambda: [r for r in server.cli("list", "--partial").stdout.splitlines() if "stopped" in r])
    assert row and name in row[0]
    partial = list((models(server.env) / "blobs").glob("*-partial*"))
    for file in partial:
        os.utime(file, (time.time() - 90,) * 2)
    assert "0 files removed" in server.cli("prune", check=True).stdout
    assert f"{len(partial)} files removed" in server.cli("prune", "--partial", check=True).stdout
    registry.pace = 0
    assert server.client().pull(name, insecure=True).status == "success"
    assert json.loads(server.cli("list", "--partial", "--json", check=True).stdout) == {"downloads": []}


def places(file):
    """Where the bytes of a file lie on the disk (FIEMAP): two files that share them have the same places."""
    most, head, row = 64, "=QQLLLL", "=QQQ16xL12x"
    size = struct.calcsize(row)
    asked = bytearray(struct.pack(head, 0, 2**64 - 1, 1, 0, most, 0) + bytes(most * size))
    with open(file, "rb") as opened:
        fcntl.ioctl(opened, 0xC020660B, asked)
    count = struct.unpack_from(head, asked)[3]
    return [struct.unpack_from(row, asked, struct.calcsize(head) + n * size)[:3] for n in range(count)]


def test_local_files_are_not_copied_into_the_store(fresh):
    # The first model of a home is none that is copied either: by the folder that the server makes it is known that it is this one.
    server = fresh()
    file = create(server.env, "shared")
    blob = weights(server.env, "shared")
    # Where the file system clones, the file is another one; its bytes are not.
    if blob.stat().st_ino != file.stat().st_ino:
        assert places(blob) == places(file) != [], "a copy"
    file.unlink()
    messages = [{"role": "user", "content": QUESTION}]
    assert server.client().chat("shared", messages, options={"temperature": 0}).message.content == "Paris."
    referred = create(server.env, "referred", "--reference", file=models(server.env).parents[1] / "cria.gguf")
    server.client().delete("shared")
    assert weights(server.env, "referred").exists() and referred.exists()


def test_a_model_created_by_reference_needs_its_file(home):
    file = create(home, "mine", "--reference")
    assert os.readlink(weights(home, "mine")) == str(file)
    assert "success" in puna("verify", env=home, check=True).stderr
    file.unlink()
    gone = puna("verify", "mine", env=home)
    assert gone.returncode == 1 and "is missing" in gone.stderr


def test_a_server_with_another_store_gets_the_files_by_http(fresh, tmp_path):
    server = fresh()
    elsewhere = environment(tmp_path, OLLAMA_HOST=server.env["OLLAMA_HOST"])
    (models(elsewhere) / "blobs").mkdir(parents=True)
    create(elsewhere, "mine")
    assert list((models(elsewhere) / "blobs").iterdir()) == []
    assert "mine:latest" in [m.model for m in server.client().list().models]
    refused = puna("create", "other", "-f", "-", "--reference", env=elsewhere, input=f"FROM {unlike(tmp_path)}\n")
    assert refused.returncode == 1 and "cannot refer to" in refused.stderr


def unlike(folder):
    """A file that the server does not have."""
    file = folder / "other.gguf"
    file.write_bytes(CRIA.read_bytes() + b"\0")
    return file


def test_models_of_a_shared_folder_run_and_stay_unchanged(home, fresh, tmp_path):
    create(home, "theirs")
    before = {path: path.stat().st_mtime_ns for path in models(home).rglob("*")}
    server = fresh(PUNA_SEARCH_PATHS=models(home))
    assert "theirs:latest" in [m.model for m in server.client().list().models]
    assert server.client().generate("theirs", QUESTION, options={"num_predict": 2}).eval_count
    refused = server.cli("rm", "theirs")
    assert refused.returncode == 1 and "read-only folder" in refused.stderr and "search_paths" in refused.stderr
    server.client().copy("theirs", "copy")
    assert not list((models(server.env) / "blobs").glob("*")) if (models(server.env) / "blobs").exists() else True
    server.client().delete("copy")
    assert {path: path.stat().st_mtime_ns for path in models(home).rglob("*")} == before
