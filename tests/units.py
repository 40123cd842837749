#!/usr/bin/env python3
"""Checks the systemd units of packaging/ with systemd-analyze: syntax, exposure, system calls.

Without systemd-analyze it prints SKIPPED.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Highest exposure level of each unit, in tenths, as `systemd-analyze security` computes it.
EXPOSURE = {"puna.service": 20, "puna-mirror.service": 40}
SANDBOX = ["landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self", "seccomp"]


def analyze(*arguments):
    return subprocess.run(
        ["systemd-analyze", "--no-pager", *arguments], capture_output=True, text=True
    )


def call_groups():
    """Returns the groups of system calls of this systemd, as lists of members."""
    groups, group = {}, None
    for line in analyze("syscall-filter").stdout.splitlines():
        if line.startswith("@"):
            group = groups.setdefault(line.split()[0], [])
        elif line.startswith("    ") and group is not None and "#" not in line:
            group.append(line.strip())
        elif line.startswith("#"):
            group = None
    return groups


def expand(names, groups):
    calls = set()
    for name in names:
        calls |= expand(groups.get(name, []), groups) if name.startswith("@") else {name}
    return calls


def allowed_calls(unit, groups):
    """Returns the calls that SystemCallFilter= allows, in the order of its lines."""
    calls = set()
    for line in re.findall(r"^SystemCallFilter=(.*)$", unit, re.M):
        if line.startswith("~"):
            calls -= expand(line[1:].split(), groups)
        else:
            calls |= expand(line.split(), groups)
    return calls


def runner_calls():
    """Returns the calls that the runner's own filter allows, with conditions or without."""
    path = os.path.join(ROOT, "crates/server/src/runner/sandbox/seccomp.rs")
    with open(path, encoding="utf-8") as file:
        source = file.read().split("#[cfg(test)]\nmod tests")[0]
    return set(re.findall(r"libc::SYS_(\w+)", source))


def check(name, folder, groups):
    with open(os.path.join(ROOT, "packaging", name), encoding="utf-8") as file:
        unit = file.read()
    copy = os.path.join(folder, name)
    with open(copy, "w", encoding="utf-8") as file:
        # The check wants a program that exists.
        file.write(unit.replace("/usr/local/bin/puna", "/bin/true"))
    errors = []
    verified = analyze("verify", copy)
    if verified.returncode or name in verified.stderr:
        errors.append(verified.stderr.strip())
    exposed = analyze("security", "--offline=true", f"--threshold={EXPOSURE[name]}", copy)
    if exposed.returncode:
        errors.append((exposed.stderr or exposed.stdout).strip().splitlines()[-1])
    if "SystemCallFilter=" in unit:
        missing = (runner_calls() | set(SANDBOX)) - allowed_calls(unit, groups)
        if missing:
            errors.append(f"SystemCallFilter= denies calls of a runner: {sorted(missing)}")
    for error in errors:
        print(f"packaging/{name}: {error}")
    return not errors


def main():
    if not shutil.which("systemd-analyze"):
        print("SKIPPED: systemd units: systemd-analyze is not installed")
        return True
    groups = call_groups()
    with tempfile.TemporaryDirectory() as folder:
        return all([check(name, folder, groups) for name in EXPOSURE])


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
