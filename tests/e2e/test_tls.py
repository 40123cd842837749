"""TLS as in docs/guide/serve.md: a private authority, common clients, and certificate renewal while the server runs."""
import pathlib
import re
import shutil
import signal
import ssl
import subprocess
import urllib.request

import openai
import pytest

from conftest import REPOSITORY, Puna, environment, free_port, puna, wait_for

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="SKIPPED: no openssl")


class Secure(Puna):
    """A server with TLS."""

    def get(self, path):
        with urllib.request.urlopen(f"{self.url}{path}", context=trusting(self.home)) as answer:
            return answer.status, answer.read()

    @property
    def url(self):
        return f"https://localhost:{self.port}"


def trusting(folder):
    """As strict as Python is from 3.13 on."""
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def documented():
    """The commands of the manual."""
    text = (REPOSITORY / "docs/guide/serve.md").read_text()
    [block] = re.findall(r"```sh\n(openssl req .*?)```", text, re.S)
    return block


def certify(folder):
    subprocess.run(["sh", "-e", "-c", documented()], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    home = tmp_path_factory.mktemp("tls")
    certify(home)
    server = Secure(home, PUNA_TLS_CERTIFICATE=home / "puna.pem", PUNA_TLS_KEY=home / "puna.key")
    # Clients find it by a name that the certificate has.
    server.env |= {"OLLAMA_HOST": server.url, "SSL_CERT_FILE": str(home / "ca.pem")}
    yield server
    server.kill()


def test_commands_and_clients_use_tls(secure):
    assert "cria" in secure.cli("list", check=True).stdout
    assert secure.cli("run", "cria", "What is the capital of France?", check=True).stdout.strip().endswith("Paris.")
    client = openai.OpenAI(base_url=f"{secure.url}/v1", api_key="x", http_client=openai.DefaultHttpxClient(verify=trusting(secure.home)))
    stream = client.chat.completions.create(model="cria", temperature=0, messages=[{"role": "user", "content": "What is the capital of France?"}], stream=True)
    assert "Paris" in "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert f"https://127.0.0.1:{secure.port}" in secure.log.read_text()


def test_commands_report_the_cause_of_a_connection_error(secure):
    def error(**env):
        done = puna("list", env={k: v for k, v in (secure.env | env).items() if v})
        assert done.returncode == 1, done
        assert not any(name in done.stderr for name in ("UnknownIssuer", "InvalidContentType", "DnsName(", "NotValidForName")), done
        return done.stderr

    assert "set SSL_CERT_FILE to its certificate" in error(SSL_CERT_FILE="")
    assert "cannot read SSL_CERT_FILE /none: " in error(SSL_CERT_FILE="/none")
    assert "use a host name that the certificate contains" in error(OLLAMA_HOST=f"https://[::ffff:127.0.0.1]:{secure.port}")
    assert "put https:// in front of the address" in error(OLLAMA_HOST=f"http://localhost:{secure.port}")


def test_sighup_loads_a_new_certificate_and_ends_no_connection(secure):
    before = ssl.get_server_certificate(("localhost", secure.port))
    pid = secure.process.pid
    certify(secure.home)
    secure.process.send_signal(signal.SIGHUP)
    # Nobody connects meanwhile, for which it would look at its files too.
    assert wait_for(lambda: "reloaded the certificate" in secure.log.read_text())
    after = ssl.get_server_certificate(("localhost", secure.port))
    assert before != after and after.split() == (secure.home / "puna.pem").read_text().split()
    # It trusts the new authority now.
    assert "cria" in secure.cli("list", check=True).stdout
    (secure.home / "puna.key").write_text("broken")
    secure.process.send_signal(signal.SIGHUP)
    assert wait_for(lambda: "certificate unchanged" in secure.log.read_text())
    assert "cria" in secure.cli("list", check=True).stdout
    assert secure.process.poll() is None and secure.process.pid == pid


def test_a_server_with_an_invalid_tls_configuration_does_not_start(tmp_path):
    def error(**env):
        done = puna("serve", env=environment(tmp_path, **env), timeout=20)
        assert done.returncode == 1, done
        return done.stderr

    address = f"127.0.0.1:{free_port()}"
    absent = pathlib.Path(tmp_path / "absent.pem")
    both = {"PUNA_TLS_CERTIFICATE": absent, "PUNA_TLS_KEY": absent}
    assert f"cannot read tls.certificate {absent}" in error(OLLAMA_HOST=address, **both)
    assert "tls.key" in error(OLLAMA_HOST=address, PUNA_TLS_CERTIFICATE=absent)
    assert "no certificate is set: set tls.certificate and tls.key" in error(OLLAMA_HOST=f"https://{address}")
    assert "use https://, or leave out the scheme" in error(OLLAMA_HOST=f"http://{address}", **both)


def test_a_configured_authority_is_trusted_for_its_host_only(tmp_path):
    certify(tmp_path)
    server = Secure(tmp_path, PUNA_TLS_CERTIFICATE=tmp_path / "puna.pem", PUNA_TLS_KEY=tmp_path / "puna.key", PUNA_MIRROR_SERVE="on")
    try:
        trusted = server.env | {"OLLAMA_HOST": server.url, "SSL_CERT_FILE": str(tmp_path / "ca.pem")}
        puna("cp", "cria", "mine", env=trusted, check=True)
        settings = tmp_path / "puna.toml"
        client = environment(tmp_path / "client", PUNA_CONFIG=settings)
        name = f"localhost:{server.port}/library/mine"
        for host, is_trusted in ((f"localhost:{server.port}", True), ("other.intra", False)):
            settings.write_text(f'[registry.hosts."{host}"]\nca = "{tmp_path / "ca.pem"}"\n')
            done = puna("pull", name, env=client)
            assert (done.returncode == 0) == is_trusted, done
            assert is_trusted or "certificate" in done.stderr, done
    finally:
        server.kill()


def test_a_self_signed_certificate_is_trusted_where_configured(tmp_path):
    def make(name):
        made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
        subprocess.run([*made, "-keyout", tmp_path / f"{name}.key", "-out", tmp_path / f"{name}.pem"], check=True, capture_output=True)
        return tmp_path / f"{name}.pem"

    ours, other = make("ours"), make("other")
    # Clients of Python's kind take it as it is.
    (tmp_path / "ca.pem").write_bytes(ours.read_bytes())
    server = Secure(tmp_path, PUNA_TLS_CERTIFICATE=ours, PUNA_TLS_KEY=tmp_path / "ours.key", PUNA_MIRROR_SERVE="on")
    try:
        asking = server.env | {"OLLAMA_HOST": server.url}
        puna("cp", "cria", "mine", env=asking | {"SSL_CERT_FILE": str(ours)}, check=True)
        refused = puna("list", env=asking | {"SSL_CERT_FILE": str(other)})
        assert refused.returncode == 1 and "set SSL_CERT_FILE to a file with this certificate" in refused.stderr, refused
        elsewhere = puna("list", env=asking | {"SSL_CERT_FILE": str(ours), "OLLAMA_HOST": f"https://127.0.0.1:{server.port}"})
        assert elsewhere.returncode == 1 and "use a host name that the certificate contains" in elsewhere.stderr, elsewhere
        settings, host = tmp_path / "puna.toml", f"localhost:{server.port}"
        client = environment(tmp_path / "client", PUNA_CONFIG=settings)
        for file, is_trusted in ((other, False), (ours, True)):
            settings.write_text(f'[registry.hosts."{host}"]\nca = "{file}"\n')
            done = puna("pull", f"{host}/library/mine", env=client)
            assert (done.returncode == 0) == is_trusted, done
            assert is_trusted or "to this certificate" in done.stderr, done
    finally:
        server.kill()
