"""Puna's own side: the built program, its measurements, its neighbours."""
import contextlib
import json
import os
import pathlib
import subprocess

from peer import Failed, run

ROOT = pathlib.Path(__file__).resolve().parent.parent


def build(say):
    """The release binary of this tree."""
    say("building puna")
    if subprocess.run(["cargo", "build", "--quiet", "--release", "--package", "puna"], cwd=ROOT).returncode:
        raise Failed("building puna failed")
    return ROOT / "target" / "release" / "puna"


def levels(program):
    return json.loads(run(program, ["debug", "kernels", "--json"], 60))["levels"]


def commit():
    """The commit of this tree, with a + where files differ from it."""
    git = lambda *arguments: subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return (git("rev-parse", "--short", "HEAD") or "unknown") + ("+" if git("status", "--porcelain", "--untracked-files=no", "crates") else "")


def bench(program, file, threads, tests, repetitions, level=None, extra=(), timeout=7200):
    """The JSON of `puna bench`. All tests lie behind the same depth; without a number of threads, Puna chooses."""
    lengths = lambda key, least=0: ",".join(str(n) for n in sorted({getattr(t, key) for t in tests if getattr(t, key)})) or str(least)
    arguments = ["bench", file, *(["-t", threads] if threads else []), "-p", lengths("prompt"), "-n", lengths("generate"), "-d", tests[0].depth if tests else 0, "-b", lengths("sequences", 1), "-r", repetitions, "--json", *extra]
    if level:
        arguments += ["--kernels", level]
    return json.loads(run(program, arguments, timeout))


def samples(told):
    """{(prompt, generate, depth, sequences): result}"""
    return {(r["n_prompt"], r["n_gen"], r["depth"], r["sequences"]): r for r in told["results"]}


@contextlib.contextmanager
def busy(program, threads):
    """A process of ours with threads that spin, for as long as the block runs."""
    process = subprocess.Popen([program, "spin", str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        if not process.stdout.read(1):
            raise Failed("the busy process did not start")
        yield
    finally:
        process.kill()
        process.wait()


def fair_share(threads, busy_threads, cores):
    """What `threads` keep of their speed beside as many busy ones, where `cores` are shared evenly."""
    each = lambda runnable: min(1.0, cores / max(runnable, 1))
    return each(threads + busy_threads) / each(threads)


def cores():
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
