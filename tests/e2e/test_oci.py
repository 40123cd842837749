"""Pull and push with Debian's `docker-registry`: open, with passwords and with tokens."""
import base64
import contextlib
import http.server
import json
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request

import pytest

from conftest import free_port, over_http, puna, wait_for

pytestmark = pytest.mark.skipif(not shutil.which("docker-registry"), reason="docker-registry is not installed (apt install docker-registry)")

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
USER, PASSWORD = "me", "open sesame"
# bcrypt of the password
HTPASSWD = "me:$2y$05$abcdefghijklmnopqrstuupx2xBUC4954936wVIjyyPHmUBFu0wCW\n"


@contextlib.contextmanager
def registry(folder, auth=""):
    """The registry on a port of its own; `auth` is that part of its configuration."""
    port = free_port()
    config = folder / "registry.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: warn}}\nstorage: {{filesystem: {{rootdirectory: {folder / 'registry'}}}, delete: {{enabled: true}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\n{auth}"
    )
    log = (folder / "registry.log").open("wb")
    process = subprocess.Popen(["docker-registry", "serve", config], stdout=log, stderr=log)
    try:
        wait_for(lambda: answers(port))
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def answers(port):
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=1)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def settings(folder, text):
    path = folder / "puna.toml"
    path.write_text(text)
    return {"PUNA_CONFIG": str(path)}


def there_and_back(env, host, *flags):
    """The model inside the program, pushed and pulled again: the same."""
    name = f"{host}/me/cria"
    puna("cp", "cria", name, env=env, check=True)
    puna("push", *flags, name, env=env, check=True)
    before = listed(env)[f"{name}:latest"]
    puna("rm", name, env=env, check=True)
    puna("pull", *flags, name, env=env, check=True)
    assert listed(env)[f"{name}:latest"] == before
    return name


def listed(env):
    lines = puna("list", env=env, check=True).stdout.splitlines()[1:]
    return {line.split()[0]: line.split()[1] for line in lines}


def test_a_model_is_pushed_pulled_and_run(home, tmp_path):
    with registry(tmp_path) as host:
        name = there_and_back(home, host, "--insecure")
        answer = puna("run", "--insecure", name, "What is the capital of France?", env=home, check=True)
        assert "Paris" in answer.stdout
        tags = json.load(urllib.request.urlopen(f"http://{host}/v2/me/cria/tags/list"))
        assert tags == {"name": "me/cria", "tags": ["latest"]}
        missing = puna("pull", "--insecure", f"{host}/me/absent", env=home)
        assert missing.returncode == 1 and "pull model manifest: file does not exist" in missing.stderr


def test_an_index_resolves_to_its_model(home, tmp_path):
    with registry(tmp_path) as host:
        name = f"{host}/me/cria"
        puna("cp", "cria", name, env=home, check=True)
        puna("push", "--insecure", name, env=home, check=True)
        manifest = urllib.request.urlopen(urllib.request.Request(f"http://{host}/v2/me/cria/manifests/latest", headers={"Accept": MANIFEST}))
        body, kind = manifest.read(), manifest.headers["Content-Type"]
        entry = {"mediaType": kind, "digest": manifest.headers["Docker-Content-Digest"], "size": len(body), "platform": {"os": "linux", "architecture": "riscv"}}
        index = {"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.list.v2+json", "manifests": [entry]}
        put = urllib.request.Request(f"http://{host}/v2/me/cria/manifests/several", data=json.dumps(index).encode(), method="PUT", headers={"Content-Type": index["mediaType"]})
        assert urllib.request.urlopen(put).status == 201
        puna("pull", "--insecure", f"{name}:several", env=home, check=True)
        assert listed(home)[f"{name}:several"] == listed(home)[f"{name}:latest"]


