"""Export and import of models as files, also read by the tools of container registries."""
import gzip
import io
import json
import subprocess
import tarfile

import pytest

from conftest import BINARY, REPOSITORY, environment, puna
from test_mirror import TOOLS, call, mirror, tool  # noqa: F401: a fixture

CRIA = REPOSITORY / "models/cria/cria-q8_0.gguf"
# Asked without chance.
QUESTION = ("What is the capital of France?", "--parameter", "temperature=0")


def home(path, **env):
    path.mkdir()
    # Its commands do without a server.
    return environment(path, OLLAMA_HOST="127.0.0.1:0", **env)


@pytest.fixture
def here(tmp_path):
    """A home with two models of the same weights."""
    env = home(tmp_path / "here")
    for name, system in (("one", "You are one."), ("me/two:q8", "You are two.")):
        puna("create", name, "-f", "-", env=env, input=f"FROM {CRIA}\nSYSTEM {system}\n", check=True)
    return env


def names(env):
    return {line.split()[0] for line in puna("list", env=env, check=True).stdout.splitlines()[1:]}


def layout(path):
    """The files of a bundle."""
    with tarfile.open(path) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


def test_a_bundle_transfers_models_to_another_machine(here, tmp_path):
    there, bundle = home(tmp_path / "there"), tmp_path / "models.tar"
    puna("export", "one", "me/two:q8", str(bundle), env=here, check=True)
    assert bundle.stat().st_size < 1.1 * CRIA.stat().st_size
    assert not list(tmp_path.glob("*partial"))
    imported = puna("import", str(bundle), env=there, check=True).stdout
    assert [line.split()[1] for line in imported.splitlines()] == ["one:latest", "me/two:q8"]
    assert names(there) == {"one:latest", "me/two:q8", "cria:latest"}
    assert "You are two." in puna("show", "--modelfile", "me/two:q8", env=there, check=True).stdout
    assert "Paris" in puna("run", "one", *QUESTION, env=there, check=True).stdout
    puna("verify", env=there, check=True)


