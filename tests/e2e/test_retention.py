"""Retention rules and fetch limits of a mirror."""
import concurrent.futures
import contextlib
import json
import os
import re
import socket

from conftest import wait_for
from test_mirror import digest, figures, image, mirror, storage  # noqa: F401 (fixtures)
from test_pull_through import through, upstream  # noqa: F401 (a fixture)

DAY = 24 * 60 * 60
MODEL, CONFIG = "application/vnd.ollama.image.model", "application/vnd.docker.container.image.v1+json"
# Behind a proxy nobody is taken for this machine itself.
STRANGER = {"X-Forwarded-For": "10.0.0.9"}


def models(it):
    return it.home / ".ollama/models"


def age(it, days):
    """Lets days pass for a mirror that is stopped: by its notes and the times of its files."""
    notes = list(models(it).glob("puna-registry/history/*.json"))
    assert notes
    for path in notes:
        records = json.loads(path.read_text())
        for record in records.values():
            record.update({key: record[key] - days * DAY for key in ("arrived", "pulled") if key in record})
        path.write_text(json.dumps(records))
    for path in [*models(it).glob("manifests/**/*"), *models(it).glob("puna-registry/repositories/**/*")]:
        if path.is_file():
            time = path.stat().st_mtime - days * DAY
            os.utime(path, (time, time))


def retain(it, *args):
    """The document that the command prints, and what it names."""
    found = json.loads(it.cli("mirror", "retain", "--json", *args, check=True).stdout)
    names = [f"{one['repository']}:{one['tag']}" for one in found["removed"]]
    return found, names


def status(it, name, tag="latest", **kw):
    return it.send("GET", f"/v2/{name}/manifests/{tag}", **kw)[0]


def fetched(it, name):
    """Pulls a model through the mirror until that has all of it."""
    assert status(it, name) == 200
    assert wait_for(lambda: name.removeprefix("library/") in it.cli("list", check=True).stdout), it.log.read_text()


def test_unused_models_are_removed_and_the_others_can_be_pulled(mirror, upstream):
    data = {name: os.urandom(200_000) for name in ("old", "used")}
    for name, weights in data.items():
        upstream.put(f"library/{name}:latest", [(MODEL, weights), (CONFIG, b"{}")])
    it = through(mirror, upstream, PUNA_MIRROR_RETENTION="library=pulled:30d,team-*=last:1 keep:stable,anna=all")
    fetched(it, "library/old")
    fetched(it, "library/used")
    it.model("library/own/latest", [(MODEL, b"the user's own"), (CONFIG, b"{}")])
    builds = {tag: os.urandom(9000) for tag in ("v1", "stable", "v2", "v3")}
    for tag, layer in builds.items():
        assert image(it, "team-a/thing", [layer], tag) == 201 == image(it, "others/of/thing", [layer + b"!"], tag)
    assert it.stop() == 0
    age(it, 20)
    it.start()
    assert status(it, "library/used") == 200 == status(it, "team-a/thing", "v3")
    assert it.stop() == 0
    age(it, 20)

    found, names = retain(it, "--dry-run")
    assert names == ["library/old:latest", "team-a/thing:v1", "team-a/thing:v2"] and found["dry_run"] and found["own"] == 1, found
    freed = {name: one["bytes"] for name, one in zip(names, found["removed"])}
    assert freed == {"library/old:latest": 200_000, "team-a/thing:v1": 9000, "team-a/thing:v2": 9000}
    assert found["bytes"] == sum(freed.values())
    assert found["removed"][0]["reason"] == "not pulled for 40 days" and found["removed"][1]["reason"] == "not among the newest 1"
    text = it.cli("mirror", "retain", "--dry-run", check=True).stdout
    assert "3 manifests would be removed, 218 KB" in text and "kept 1 local model that no mirror fetched or received" in text and "team-a/thing:v1" in text, text
    blob = models(it) / "blobs" / digest(data["old"]).replace(":", "-")
    assert blob.exists(), "a dry run removes nothing"

    assert retain(it)[1] == names
    assert not blob.exists()
    assert retain(it)[1] == []
    upstream.manifests.clear()
    it.start()
    for name, tag, expected in [("library/old", "latest", 404), ("library/used", "latest", 200), ("library/own", "latest", 200)]:
        assert status(it, name, tag) == expected, name
    assert it.get(f"/v2/library/used/blobs/{digest(data['used'])}") == (200, data["used"])
    for tag, layer in builds.items():
        stays = tag in ("stable", "v3")
        assert status(it, "team-a/thing", tag) == (200 if stays else 404) and status(it, "others/of/thing", tag) == 200, tag
        assert not stays or it.get(f"/v2/team-a/thing/blobs/{digest(layer)}") == (200, layer)
    assert json.loads(it.get("/v2/team-a/thing/tags/list")[1])["tags"] == ["stable", "v3"]
    assert re.search(r"library/used:latest<td>200\.0 kB<td><code>\w+</code><td>just now", it.get("/mirror")[1].decode())