def test_passwords_are_read_from_the_configuration_or_from_docker(home, tmp_path):
    (tmp_path / "htpasswd").write_text(HTPASSWD)
    with registry(tmp_path, f"auth: {{htpasswd: {{realm: office, path: {tmp_path / 'htpasswd'}}}}}\n") as host:
        withheld = puna("pull", "--insecure", f"{host}/me/cria", env=home)
        assert withheld.returncode == 1 and f"registry {host} requires authentication, but credentials are sent over HTTPS only" in withheld.stderr
        refused = puna("pull", f"{host}/me/cria", env=home | over_http(tmp_path, host))
        assert refused.returncode == 1 and f"registry {host} requires a user name and a password" in refused.stderr
        (tmp_path / "password").write_text(PASSWORD + "\n")
        table = f'[registry.hosts."{host}"]\nhttp = true\nusername = "{USER}"\n'
        env = home | settings(tmp_path, table + f'password_file = "{tmp_path / "password"}"\n')
        there_and_back(env, host)

        (tmp_path / "password").write_text("guessed wrong")
        wrong = puna("pull", f"{host}/me/cria", env=env | {"OLLAMA_DEBUG": "2"})
        assert wrong.returncode == 1 and "unauthorized" in wrong.stderr
        assert "guessed wrong" not in wrong.stderr + wrong.stdout

        docker = tmp_path / "docker"
        docker.mkdir()
        auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        (docker / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))
        there = home | over_http(tmp_path, host) | {"DOCKER_CONFIG": str(docker), "OLLAMA_DEBUG": "2"}
        pulled = puna("pull", "--insecure", f"{host}/me/cria", env=there, check=True)
        assert PASSWORD not in pulled.stderr and auth not in pulled.stderr


def test_credential_helpers_are_used_and_their_secrets_are_never_shown(home, tmp_path):
    (tmp_path / "htpasswd").write_text(HTPASSWD)
    with registry(tmp_path, f"auth: {{htpasswd: {{realm: office, path: {tmp_path / 'htpasswd'}}}}}\n") as host:
        programs, docker = tmp_path / "bin", tmp_path / "docker"
        programs.mkdir(), docker.mkdir()
        kept = json.dumps({"ServerURL": host, "Username": USER, "Secret": PASSWORD})
        for name, asked in (("office", host), ("all", f"https://{host}/v1/")):
            helper = programs / f"docker-credential-{name}"
            helper.write_text(f"#!/bin/sh\nread server; [ \"$1 $server\" = 'get {asked}' ] || {{ echo credentials not found; exit 1; }}\necho '{kept}'\n")
            helper.chmod(0o755)
        env = home | over_http(tmp_path, host) | {"DOCKER_CONFIG": str(docker), "OLLAMA_DEBUG": "2", "PATH": f"{programs}:{home['PATH']}"}
        config = docker / "config.json"
        config.write_text(json.dumps({"credHelpers": {host: "office"}, "credsStore": "none"}))
        there_and_back(env, host, "--insecure")
        config.write_text(json.dumps({"auths": {f"https://{host}/v1/": {}}, "credsStore": "all"}))
        pulled = puna("pull", "--insecure", f"{host}/me/cria", env=env, check=True)
        assert PASSWORD not in pulled.stderr + pulled.stdout
        config.write_text(json.dumps({"credsStore": "office-of-others"}))
        refused = puna("pull", "--insecure", f"{host}/me/cria", env=env)
        assert refused.returncode == 1 and "docker-credential-office-of-others: it is not installed" in refused.stderr


@pytest.mark.parametrize(
    "format, config, weights",
    [
        ("docker", "application/vnd.docker.ai.model.config.v0.1+json", "application/vnd.docker.ai.gguf.v3"),
        ("modelpack", "application/vnd.cncf.model.config.v1+json", "application/vnd.cncf.model.weight.v1.raw"),
    ],
)
def test_other_formats_are_written_and_read(format, config, weights, home, tmp_path):
    with registry(tmp_path) as host:
        name = f"{host}/me/cria"
        puna("cp", "cria", name, env=home, check=True)
        puna("push", "--insecure", "--format", format, name, env=home, check=True)
        kind = "application/vnd.oci.image.manifest.v1+json"
        url = f"http://{host}/v2/me/cria/manifests/latest"
        pushed = urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": kind})).read()
        manifest = json.loads(pushed)
        assert manifest["config"]["mediaType"] == config
        [layer] = [layer for layer in manifest["layers"] if layer["mediaType"] == weights]
        assert layer["annotations"]["org.cncf.model.filepath"].endswith(".gguf")
        puna("rm", name, env=home, check=True)
        puna("pull", "--insecure", name, env=home, check=True)
        answer = puna("run", "--insecure", name, "What is the capital of France?", env=home, check=True)
        assert "Paris" in answer.stdout
        # What came in this way goes out as it came.
        again = f"{host}/me/again"
        puna("cp", name, again, env=home, check=True)
        puna("push", "--insecure", "--format", format, again, env=home, check=True)
        url = f"http://{host}/v2/me/again/manifests/latest"
        assert urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": kind})).read() == pushed