def test_a_bundle_can_be_piped(here, tmp_path):
    there = home(tmp_path / "there")
    out = subprocess.Popen([BINARY, "export", "one", "-"], env=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    taken = subprocess.run([BINARY, "import", "-", "--name", "carried"], env=there, stdin=out.stdout, capture_output=True, text=True)
    assert (taken.returncode, out.wait(60)) == (0, 0), taken.stderr + out.stderr.read().decode()
    assert "carried:latest" in names(there)


def test_invalid_bundles_and_exports_are_refused_and_leave_nothing(here, tmp_path):
    there, bundle = home(tmp_path / "there"), tmp_path / "models.tar"
    puna("export", "one", str(bundle), env=here, check=True)
    whole = bundle.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    for content, said in [
        (whole[: len(whole) // 2], "it is truncated"),
        (bytes(damaged), "is damaged: copy the file again"),
        (b"no archive", "it is not a tar archive"),
        (b"", "it lacks oci-layout and index.json"),
        (gzip.compress(whole)[:-1000], "models.tar: cannot read the bundle"),
    ]:
        bundle.write_bytes(content)
        refused = puna("import", str(bundle), env=there)
        assert refused.returncode == 1 and said in refused.stderr, refused.stderr
        store = tmp_path / "there/.ollama/models"
        assert not [path for path in store.rglob("*") if path.is_file() and path.name != "lock"]
    for flags, status, said in [
        (("export", "one", "me/two:q8", "x.gguf"), 2, "a GGUF file has one model"),
        (("export", "one", "x.gguf", "--format", "docker"), 2, "--format"),
        (("export", "one", "x.zip"), 2, "must end with .tar"),
        (("export", "absent", str(tmp_path / "x.tar")), 1, "absent"),
        (("export", "cria", str(tmp_path / "x.tar")), 1, "built into this program"),
        (("import", str(CRIA)), 1, "is not a bundle"),
        (("import", str(tmp_path)), 1, "is a folder"),
        (("import", str(tmp_path / "nothing.tar")), 1, "no such file"),
    ]:
        refused = puna(*flags, env=here)
        assert (refused.returncode, said in refused.stderr) == (status, True), refused.stderr
    assert not list(tmp_path.glob("x.tar*"))


def test_weights_are_exported_as_a_gguf_file(here, tmp_path):
    file = tmp_path / "one.gguf"
    puna("export", "one", str(file), env=here, check=True)
    assert file.read_bytes() == CRIA.read_bytes()
    puna("export", "cria", str(tmp_path / "cria.gguf"), env=here, check=True)
    assert "Paris" in puna("run", str(tmp_path / "cria.gguf"), *QUESTION, env=here, check=True).stdout


def test_damaged_weights_are_not_written(here, tmp_path):
    file = tmp_path / "one.gguf"
    (blob,) = [p for p in (tmp_path / "here").glob(".ollama/models/blobs/*") if p.read_bytes() == CRIA.read_bytes()]
    damaged = bytearray(CRIA.read_bytes())
    damaged[-1] ^= 1
    # A file of its own: it may be the same as the model's, by another name.
    blob.unlink()
    blob.write_bytes(damaged)
    refused = puna("export", "one", str(file), env=here)
    assert refused.returncode == 1 and "digest mismatch" in refused.stderr and blob.name in refused.stderr, refused.stderr
    assert not list(tmp_path.glob("one.gguf*"))


def test_weights_are_exported_together_with_their_draft(here, tmp_path):
    small = tmp_path / "small.gguf"
    small.write_bytes(CRIA.read_bytes())
    puna("create", "three", "-f", "-", env=here, input=f"FROM {CRIA}\nDRAFT {small}\n", check=True)
    file, draft = tmp_path / "three.gguf", tmp_path / "three.draft.gguf"
    draft.mkdir()
    refused = puna("export", "three", str(file), env=here)
    assert refused.returncode == 1 and "three.draft.gguf: it is not a regular file" in refused.stderr, refused.stderr
    assert not list(tmp_path.glob("three.gguf*"))
    draft.rmdir()
    assert puna("export", "three", str(file), env=here, check=True).stdout.splitlines() == [str(file), str(draft)]
    assert file.read_bytes() == draft.read_bytes() == CRIA.read_bytes()


@pytest.mark.parametrize("packaging", ["ollama", "docker", "modelpack"])
def test_registry_tools_read_a_bundle(here, tmp_path, mirror, packaging):
    oras, it, bundle = tool(str(TOOLS / "oras")), mirror(), tmp_path / "models.tar"
    puna("export", "me/two:q8", str(bundle), "--format", packaging, env=here, check=True)
    files = layout(bundle)
    (listed,) = json.loads(files["index.json"])["manifests"]
    assert listed["annotations"]["org.opencontainers.image.ref.name"] == "me/two:q8"
    source = f"{bundle}@{listed['digest']}"
    call(oras, "cp", "--from-oci-layout", "--to-plain-http", source, f"{it.host}/team/two:q8")
    there = home(tmp_path / "there")
    puna("pull", "--insecure", f"{it.host}/team/two:q8", env=there, check=True)
    assert "Paris" in puna("run", f"{it.host}/team/two:q8", *QUESTION, env=there, check=True).stdout


def test_bundles_of_other_tools_are_read(here, tmp_path, mirror):
    oras, it = tool(str(TOOLS / "oras")), mirror()
    puna("cp", "one", f"{it.host}/me/one", env=here, check=True)
    puna("push", "--insecure", f"{it.host}/me/one", env=here, check=True)
    folder = tmp_path / "layout"
    call(oras, "cp", "--from-plain-http", "--to-oci-layout", f"{it.host}/me/one:latest", f"{folder}:latest")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path in sorted(folder.rglob("*")):
            archive.add(path, arcname=f"./{path.relative_to(folder)}", recursive=False)
    bundle = tmp_path / "one.tar.gz"
    bundle.write_bytes(packed.getvalue())
    there = home(tmp_path / "there")
    unnamed = puna("import", str(bundle), env=there)
    assert unnamed.returncode == 1 and "--name" in unnamed.stderr
    puna("import", str(bundle), "--name", "one", env=there, check=True)
    assert "Paris" in puna("run", "one", *QUESTION, env=there, check=True).stdout
