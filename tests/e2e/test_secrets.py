"""Keys, passwords and tokens do not appear in logs, at any level: pulls, pushes and a mirror."""
import base64
import json
import re
import subprocess

import ollama
import pytest

from conftest import Puna, wait_for
from test_mirror import Mirror
from test_registry import Handler, Registry

PASSWORD, SET, LASTING, STORAGE = "pa55-of-the-office", "set-t0ken-of-the-hub", "lasting-t0ken-of-docker", "signature-of-the-storage"
BASIC = base64.b64encode(f"ci:{PASSWORD}".encode()).decode()


class Guarded(Registry):
    """A registry that wants proof of a kind, and sends those who ask for blobs to an address with a signature."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.RequestHandlerClass = kind, Guard
        self.secrets, self.opened = set(), 0


class Guard(Handler):
    def proven(self):
        """Whether the request may go on; else it is answered."""
        server, shown = self.server, self.headers.get("Authorization", "")
        if self.path.startswith("/token"):
            return self.token(shown)
        if self.path.startswith("/storage/"):
            assert not shown and f"signature={STORAGE}" in self.path, self.path
            self.path = self.path.removeprefix("/storage").partition("?")[0]
            return True
        expected = {"basic": f"Basic {BASIC}", "set": f"Bearer {SET}"}.get(server.kind)
        if shown and (shown == expected or shown.removeprefix("Bearer ") in server.secrets):
            server.opened += 1
            if self.command == "GET" and "/blobs/" in self.path:
                self.answer(307, Location=f"http://localhost:{server.server_port}/storage{self.path}?signature={STORAGE}")
                return False
            return True
        realm = f'Bearer realm="http://{server.host}/token",service="s",scope="repository:me/m:pull"'
        self.body()
        self.answer(401, WWW_Authenticate='Basic realm="office"' if server.kind == "basic" else realm)
        return False

    def token(self, shown):
        if self.server.kind == "key" and re.fullmatch(r"[A-Za-z0-9+/=]{68}:[A-Za-z0-9+/=]{88}", shown):
            self.server.secrets |= set(shown.split(":")[1:])
        elif not (self.server.kind == "lasting" and LASTING.encode() in self.body()):
            self.answer(401, b"{}")
            return False
        token = f"token-{self.server.kind}-{len(self.server.secrets)}"
        self.server.secrets.add(token)
        self.answer(200, json.dumps({"token": token}).encode())
        return False

    def do_GET(self):
        self.proven() and super().do_GET()

    def do_HEAD(self):
        self.proven() and super().do_HEAD()

    def do_POST(self):
        self.proven() and super().do_POST()

    def do_PATCH(self):
        self.proven() and super().do_PATCH()

    def do_PUT(self):
        self.proven() and super().do_PUT()


@pytest.fixture
def guarded():
    servers = []

    def start(kind):
        servers.append(Guarded(kind))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_no_output_shows_a_secret_at_the_highest_log_level(guarded, tmp_path):
    kinds = {kind: guarded(kind) for kind in ("basic", "set", "key", "lasting")}
    home, docker = tmp_path / "home", tmp_path / "docker"
    home.mkdir(), docker.mkdir()
    (docker / "config.json").write_text(json.dumps({"auths": {kinds["lasting"].host: {"auth": "dTo=", "identitytoken": LASTING}}}))
    settings = tmp_path / "puna.toml"
    tables = {kind: f'[registry.hosts."{registry.host}"]\nhttp = true\n' for kind, registry in kinds.items()}
    tables["basic"] += f'username = "ci"\npassword = "{PASSWORD}"\n'
    tables["set"] += f'token = "{SET}"\n'
    settings.write_text("".join(tables.values()))
    env = {
        "PUNA_CONFIG": settings, "DOCKER_CONFIG": docker, "OLLAMA_DEBUG": "2", "RUST_LOG": "trace", "PUNA_API_KEY": "api-key-of-the-user",
        "PUNA_REMOTES": "gpu.intra:8000", "PUNA_REMOTE_KEYS": "gpu.intra:8000=key-of-the-cluster", "HTTPS_PROXY": "http://me:pa55-of-the-proxy@127.0.0.1:9",
    }
    (tmp_path / "mirror").mkdir()
    it, server, texts = Mirror(tmp_path / "mirror", **env, PUNA_MIRROR_UPSTREAMS=kinds["basic"].host), None, []
    try:
        settings.write_text(settings.read_text() + f'[registry.hosts."{it.host}"]\nhttp = true\n')
        server = Puna(home, **env)
        for kind, registry in kinds.items():
            name = f"{registry.host}/me/m"
            server.client().copy("cria", name)
            for work in (server.client().push, server.client().pull):
                texts += [str(line) for line in work(name, insecure=True, stream=True)]
            server.client().delete(name)
            server.client().pull(name, insecure=True)
            assert registry.opened > 4, f"{kind} was not asked for"
            # Refused, with a secret that is not the right one any more.
            registry.kind = "nobody"
            registry.secrets |= {f"old{len(registry.secrets)}"}
            known, registry.secrets = registry.secrets, set()
            with pytest.raises(ollama.ResponseError) as refused:
                server.client().pull(name, insecure=True)
            texts.append(str(refused.value))
            registry.kind, registry.secrets = kind, known
        with pytest.raises(ollama.ResponseError) as away:
            server.client().pull("registry.invalid/me/m")
        texts.append(str(away.value))
        texts += [server.cli("config", check=True).stdout, server.cli("config", "--json", check=True).stdout]

        shown = it.cli("key", "add", "reader", "--scope", "models", check=True).stdout.strip()
        public = home / ".ollama/id_ed25519.pub"
        it.cli("key", "add", "anna", "--scope", "models", "--public-key", public, check=True)
        assert wait_for(lambda: it.get("/v2/")[0] == 401)
        path = f"/v2/{kinds['basic'].host}/me/m"
        for authorization in (f"Bearer {shown}", "Basic " + base64.b64encode(f"x:{shown}".encode()).decode()):
            texts.append(str(it.send("GET", "/v2/me/m/manifests/latest", headers={"Authorization": authorization})))
            texts.append(str(it.send("GET", f"{path}/manifests/latest", headers={"Authorization": authorization})))
        server.client().copy("cria", f"{it.host}/anna/m")
        server.client().push(f"{it.host}/anna/m", insecure=True)
        server.client().pull(f"{it.host}/anna/m", insecure=True)
        status, headers = address(it, shown)
        assert status == 200 and "token=" in headers, headers
        blob_token = re.search(r"token=(\S+)", headers)[1]
    finally:
        server and server.kill()
        it.kill()
    key = (home / ".ollama/id_ed25519").read_text().splitlines()[1:-1]
    secrets = {PASSWORD, SET, LASTING, STORAGE, BASIC, "api-key-of-the-user", "key-of-the-cluster", "pa55-of-the-proxy", shown, blob_token, *key}
    for registry in kinds.values():
        secrets |= registry.secrets
    logs = {"server": server.log.read_text(), "mirror": it.log.read_text(), "said": "\n".join(texts)}
    assert " TRACE " in logs["server"] and " TRACE " in logs["mirror"], "this is not the highest level"
    for place, text in logs.items():
        found = [secret for secret in secrets if secret in text]
        assert not found, f"{place}: {found}: {next(line for line in text.splitlines() if found[0] in line)[:400]}"
    for folder in (home / ".ollama/models", tmp_path / "mirror/.ollama/models"):
        for file in folder.rglob("*"):
            if file.is_file() and file.stat().st_size < 1 << 20:
                assert not [secret for secret in secrets if secret.encode() in file.read_bytes()], file


def address(it, shown):
    """Where the mirror says that a blob is, for those who ask for its parts without a key."""
    curl = ["curl", "-s", "-o", "/dev/null", "-D", "-", "-H", f"Authorization: Bearer {shown}"]
    manifest = json.loads(it.send("GET", "/v2/anna/m/manifests/latest", headers={"Authorization": f"Bearer {shown}"})[1])
    head = subprocess.run([*curl, f"http://{it.host}/v2/anna/m/blobs/{manifest['config']['digest']}"], capture_output=True, text=True).stdout
    return int(head.split()[1]), head