def test_user_models_are_removed_only_by_rules_with_own(mirror):
    it = mirror()
    it.model("library/own/latest", [(MODEL, b"the user's own"), (CONFIG, b"{}")])
    rule = "mirror.retention=*=pulled:30d"
    # It is seen for the first time, and so came now.
    found, names = retain(it, "--set", f"{rule} own")
    assert (names, found["own"]) == ([], 0)
    it.stop()
    age(it, 40)
    found, names = retain(it, "--set", rule)
    assert (names, found["own"]) == ([], 1)
    assert retain(it, "--dry-run", "--set", f"{rule} own")[1] == ["library/own:latest"]
    assert retain(it, "--set", f"{rule} own")[1] == ["library/own:latest"]
    assert "own" not in it.cli("list", check=True).stdout


def test_without_a_rule_nothing_is_removed(mirror):
    it = mirror()
    refused = it.cli("mirror", "retain")
    assert refused.returncode == 1 and "mirror.retention" in refused.stderr
    wrong = it.cli("mirror", "retain", "--set", "mirror.retention=team=keep:latest")
    assert wrong.returncode == 2 and "write rules such as team-*=last:5" in wrong.stderr


def test_a_running_pull_survives_the_removal_of_its_model(mirror):
    it, data = mirror(PUNA_MIRROR_RETENTION="team=last:1"), os.urandom(48 << 20)
    for tag, layer in (("v1", data), ("v2", b"new")):
        assert image(it, "team/thing", [layer], tag) == 201
    it.stop()
    age(it, 2)
    # The blob's own day is over, too, and that of who brought it.
    for pattern in ("*/*", "brought/*/*"):
        for path in models(it).glob(f"puna-registry/{pattern}"):
            os.utime(path, (1, 1))
    it.start()
    with contextlib.closing(socket.create_connection(("127.0.0.1", it.port), timeout=30)) as s:
        s.sendall(f"GET /v2/team/thing/blobs/{digest(data)} HTTP/1.1\r\nHost: {it.host}\r\nConnection: close\r\n\r\n".encode())
        head = s.recv(1000)
        assert head.startswith(b"HTTP/1.1 200")
        assert retain(it)[1] == ["team/thing:v1"]
        assert not list(models(it).glob(f"puna-registry/blobs/{digest(data).replace(':', '-')}"))
        while piece := s.recv(1 << 20):
            head += piece
    assert head.partition(b"\r\n\r\n")[2] == data
    assert status(it, "team/thing", "v1") == 404 and status(it, "team/thing", "v2") == 200


def pushed_meanwhile(it, remover, tags):
    """Pushes all tags again while another process removes them, and looks what of them is there then."""
    rule = ("--set", "mirror.retention=team=pulled:30d")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        removed = pool.submit(retain, remover, *rule)
        for tag in tags:
            assert image(it, "team/thing", [b"weights of " + tag.encode()], tag) == 201
        gone = removed.result()[1]
    return gone, [tag for tag in tags if status(it, "team/thing", tag) == 200]


def test_models_pushed_while_another_process_removes_stay(mirror):
    it, tags = mirror(), [f"v{n}" for n in range(60)]
    for tag in tags:
        assert image(it, "team/thing", [b"weights of " + tag.encode()], tag) == 201
    it.stop()
    age(it, 40)
    it.start()
    gone, there = pushed_meanwhile(it, it, tags)
    assert there == tags, gone
    assert retain(it, "--set", "mirror.retention=team=pulled:30d")[1] == []


