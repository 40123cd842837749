"""A server of its own and requests to it, shared by benches/load and benches/office."""
import asyncio
import collections
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

CRIA = pathlib.Path(__file__).resolve().parents[1] / "models/cria"


class Failed(Exception):
    """A check failed."""


class Server:
    """A server on a free port with its own home directory."""

    def __init__(self, program, *arguments, **env):
        self.program = program
        self.home = tempfile.mkdtemp(prefix="puna-traffic-")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("OLLAMA_", "PUNA_"))}
        self.env = {**kept, "HOME": self.home, "OLLAMA_HOST": f"127.0.0.1:{self.port}", **{k: str(v) for k, v in env.items()}}
        self.log = pathlib.Path(self.home) / "serve.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([program, *(arguments or ["serve"])], env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.pid = self.process.pid
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            if self.process.poll() is not None:
                raise Failed(f"the server ended:\n{self.log.read_text()}")
            time.sleep(0.05)
        raise Failed("the server does not listen")

    def create(self, name, path):
        made = subprocess.run([self.program, "create", name, "-f", "-"], env=self.env, input=f"FROM {path}\n", text=True, capture_output=True)
        if made.returncode:
            raise Failed(f"create {name}: {made.stderr}")

    def runners(self, zombies=False):
        """Child processes of the server: running ones, or zombies."""
        found = []
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[1]) == self.pid and (fields[0] == "Z") == zombies:
                    found.append(int(stat.parent.name))
        return found

    def stop(self):
        """Ends the server with SIGTERM and returns its exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        finally:
            shutil.rmtree(self.home, ignore_errors=True)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.home, ignore_errors=True)


def rss(pid):
    """Anonymous memory of a process in bytes, without mapped files."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10
    return 0


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def thread_seconds(pid):
    """Id, name and processor time of each thread of a process."""
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            name, _, fields = (task / "stat").read_text().partition("(")[2].rpartition(")")
            fields = fields.split()
            found.append((int(task.name), name, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")))
    return found


def files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class Answer:
    """A response with status and headers, whose body is read line by line."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def begin(self):
        head = await self.reader.readuntil(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        self.status = int(lines[0].split()[1])
        self.headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
        self.body = self.pieces()
        self.rest = b""
        return self

    async def pieces(self):
        if self.headers.get("transfer-encoding") == "chunked":
            while size := int(await self.reader.readline(), 16):
                yield (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readline()
        else:
            yield await self.reader.readexactly(int(self.headers.get("content-length", 0)))

    async def lines(self):
        async for piece in self.body:
            *whole, self.rest = (self.rest + piece).split(b"\n")
            for line in whole:
                if line:
                    yield line
        if self.rest:
            yield self.rest

    async def all(self):
        return [line async for line in self.lines()]


@contextlib.asynccontextmanager
async def ask(server, method, path, body=None, key=None, headers=()):
    """Sends a request on its own connection: JSON, or the bytes of `body`. The connection is closed
    at the end, even if the response was not read."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(data)}", "Connection: close", *headers]
    lines += [f"Authorization: Bearer {key}"] if key else []
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 20)
    try:
        writer.write("\r\n".join([*lines, "\r\n"]).encode() + data)
        await writer.drain()
        yield await Answer(reader, writer).begin()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def get(server, path):
    async with ask(server, "GET", path) as answer:
        return b"\n".join(await answer.all()).decode()


async def metrics(server):
    """Values of the metrics, summed over models."""
    sums = collections.Counter()
    for line in (await get(server, "/metrics")).splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            name, _, labels = name.partition("{")
            sums[name + (":running" if 'by="running"' in labels else "")] += float(value)
    return sums
