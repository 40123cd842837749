"""A store shared with Ollama: the links of Ollama 0.40 in `manifests-v2`, manifest lists, and the manifests that
Ollama 0.17 reads."""
import hashlib
import json
import os
import pathlib
import subprocess
import time

import pytest

from conftest import REPOSITORY, puna, wait_for

CRIA = REPOSITORY / "models/cria/cria-q8_0.gguf"
GO = REPOSITORY / ".cache/go/store.test"
QUESTION = "What is the capital of France?"
DAYS = 24 * 3600
PUBLIC = "registry.ollama.ai/library"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
LIST = "application/vnd.ollama.manifest.list.v2+json"
KEPT = "application/vnd.puna.kept"
CONFIG = "application/vnd.docker.container.image.v1+json"
IMAGE = "application/vnd.ollama.image."
DETAILS = {"model_format": "gguf", "model_family": "llama", "model_families": ["llama"], "model_type": "5.8M", "file_type": "Q8_0"}


def sha256(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def compact(value):
    """JSON without blanks, in the order of the keys."""
    return json.dumps(value, separators=(",", ":")).encode()


class Store:
    """The folder of models in a home, written as Ollama 0.40 writes it."""

    def __init__(self, home):
        self.root = pathlib.Path(home) / ".ollama/models"
        (self.root / "blobs").mkdir(parents=True)
        (self.root / "manifests-v2").mkdir()

    def blob(self, digest):
        return self.root / "blobs" / digest.replace(":", "-")

    def add(self, kind, data):
        """Writes a blob and returns the layer that names it."""
        self.blob(sha256(data)).write_bytes(data)
        return {"mediaType": kind, "digest": sha256(data), "size": len(data)}

    def manifest(self, license, **stated):
        """A manifest of the model `cria` with a license of its own. `stated` is its runner and format."""
        config = self.add(CONFIG, compact(DETAILS))
        texts = [self.add(IMAGE + "license", license.encode()), self.add(IMAGE + "params", b'{"temperature":0}')]
        layers = [self.add(IMAGE + "model", CRIA.read_bytes()), *texts]
        return compact({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers, **stated})

    def link(self, model, manifest):
        """Gives a manifest or a list a name in `manifests-v2`; returns its digest."""
        digest = self.add(MANIFEST, manifest)["digest"]
        path = self.linked(model)
        path.parent.mkdir(parents=True)
        path.symlink_to(f"../../../../blobs/{self.blob(digest).name}")
        return digest

    def list_of(self, *runners):
        """A list with a manifest in GGUF for each runner; the digests of these by runner."""
        children = {runner: self.add(MANIFEST, self.manifest(f"License of {runner}", runner=runner, format="gguf"))["digest"] for runner in runners}
        entries = [{"mediaType": MANIFEST, "digest": digest, "runner": runner, "format": "gguf"} for runner, digest in children.items()]
        return compact({"schemaVersion": 2, "mediaType": LIST, "manifests": entries}), children

    def linked(self, model, host="ollama.com", namespace="library"):
        return self.root / "manifests-v2" / host / namespace / model / "latest"

    def anchor(self, model, host="registry.ollama.ai", namespace="library"):
        return self.root / "manifests" / host / namespace / model / "latest"

    def age(self, days=40):
        for path in (self.root / "blobs").iterdir():
            os.utime(path, (time.time() - days * DAYS,) * 2)

    def blobs(self):
        return {path.name for path in (self.root / "blobs").iterdir()}

    def snapshot(self):
        """All blobs and names with what they hold."""
        found = {}
        for folder in ("blobs", "manifests", "manifests-v2"):
            for path in (self.root / folder).rglob("*"):
                if path.is_symlink():
                    found[path] = os.readlink(path)
                elif path.is_file():
                    found[path] = sha256(path.read_bytes())
        return found


def read(path):
    return json.loads(path.read_bytes())


def digests(manifest):
    """All that a manifest needs."""
    return {layer["digest"] for layer in [*manifest["layers"], manifest["config"]]}


def check_link(store, path):
    """Fails unless a name is a relative link to a whole blob; returns the manifest or list and its digest."""
    target = pathlib.PurePosixPath(os.readlink(path))
    assert target.parts[:-1] == ("..",) * 4 + ("blobs",), target
    data = path.read_bytes()
    assert target.name == sha256(data).replace(":", "-") and (store.root / "blobs" / target.name).is_file()
    return json.loads(data), sha256(data)


@pytest.fixture
def store(home):
    """The store of the commands without a server; its `manifests-v2` is empty."""
    return Store(home["HOME"])


def create(store, env, name):
    file = store.root.parents[1] / "mine.gguf"
    file.write_bytes(CRIA.read_bytes())
    puna("create", name, "-f", "-", env=env, input=f"FROM {file}\nLICENSE License of {name}\n", check=True)


def test_a_created_model_has_a_link_and_an_anchor(store, home):
    create(store, home, "mine")
    manifest, digest = check_link(store, store.linked("mine"))
    assert manifest["mediaType"] == MANIFEST and all(layer["mediaType"] not in (MANIFEST, LIST, KEPT) for layer in manifest["layers"])
    anchor = read(store.anchor("mine"))
    assert anchor["layers"][:-1] == manifest["layers"] and anchor["config"] == manifest["config"]
    size = store.blob(digest).stat().st_size
    assert anchor["layers"][-1] == {"mediaType": MANIFEST, "digest": digest, "size": size}
    assert all(store.blob(needed).is_file() for needed in digests(anchor))
    # A copy is a further link to the same blob; a port is written in the form of each folder.
    copies = {"me/copied": ("ollama.com", "registry.ollama.ai"), "127.0.0.1:5000/me/copied": ("127.0.0.1%3A5000", "127.0.0.1:5000")}
    for copy, (linked_host, anchor_host) in copies.items():
        puna("cp", "mine", copy, env=home, check=True)
        assert os.readlink(store.linked("copied", linked_host, "me")) == os.readlink(store.linked("mine"))
        assert read(store.anchor("copied", anchor_host, "me")) == anchor
    listed = [model["name"] for model in json.loads(puna("list", "--json", env=home, check=True).stdout)["models"]]
    for name in ("mine", *copies):
        assert listed.count(f"{name}:latest") == 1, listed
    # Both files of a name go, and the blobs with the last name.
    puna("rm", "mine", env=home, check=True)
    assert not store.linked("mine").is_symlink() and not store.anchor("mine").exists() and store.blob(digest).is_file()
    puna("rm", *copies, env=home, check=True)
    assert (store.root / "manifests-v2").is_dir() and store.blobs() == set()


def test_a_list_or_one_of_its_manifests_is_copied(store, home):
    text, children = store.list_of("llamacpp", "ggml")
    digest = store.link("list", text)
    store.age()
    puna("cp", "list", "copied", env=home, check=True)
    assert check_link(store, store.linked("copied"))[1] == digest
    # Older versions get the manifest for llama.cpp, and keep the rest of the list.
    anchor = read(store.anchor("copied"))
    chosen, other = (read(store.blob(children[runner])) for runner in ("llamacpp", "ggml"))
    assert anchor["layers"][: len(chosen["layers"])] == chosen["layers"] and anchor["config"] == chosen["config"]
    assert digests(anchor) >= {digest, *children.values()} | digests(chosen) | digests(other)
    puna("cp", "list@ggml", "one", env=home, check=True)
    assert check_link(store, store.linked("one")) == (other, children["ggml"])
    refused = puna("cp", "list", "two@ggml", env=home)
    assert refused.returncode == 1 and "leave out the runner" in refused.stderr
    refused = puna("rm", "list@ggml", env=home)
    assert refused.returncode == 1 and "leave out the runner" in refused.stderr
    before = store.blobs()
    puna("rm", "list", env=home, check=True)
    assert store.blobs() == before and not store.linked("list").is_symlink()


@pytest.fixture
def shared(fresh, tmp_path):
    """A server on a store that Ollama 0.40 has written 40 days ago: a created model without an anchor, and a list."""
    store = Store(tmp_path)
    store.created = store.link("created", store.manifest("License of created"))
    text, store.children = store.list_of("llamacpp", "ggml")
    store.list = store.link("list", text)
    store.age()
    store.before = store.snapshot()
    return store, fresh(home=tmp_path)


def test_nothing_of_ollama_is_removed_at_start(shared):
    store, server = shared
    time.sleep(0.5)
    assert store.snapshot() == store.before
    assert "0 files would be removed" in server.cli("prune", "--dry-run", check=True).stdout
    assert "0 files removed" in server.cli("prune", "--partial", check=True).stdout
    assert store.snapshot() == store.before
    assert server.cli("verify", check=True).stderr.splitlines()[-1] == "success"


def test_models_of_ollama_are_listed_shown_and_run(shared):
    store, server = shared
    table = server.cli("list", check=True).stdout
    names = [line.split()[0] for line in table.splitlines()[1:]]
    assert sorted(names) == ["created:latest", "cria:latest", "list:latest@ggml", "list:latest@llamacpp"], table
    tags = [model for model in json.loads(server.get("/api/tags")[1])["models"] if model["name"] != "cria:latest"]
    rows = {(model["name"], model["details"].get("runner", "")): "sha256:" + model["digest"] for model in tags}
    assert len(rows) == len(tags)
    assert rows == {
        ("created:latest", ""): store.created,
        ("list:latest", "llamacpp"): store.children["llamacpp"],
        ("list:latest", "ggml"): store.children["ggml"],
    }
    for name, license in (("created", "created"), ("list", "llamacpp"), ("list@ggml", "ggml"), ("list@llamacpp", "llamacpp")):
        status, shown = server.post("/api/show", {"model": name})
        assert (status, shown.get("license")) == (200, f"License of {license}"), shown
    status, shown = server.post("/api/show", {"model": "list@ggml"})
    states = [(row["runner"], row["format"], "sha256:" + row["digest"], row["stored"], row["chosen"]) for row in shown["runners"]]
    assert states == [("llamacpp", "gguf", store.children["llamacpp"], True, False), ("ggml", "gguf", store.children["ggml"], True, True)]
    assert "Runners" in server.cli("show", "list", check=True).stdout
    status, told = server.post("/api/show", {"model": "list@mlx"})
    assert (status, told["error"]) == (400, "no compatible manifest found for runners: mlx: list:latest has llamacpp, ggml")
    for name in ("created", "list", "list@ggml"):
        assert "Paris." in server.cli("run", name, QUESTION, check=True).stdout
    assert store.snapshot() == store.before


def test_the_preferred_runner_is_a_setting(fresh, tmp_path):
    store = Store(tmp_path)
    store.link("list", store.list_of("llamacpp", "ggml")[0])
    server = fresh(home=tmp_path, PUNA_RUNNER="ggml")
    assert server.post("/api/show", {"model": "list"})[1]["license"] == "License of ggml"


def test_models_of_ollama_are_copied_and_removed(shared):
    store, server = shared
    for source in ("created", "list"):
        server.cli("cp", source, f"{source}-copy", check=True)
        assert os.readlink(store.linked(f"{source}-copy")) == os.readlink(store.linked(source))
    server.cli("rm", "created-copy", "list-copy", check=True)
    assert store.snapshot() == store.before
    server.cli("prune", "--empty-trash", check=True)
    needed = digests(read(store.blob(store.created))) | {store.created}
    of_list = set().union(*(digests(read(store.blob(child))) for child in store.children.values()))
    freed = {store.blob(digest).name for digest in needed - of_list}
    blobs = store.blobs()
    assert "deleted 'created'" in server.cli("rm", "created", check=True).stdout
    assert not store.linked("created").is_symlink() and store.blobs() == blobs - freed and len(freed) == 2
    # The mistake is undone.
    assert "restored" in server.cli("prune", "--undo", check=True).stdout
    assert store.snapshot() == store.before


def test_nothing_is_removed_while_a_folder_is_unknown(shared):
    store, server = shared
    orphan = b"no name needs this"
    store.add("", orphan)
    store.age()
    blobs = store.blobs()
    unknown = store.root / "manifests-v3"
    unknown.mkdir()
    for flags in ([], ["--dry-run"], ["--partial"]):
        blocked = server.cli("prune", *flags)
        assert blocked.returncode == 1 and "nothing is removed" in blocked.stderr and f"{unknown} is unknown and may need any blob" in blocked.stderr, blocked
    removed = server.cli("rm", "created", check=True)
    assert "the space of the model was not freed" in removed.stderr and str(unknown) in removed.stderr
    assert store.blobs() == blobs and not store.linked("created").is_symlink()
    # A server that starts finishes the removal when it understands the store again; the rest stays.
    unknown.rmdir()
    server.stop()
    server.start()
    assert wait_for(lambda: not store.blob(store.created).exists())
    assert store.blob(sha256(orphan)).exists() and store.blob(store.list).exists()
    listed = server.cli("prune", "--dry-run", check=True).stdout
    assert store.blob(sha256(orphan)).name in listed and "1 file would be removed" in listed


def test_nothing_is_removed_while_a_link_dangles(shared):
    store, server = shared
    lost = store.blob(store.created)
    lost.unlink()
    before = store.snapshot()
    blocked = server.cli("prune")
    assert blocked.returncode == 1 and "it is a link that cannot be followed" in blocked.stderr and str(store.linked("created")) in blocked.stderr
    assert store.snapshot() == before
    server.cli("rm", "created", check=True)
    # No name needs the license of the removed model; all else is of the list.
    assert "1 file removed" in server.cli("prune", check=True).stdout
    assert server.cli("verify", check=True).stderr.splitlines()[-1] == "success"


def test_ollama_0_17_reads_models_that_puna_wrote(store, home):
    if not GO.exists():
        pytest.skip(f"SKIPPED: {GO.relative_to(REPOSITORY)} is not there; ./test makes it where Go and a network are")
    store.link("list", store.list_of("llamacpp", "ggml")[0])
    create(store, home, "mine")
    for source, copy in (("list", "copied"), ("list@ggml", "one"), ("mine", "127.0.0.1:5000/me/ported")):
        puna("cp", source, copy, env=home, check=True)
    # Ollama 0.17 does not know names without an anchor.
    puna("rm", "list", env=home, check=True)
    names = [f"{PUBLIC}/copied", f"{PUBLIC}/mine", f"{PUBLIC}/one", "127.0.0.1:5000/me/ported"]
    anchors = {f"{name}:latest": read(store.root / "manifests" / name / "latest") for name in names}
    removed = f"{PUBLIC}/copied:latest"
    others = set().union(*(digests(anchor) for name, anchor in anchors.items() if name != removed))
    expected = {
        "models": {name: sha256(CRIA.read_bytes()) for name in anchors},
        "removed": removed,
        "freed": sorted(digests(anchors[removed]) - others),
    }
    env = {**home, "PUNA_STORE": str(store.root), "PUNA_STORE_EXPECTED": json.dumps(expected)}
    done = subprocess.run([GO, "-test.v"], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "--- PASS: TestStoreOfPuna " in done.stdout, done.stdout + done.stderr
    # The link of the removed model leads nowhere now, until its name is removed here, too.
    assert puna("prune", "--dry-run", env=home).returncode == 1
    puna("rm", "copied", env=home, check=True)
    assert "0 files would be removed" in puna("prune", "--dry-run", env=home, check=True).stdout
    listed = [model["name"] for model in json.loads(puna("list", "--json", env=home, check=True).stdout)["models"]]
    assert {"mine:latest", "one:latest", "127.0.0.1:5000/me/ported:latest"} <= set(listed) and "copied:latest" not in listed
