"""Builds Puna, runs its benchmarks and generates load."""
import contextlib
import json
import os
import pathlib
import platform
import re
import subprocess

from peer import Failed, run

ROOT = pathlib.Path(__file__).resolve().parent.parent


def build(say):
    """Builds the release binary of this tree and returns its path."""
    say("building puna")
    if subprocess.run(["cargo", "build", "--quiet", "--release", "--package", "puna"], cwd=ROOT).returncode:
        raise Failed("building puna failed")
    return ROOT / "target" / "release" / "puna"


def levels(program):
    return json.loads(run(program, ["debug", "kernels", "--json"], 60))["levels"]


def commit():
    """Short commit of this tree, with a + if tracked files differ from it."""
    git = lambda *arguments: subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return (git("rev-parse", "--short", "HEAD") or "unknown") + ("+" if git("status", "--porcelain", "--untracked-files=no", "crates") else "")


def bench(program, file, threads, tests, repetitions, level=None, extra=(), timeout=7200):
    """Output of `puna bench` as JSON. All tests share one depth. With 0 threads, Puna chooses the
    number."""
    lengths = lambda key, least=0: ",".join(str(n) for n in sorted({getattr(t, key) for t in tests if getattr(t, key)})) or str(least)
    arguments = ["bench", file, *(["-t", threads] if threads else []), "-p", lengths("prompt"), "-n", lengths("generate"), "-d", tests[0].depth if tests else 0, "-b", lengths("sequences", 1), "-r", repetitions, "--json", *extra]
    if level:
        arguments += ["--kernels", level]
    return json.loads(run(program, arguments, timeout))


def samples(told):
    """Maps (prompt, generate, depth, sequences) to results."""
    return {(r["n_prompt"], r["n_gen"], r["depth"], r["sequences"]): r for r in told["results"]}


@contextlib.contextmanager
def busy(program, threads):
    """Runs a process with spinning threads during the block."""
    process = subprocess.Popen([program, "spin", str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        if not process.stdout.read(1):
            raise Failed("the busy process did not start")
        yield
    finally:
        process.kill()
        process.wait()


def fair_share(threads, busy_threads, cores):
    """Fraction of their speed that `threads` threads keep next to `busy_threads` others, if the
    scheduler shares `cores` evenly."""
    each = lambda runnable: min(1.0, cores / max(runnable, 1))
    return each(threads + busy_threads) / each(threads)


def cpu_name():
    try:
        for row in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if row.startswith("model name"):
                return row.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def record_folder(cpu=None, processors=None):
    """Folder of the results of a machine, this one by default: `benches/record/amd-epyc-2-cpus`."""
    name = re.sub(r"\((?:R|TM)\)|@.*", "", cpu or cpu_name(), flags=re.IGNORECASE).lower()
    words = re.findall(r"[a-z0-9]+", name)
    return ROOT / "benches" / "record" / f"{'-'.join(words)}-{processors or cores()}-cpus"


def cores():
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
