"""Fetches llama.cpp (in the source package of its Python binding), builds it once per CPU level,
and runs it."""
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tarfile

PACKAGE = "llama-cpp-python==0.3.36"
TOOLS = ["llama-bench", "llama-batched-bench", "llama-completion", "llama-server", "llama-perplexity"]
COMMON = ["-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=ON", "-DLLAMA_BUILD_UI=OFF"]
AVX2 = ["-DGGML_NATIVE=OFF", *(f"-DGGML_{unit}=ON" for unit in ("AVX", "AVX2", "FMA", "F16C", "BMI2"))]
# Build switch: CPU flag.
AVX512 = {"AVX512": "avx512f", "AVX512_VBMI": "avx512_vbmi", "AVX512_VNNI": "avx512_vnni", "AVX512_BF16": "avx512_bf16"}
AMX = {"AMX_TILE": "amx_tile", "AMX_INT8": "amx_int8", "AMX_BF16": "amx_bf16"}


class Failed(Exception):
    """A program failed or gave an unusable result."""


def cpu_flags(text=None):
    if text is None:
        try:
            text = pathlib.Path("/proc/cpuinfo").read_text()
        except OSError:
            return set()
    for row in text.splitlines():
        if row.startswith("flags"):
            return set(row.split(":", 1)[1].split())
    return set()


def builds(flags, machine=None):
    """Names and switches of all builds that run on this machine, the simplest first."""
    if (machine or platform.machine()) not in ("x86_64", "AMD64") or "avx2" not in flags:
        return {"native": ["-DGGML_NATIVE=ON"]}
    found = {"avx2": AVX2}
    if "avx_vnni" in flags:
        found["avxvnni"] = [*AVX2, "-DGGML_AVX_VNNI=ON"]
    wide = [f"-DGGML_{switch}=ON" for switch, flag in AVX512.items() if flag in flags]
    if "avx512f" in flags:
        found["avx512"] = AVX2 + wide
    if "amx_int8" in flags:
        found["amx"] = AVX2 + wide + [f"-DGGML_{switch}=ON" for switch, flag in AMX.items() if flag in flags]
    return found


def fetch(cache, say):
    """Path of llama.cpp's source, fetched if missing."""
    home = cache / "llama.cpp"
    found = next(iter(home.glob("*/vendor/llama.cpp/CMakeLists.txt")), None)
    if found:
        return found.parent
    say("fetching llama.cpp")
    home.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", PACKAGE.split("==")[0], "--dest", home, PACKAGE]
    archive = next(home.glob("*.tar.gz"), None)
    if not archive:
        done = subprocess.run(command, capture_output=True, text=True)
        archive = next(home.glob("*.tar.gz"), None)
        if not archive:
            raise Failed(f"pip download {PACKAGE}: {(done.stderr.strip() or '?').splitlines()[-1]}")
    with tarfile.open(archive) as tar:
        tar.extractall(home, filter="data") if hasattr(tarfile, "data_filter") else tar.extractall(home)
    archive.unlink()
    return next(home.glob("*/vendor/llama.cpp/CMakeLists.txt")).parent


def build(source, name, switches, tools_dir, say):
    """Path of a build's programs, built if missing."""
    bin_ = source / f"build-{name}" / "bin"
    if all((bin_ / tool).exists() for tool in TOOLS):
        return bin_
    cmake = shutil.which("cmake") or tools_dir / "cmake"
    log = source / f"build-{name}.log"
    say(f"building llama.cpp for {name} (minutes; {log})")
    with open(log, "w") as out:
        for command in ([cmake, "-B", bin_.parent, *COMMON, *switches], [cmake, "--build", bin_.parent, "--config", "Release", "-j", str(os.cpu_count() or 2), "--target", *TOOLS]):
            if subprocess.run(command, cwd=source, stdout=out, stderr=subprocess.STDOUT).returncode:
                raise Failed(f"building llama.cpp for {name} failed, see {log}")
    return bin_


def run(program, arguments, timeout):
    """Runs a program and returns its standard output."""
    try:
        done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise Failed(f"{pathlib.Path(program).name}: no end after {timeout} s") from None
    except OSError as error:
        raise Failed(f"{program}: {error.strerror}") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no reason").splitlines()[-1]
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
        raise Failed(f"{pathlib.Path(program).name}: {how}: {said}")
    return done.stdout


def bench(bin_, file, threads, tests, repetitions, flash=("1",), timeout=7200):
    """llama-bench's samples (tokens per second) by test and flash attention. All tests share one
    depth."""
    lengths = lambda key: ",".join(str(n) for n in sorted({getattr(t, key) for t in tests if getattr(t, key)})) or "0"
    arguments = ["-m", file, "-t", threads, "-p", lengths("prompt"), "-n", lengths("generate"), "-d", tests[0].depth, "-fa", ",".join(flash), "-r", repetitions, "-o", "json"]
    return parse_bench(run(bin_ / "llama-bench", arguments, timeout))


def parse_bench(text):
    """Maps (prompt, generate, depth, flash attention) to samples."""
    # llama-bench may print text before the JSON while it loads the model.
    at = text.find("[")
    if at < 0:
        raise Failed("llama-bench printed no results")
    found = {}
    for result in json.loads(text[at:]):
        key = (result["n_prompt"], result["n_gen"], result["n_depth"], str(int(result.get("flash_attn", 0) in (1, True))))
        found.setdefault(key, []).extend(result.get("samples_ts") or [result["avg_ts"]])
    return found


def batched(bin_, file, threads, tests, timeout=7200):
    """llama-batched-bench's samples by number of sequences."""
    counts = [t.sequences for t in tests]
    depth, generate = tests[0].depth, tests[0].generate
    context = max(counts) * (depth + generate)
    arguments = ["-m", file, "-t", threads, "-c", context, "-b", 2048, "-ub", 512, "-npp", depth, "-ntg", generate, "-npl", ",".join(map(str, counts)), "-fa", "on", "--output-format", "jsonl"]
    return parse_batched(run(bin_ / "llama-batched-bench", arguments, timeout))


def parse_batched(text):
    found = {}
    for row in text.splitlines():
        if row.startswith("{"):
            result = json.loads(row)
            found.setdefault(result["pl"], []).append(result["speed_tg"])
    return found
