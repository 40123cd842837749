"""Measurements from outside a program: embedding servers, and the time to a process's first output."""
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

from peer import Failed

TEXTS, ROUNDS_WARM = 64, 1


def texts(count=TEXTS, shortest=4, longest=180, seed=1):
    """Texts of common words, with lengths spread evenly on a logarithmic scale, in random order."""
    words = "the of and a to in is you that it he was for on are as with his they I at be this have from or one had by word but not what all were we when your can said there use an each which she do how their if will up other about out many then them these so some her would make like him into time has look two more write go see number no way could people my than first water been call who oil its now find long down day did get come made may part".split()
    rng = random.Random(seed)
    lengths = [round(shortest * (longest / shortest) ** (i / max(count - 1, 1))) for i in range(count)]
    rng.shuffle(lengths)
    return [" ".join(rng.choices(words, k=n)) for n in lengths]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def server(command, port, ready, log, env=None, timeout=120):
    """Runs a server during the block. `ready` is a path that returns status 200 when the server can
    work."""
    with open(log, "w") as out:
        process = subprocess.Popen([str(c) for c in command], stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env)
    try:
        end = time.monotonic() + timeout
        while True:
            if process.poll() is not None:
                raise Failed(f"{os.path.basename(str(command[0]))} ended with status {process.returncode}, see {log}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{ready}", timeout=2) as answer:
                    if answer.status == 200:
                        break
            except (urllib.error.URLError, OSError):
                pass
            if time.monotonic() > end:
                raise Failed(f"{os.path.basename(str(command[0]))} did not answer within {timeout} s, see {log}")
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def embed(url, model, inputs, timeout=300):
    """Seconds for one batch."""
    body = json.dumps({"model": model, "input": inputs}).encode()
    request = urllib.request.Request(f"{url}/v1/embeddings", body, {"Content-Type": "application/json"})
    start = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            told = json.load(answer)
    except urllib.error.HTTPError as error:
        raise Failed(f"embeddings: {error.code}: {error.read(300).decode(errors='replace')}") from None
    seconds = time.monotonic() - start
    if len(told["data"]) != len(inputs):
        raise Failed(f"{len(told['data'])} embeddings of {len(inputs)} texts")
    return seconds


def first_output(command, env=None, timeout=300):
    """Seconds from starting a program to its first byte of output."""
    start = time.monotonic()
    process = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env)
    try:
        byte = process.stdout.read(1)
        seconds = time.monotonic() - start
        if not byte:
            raise Failed(f"{os.path.basename(str(command[0]))} printed nothing")
        return seconds
    finally:
        process.send_signal(signal.SIGTERM)
        process.stdout.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
