"""Clients in other languages and frameworks. Each has a test suite in tests/clients, and each of its tests is one
here."""
import os
import pathlib
import re
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest

from conftest import DATA, REPOSITORY
from test_mirror import Mirror

SUITES = REPOSITORY / "tests/clients"
CACHE = REPOSITORY / ".cache"


def names(pattern, test):
    """(file, test) of a suite's tests as they stand in its files."""
    return [(file.name, name) for file in sorted(SUITES.glob(pattern)) for name in re.findall(test, file.read_text(), re.M)]


NODE = names("node/*.test.mjs", r'^test\("([^"]+)"')
GO = names("go/*_test.go", r"^func (Test\w+)\(")
FRAMEWORKS = names("frameworks/test_*.py", r"^def (test_\w+)\(")


class Suite:
    """Results of suites, which run whole when the first of their tests is asked for."""

    def __init__(self, server, embedder, folder):
        self.env = {
            **server.env,
            "PUNA_URL": server.url,
            "PUNA_EMBEDDER": embedder,
            "PUNA_GGUF": str(DATA / "zoo/bert-mean.gguf"),
            "PATH": os.environ["PATH"],
        }
        self.folder = folder
        self.ran = {}

    def check(self, file, name):
        """Fails as the test did."""
        results, output = self.ran[file] if file in self.ran else self.ran.setdefault(file, self.run(file))
        assert name in results, f"{file}: {name!r} did not run\n{output}"
        assert results[name] is None, f"{file}: {name}\n{results[name]}"

    def call(self, *command, folder):
        done = subprocess.run([*map(str, command)], cwd=SUITES / folder, env=self.env, capture_output=True, text=True, timeout=300)
        return done.stdout + done.stderr

    def junit(self, output, report):
        """Failures by test, `None` of one that passed, from a report in JUnit's form."""
        if not report.exists():
            return {}, output
        found = {}
        for case in ElementTree.parse(report).iter("testcase"):
            failure = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
            found[case.get("name")] = None if failure is None else f"{failure.get('message')}\n{failure.text}"
        return found, output


class Node(Suite):
    def run(self, file):
        report = self.folder / "node.xml"
        report.unlink(missing_ok=True)
        output = self.call("node", "--test", "--test-reporter=junit", f"--test-reporter-destination={report}", file, folder="node")
        return self.junit(output, report)


class Go(Suite):
    def run(self, file):
        (self.folder / "mirror").mkdir()
        mirror = Mirror(self.folder / "mirror")
        self.env["PUNA_REGISTRY"] = mirror.host
        try:
            output = self.call(CACHE / "go/clients.test", "-test.v", folder="go")
        finally:
            mirror.kill()
        found = {}
        for test in re.split(r"^=== RUN +", output, flags=re.M)[1:]:
            name = test.split()[0]
            found[name] = None if f"--- PASS: {name} " in test else test
        return found, output


class Frameworks(Suite):
    def run(self, file):
        report = self.folder / "frameworks.xml"
        report.unlink(missing_ok=True)
        output = self.call(CACHE / "frameworks/bin/python", "-m", "pytest", "-q", "--tb=short", f"--junitxml={report}", file, folder="frameworks")
        return self.junit(output, report)


@pytest.fixture(scope="module")
def suites(server, embedder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("suites")
    return {kind: kind(server, embedder, folder) for kind in (Node, Go, Frameworks)}


def check(suites, kind, what, file, name):
    if not what.exists():
        pytest.skip(f"SKIPPED: {what.relative_to(REPOSITORY)} is not there; ./test makes it where its tools and a network are")
    suites[kind].check(file, name)


@pytest.mark.parametrize("file,name", NODE, ids=str)
def test_each_test_of_the_node_clients_passes(suites, file, name):
    check(suites, Node, SUITES / "node/node_modules", file, name)


@pytest.mark.parametrize("file,name", GO, ids=str)
def test_each_test_of_the_go_client_passes(suites, file, name):
    check(suites, Go, CACHE / "go/clients.test", file, name)


@pytest.mark.parametrize("file,name", FRAMEWORKS, ids=str)
def test_each_test_of_the_python_frameworks_passes(suites, file, name):
    check(suites, Frameworks, CACHE / "frameworks/bin/python", file, name)