class Tokens(http.server.ThreadingHTTPServer):
    """A token server as the registry's documentation describes it: on another host, for users with passwords."""

    daemon_threads = True

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), TokenHandler)
        self.key, self.certificate, self.asked = folder / "token.key", folder / "token.pem", []
        make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=tokens"]
        subprocess.run([*make, "-keyout", self.key, "-out", self.certificate], check=True, capture_output=True)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def token(self, service, scopes):
        pem = self.certificate.read_text().split("-----")[2]
        header = {"typ": "JWT", "alg": "RS256", "x5c": ["".join(pem.split())]}
        access = [dict(zip(("type", "name", "actions"), (*scope.split(":")[:2], scope.split(":")[2].split(",")))) for scope in scopes]
        now = int(time.time())
        claims = {"iss": "tokens", "sub": USER, "aud": service, "exp": now + 60, "nbf": now - 60, "iat": now, "jti": "1", "access": access}
        signed = ".".join(plain(json.dumps(part).encode()) for part in (header, claims))
        signature = subprocess.run(["openssl", "dgst", "-sha256", "-sign", self.key], input=signed.encode(), check=True, capture_output=True).stdout
        return f"{signed}.{plain(signature)}"


def plain(data):
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class TokenHandler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        self.server.asked.append((query, self.headers.get("Authorization")))
        expected = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        known = self.headers.get("Authorization") == expected
        body = json.dumps({"access_token": self.server.token(query["service"][0], query.get("scope", []))}).encode() if known else b"{}"
        self.send_response(200 if known else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_a_token_server_on_another_host_is_used_with_credentials_only(home, tmp_path):
    tokens = Tokens(tmp_path)
    realm = f"http://127.0.0.1:{tokens.server_port}/token"
    auth = f"auth: {{token: {{realm: '{realm}', service: office, issuer: tokens, rootcertbundle: {tokens.certificate}}}}}\n"
    with registry(tmp_path, auth) as host:
        refused = puna("pull", "--insecure", f"{host}/me/cria", env=home)
        assert refused.returncode == 1 and "does not match original host" in refused.stderr
        assert tokens.asked == [], "neither our key nor anything else goes to a host that only the registry names"
        table = f'[registry.hosts."{host}"]\nhttp = true\nusername = "{USER}"\npassword_env = "OFFICE_PASSWORD"\n'
        # A token server without TLS gets the password only if its own table allows it.
        table += f'[registry.hosts."127.0.0.1:{tokens.server_port}"]\nhttp = true\n'
        env = home | settings(tmp_path, table) | {"OFFICE_PASSWORD": PASSWORD, "OLLAMA_DEBUG": "2"}
        there_and_back(env, host)
        query, _ = tokens.asked[0]
        assert query["service"] == ["office"] and query["account"] == [USER] and "nonce" not in query
        scopes = {scope for query, _ in tokens.asked for scope in query["scope"]}
        assert "repository:me/cria:pull" in scopes and any("push" in scope for scope in scopes)
    tokens.shutdown()


def test_a_pull_tries_mirrors_first_and_keeps_the_model_name(home, tmp_path):
    with registry(tmp_path) as host:
        name = f"{host}/library/small"
        puna("cp", "cria", name, env=home, check=True)
        puna("push", "--insecure", name, env=home, check=True)
        puna("rm", name, env=home, check=True)
        mirrors = f'[registry]\nmirrors = ["http://127.0.0.1:{free_port()}", "http://{host}"]\n'
        env = home | settings(tmp_path, mirrors)
        puna("pull", "small", env=env, check=True)
        assert "small:latest" in listed(home)
        puna("rm", "small", env=home, check=True)
        puna("pull", "--mirror", f"http://{host}", "small", env=home, check=True)
        assert "small:latest" in listed(home)

        missing = puna("pull", "absent", env=env)
        assert missing.returncode == 1 and "mirrors tried first" in missing.stderr and host in missing.stderr
        alone = puna("pull", "--mirror", "off", "absent", env=env)
        assert alone.returncode == 1 and host not in alone.stderr