def test_mirrors_of_one_bucket_share_their_usage_records(mirror, storage):
    one, other = mirror(**storage.env()), mirror(**storage.env())
    assert image(one, "team/thing", [b"weights"]) == 201
    assert status(one, "team/thing", "v1") == 200
    assert one.stop() == 0
    rule = ("--set", "mirror.retention=team=last:1 pulled:1d")
    assert retain(other, *rule)[1] == [] == retain(one, "--dry-run", *rule)[1]
    # Whoever comes later knows of it, too.
    third = mirror(**storage.env())
    assert re.search(r"team/thing:v1<td>[^<]+<td><code>\w+</code><td>just now", third.get("/mirror")[1].decode())
    assert not [p for p in third.home.glob(".ollama/models/**/*") if p.is_file()]


def test_only_allowed_names_are_fetched(mirror, upstream):
    for name in ("library/llama3", "library/other", "user/x"):
        upstream.put(f"{name}:latest", [(MODEL, name.encode()), (CONFIG, b"{}")])
    it = through(mirror, upstream, PUNA_MIRROR_FETCH="library/llama*,user")
    assert status(it, "library/llama3") == 200 == status(it, "user/x")
    code, body = it.send("GET", "/v2/library/other/manifests/latest")
    error = json.loads(body)["errors"][0]
    assert code == 403 and error["code"] == "DENIED" and "mirror.fetch" in error["message"], error
    # What the others are made of may still be coming.
    assert digest(b"library/other") not in {blob for blob, *_ in upstream.asked} and "library/other is not stored here" in it.log.read_text()
    # What is here is served.
    it.model("library/other/latest", [(MODEL, b"own"), (CONFIG, b"{}")])
    assert status(it, "library/other") == 200
    assert figures(it)["puna_mirror_fetches_refused_total"] == 1


def test_anonymous_clients_cannot_fetch_large_models(mirror, upstream):
    for name, size in (("small", 900), ("large", 90_000)):
        upstream.put(f"library/{name}:latest", [(MODEL, os.urandom(size)), (CONFIG, b"{}")])
    it = through(mirror, upstream, PUNA_MIRROR_FETCH_LIMIT="1KB", PUNA_MIRROR_ANONYMOUS=1)
    assert status(it, "library/small", headers=STRANGER) == 200
    for _ in range(2):
        code, body = it.send("GET", "/v2/library/large/manifests/latest", headers=STRANGER)
        error = json.loads(body)["errors"][0]
        assert code == 403 and error["code"] == "DENIED" and "mirror.fetch_limit" in error["message"], error
    key = it.cli("key", "add", "anna", "--scope", "inference", check=True).stdout.strip()
    assert wait_for(lambda: status(it, "library/large", headers={**STRANGER, "x-api-key": key}) == 200)
    # Now it is here, for everybody.
    assert wait_for(lambda: status(it, "library/large", headers=STRANGER) == 200)
    # It moves to something larger there: strangers get what is here.
    upstream.put("library/small:latest", [(MODEL, os.urandom(5000)), (CONFIG, b"{}")])
    assert wait_for((models(it) / "manifests/registry.ollama.ai/library/small/latest").exists)
    before = it.send("GET", "/v2/library/small/manifests/latest", headers=STRANGER)
    it.stop()
    it.env["PUNA_MIRROR_FRESH"] = "1ns"
    it.start()
    assert it.send("GET", "/v2/library/small/manifests/latest", headers=STRANGER) == before
    assert it.send("GET", "/v2/library/small/manifests/latest", headers={"x-api-key": key}) == (200, upstream.manifests["library/small:latest"])


def test_concurrent_fetches_are_limited(mirror, upstream):
    for name in ("one", "two"):
        upstream.put(f"library/{name}:latest", [(MODEL, os.urandom(2 << 20)), (CONFIG, b"{}")])
    upstream.pace = 0.05
    it = through(mirror, upstream, PUNA_MIRROR_FETCH_PARALLEL="1")
    assert status(it, "library/one") == 200 == status(it, "library/one"), "who waits for the same one is let in"
    code, headers, body = it.ask("GET", "/v2/library/two/manifests/latest")
    assert (code, json.loads(body)["errors"][0]["code"]) == (429, "TOOMANYREQUESTS") and int(headers["Retry-After"]) > 0
    assert "mirror.fetch_parallel" in it.log.read_text()
    upstream.pace = 0
    assert wait_for(lambda: status(it, "library/two") == 200)
