"""Finds tables that requests of several clients share, for tests/tidy.py.

A table is a type of the crates `server` and `mirror` with a semaphore, or with a lock around a collection. Each must be
a holder of a `SharedTable`, which states limit, share and test, or of a `TableExemption`, which states a reason. The
named tests must exist. `docs/guide/security.md` has the list of tables, which a test of `puna` writes.
"""
import re

CRATES = {"puna_server": "crates/server/src", "puna_mirror": "crates/mirror/src"}
COLLECTION = re.compile(r"\b(?:Hash|BTree)(?:Map|Set)\b|\bVec(?:Deque)?\b|\bBinaryHeap\b|\bLruCache\b")
LOCK = re.compile(r"\b(?:Mutex|RwLock)<")
# Types with bodies, and aliases and statics with a type.
BODY = re.compile(r"^\s*(?:pub(?:\([^)]*\))? )?(?:struct|enum) (\w+)", re.M)
ALIAS = re.compile(r"^\s*(?:pub(?:\([^)]*\))? )?(?:type|static) (?:mut )?(\w+)(?:<[^>]*>)?(?: =|:)([^;=]*)", re.M)
TEST_MODULE = re.compile(r"#\[cfg\(test\)\]\s*(?:pub(?:\([^)]*\))? )?mod (\w+);")
ROW = re.compile(r"\b(SharedTable|TableExemption) \{\n(.*?)^\s*\}", re.M | re.S)


def without_comments_and_tests(text):
    text = re.split(r"^#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*mod \w+ \{", text, maxsplit=1, flags=re.M)[0]
    return re.sub(r"//[^\n]*", "", text)


def body_at(text, start):
    """The text of the fields behind a type's name: up to the end of its braces or parentheses."""
    depth = 0
    for end in range(start, len(text)):
        char = text[end]
        if char in "{(":
            depth += 1
        elif char in "})":
            depth -= 1
        if (char == "}" and depth == 0) or (char == ";" and depth == 0):
            return text[start : end + 1]
    return text[start:]


def argument(text, start):
    """The text up to the `>` that closes the `<` before `start`."""
    depth = 1
    for end in range(start, len(text)):
        depth += (text[end] == "<") - (text[end] == ">" and text[end - 1] != "-")
        if depth == 0:
            return text[start:end]
    return text[start:]


class Sources:
    """The types of a crate by file, without tests."""

    def __init__(self, root, name):
        self.name, self.folder = name, root / CRATES[name]
        texts = {path: path.read_text() for path in sorted(self.folder.rglob("*.rs"))}
        tests = {path.parent / (m[1]) if path.stem in ("mod", "lib") else path.with_suffix("") / m[1]
                 for path, text in texts.items() for m in TEST_MODULE.finditer(text)}
        def is_test(path):
            parents = [path.with_suffix(""), *path.parents]
            return any(parent in tests for parent in parents) or path.stem.endswith("tests")

        self.texts = {path: without_comments_and_tests(text) for path, text in texts.items() if not is_test(path)}
        self.types = {}
        for path, text in self.texts.items():
            for m in BODY.finditer(text):
                self.types[path, m[1]] = (body_at(text, m.end()), text.count("\n", 0, m.start()) + 1)
            for m in ALIAS.finditer(text):
                body = m[2] if ":" in m[0].split(m[1], 1)[1][:2] else body_at(text, m.start(2))
                self.types[path, m[1]] = (body, text.count("\n", 0, m.start()) + 1)
        self.with_collection = self.find_with_collection()

    def module(self, path):
        parts = path.relative_to(self.folder).with_suffix("").parts
        parts = parts[:-1] if parts[-1] in ("mod", "lib") else parts
        return "::".join([self.name, *parts])

    def find_with_collection(self):
        """Types that contain a collection, directly or in other types of the crate."""
        found = set()
        while True:
            self.with_collection = found
            more = {key for key, (body, _) in self.types.items() if self.holds_collection(key[0], body)}
            if more == found:
                return found
            found = more

    def holds_collection(self, path, text):
        """Whether a text names a collection, or a type with one. A type of the same file hides others of its name."""
        if COLLECTION.search(text):
            return True
        for name in set(re.findall(r"\b[A-Z]\w*", text)):
            own = (path, name)
            if own in self.with_collection:
                return True
            if own not in self.types and any(other == name for _, other in self.with_collection):
                return True
        return False

    def tables(self):
        """Types with a semaphore or with a lock around a collection, with path and line."""
        for (path, name), (body, line) in self.types.items():
            locked = (argument(body, m.end()) for m in LOCK.finditer(body))
            if re.search(r"\bSemaphore\b", body) or any(self.holds_collection(path, text) for text in locked):
                yield f"{self.module(path)}::{name}", path, line


def rows(text):
    """Kind, holders and test of each description in a source file."""
    for m in ROW.finditer(text):
        body = m[2]
        listed = re.search(r"holders: &\[(.*?)\]", body, re.S) or re.search(r"holder: (\"[^\"]*\")", body)
        test = re.search(r"test: \"(\w+)\"", body)
        if listed:
            line = text.count("\n", 0, m.start()) + 1
            yield m[1], re.findall(r"\"([^\"]+)\"", listed[1]), test and test[1], line


def type_exists(root, holder):
    """Whether a crate defines the type `crate::module::Type`."""
    crate, *modules, name = holder.split("::")
    source = root / "crates" / crate.removeprefix("puna_") / "src"
    files = [source.joinpath(*modules).with_suffix(".rs"), source.joinpath(*modules, "mod.rs")]
    pattern = re.compile(rf"\b(?:struct|enum|type) {name}\b")
    return any(path.is_file() and pattern.search(path.read_text()) for path in files)


def test_names(root):
    """Names of all test functions of the crates."""
    pattern = re.compile(r"#\[(?:tokio::)?test\b[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*(?:async )?fn (\w+)")
    files = (path for path in (root / "crates").rglob("*.rs") if "target" not in path.parts)
    return {name for path in files for name in pattern.findall(path.read_text())}


def check(root, say):
    """Says what is missing in the list of tables. Returns the number of tables."""
    described, exempt, tests, count = {}, {}, [], 0
    crates = [Sources(root, name) for name in CRATES]
    for crate in crates:
        for path, text in crate.texts.items():
            for kind, holders, test, line in rows(text):
                for holder in holders:
                    (described if kind == "SharedTable" else exempt)[holder] = (path, line)
                    if not type_exists(root, holder):
                        say(path, line, f"there is no type {holder}")
                if kind == "SharedTable":
                    count += 1
                    tests.append((test, path, line))
    found = {}
    for crate in crates:
        for holder, path, line in crate.tables():
            found[holder] = (path, line)
            if holder not in described and holder not in exempt:
                say(path, line, f"{holder} may be filled by several clients: describe it in a SharedTable with limit, "
                    "share and test, or in a TableExemption with a reason")
    for holder, (path, line) in exempt.items():
        if holder not in found or holder in described:
            say(path, line, f"{holder} needs no exemption")
    names = test_names(root)
    for test, path, line in tests:
        if test not in names:
            say(path, line, f"there is no test {test}")
    return count
