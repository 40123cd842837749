#!/usr/bin/env python3
"""Checks the language and the structure of the sources: python3 tests/tidy.py [--list]

The rules are those of CONTRIBUTING.md: type names are nouns of the field, comments are plain and at most 100
columns wide, constants say their unit, files of a crate do not import each other in circles, sentences of the manual
are short, and each table that clients share is described. Exits with 1 and names file and line if a rule is broken.
With --list it prints every counted paraphrase, too.
"""
import pathlib
import re
import sys

import shared_tables

ROOT = pathlib.Path(__file__).resolve().parents[1]

# Largest number of paraphrasing words per 1,000 lines of comments.
MAX_PARAPHRASES = 10
# Words that stand for a name or a plainer word. "such as" and "what is" within code do not count.
PARAPHRASES = [
    "what is", "such(?! as)", "one that", "those of", "so many", "of it", "whose", "nobody", "somebody", "anybody",
    "whoever", "meanwhile", "by itself", "beside it", "no more", "as far as", "goes on", "comes of", "by now",
]
# Names of types that are verb forms, question words or roles in a story.
BANNED_TYPES = set("""
    Said Told Asked Wish Whose Why What Who Where Which How Doomed Theirs Comes Rests Held Kept Ran Made Me Way Turn Turns
    Trouble Patient Wayward Crowd Strays Known Found Given Used Next Alone Place Room Seat Habit Judge Offer Worth Door Pass
    Right Answers Waiting Ending Follower Aside Ease Deal Trail Needs Want Wants Wanted Wished Sight Detour Thin Form State
    Kind Part Answer Teller Economy Guess Guesser Grams Doses Dose Stock Holding Going Coming Stray Unheard Undrawn
""".split())
# Bounds of the structure.
MAX_CIRCLE = 2
MAX_COMMENT_COLUMNS = 100
MAX_SENTENCE_WORDS = 30

COMMENT = re.compile(r"^\s*//[/!]?\s?(.*)$")
TYPE = re.compile(r"^\s*(?:pub(?:\([^)]*\))?\s+)?(?:struct|enum|trait|type|union)\s+([A-Z]\w*)")
USE = re.compile(r"^\s*(pub(?:\([^)]*\))?\s+)?use\s+([\w{:*][^;]*);", re.M)
CONSTANT = re.compile(r"^\s*(?:pub(?:\([^)]*\))?\s+)?const ([A-Z][A-Z0-9_]*): (Duration|usize|[ui](?:8|16|32|64)|f32|f64)\b")


def rust_files():
    return sorted(f for folder in ("crates", "fuzz") for f in (ROOT / folder).rglob("*.rs") if "target" not in f.parts)


def is_test(path):
    return "tests" in path.parts or path.stem.endswith("tests")


def without_tests(text):
    """The text up to an inline test module at its end."""
    return re.split(r"^#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*mod \w+ \{", text, maxsplit=1, flags=re.M)[0]


def lines_of(path):
    return path.read_text().splitlines()


def check_comments(say, list_all):
    pattern = re.compile(r"\b(?:" + "|".join(PARAPHRASES) + r")\b")
    lines, found = 0, []
    for path in rust_files():
        for number, line in enumerate(lines_of(path), 1):
            comment = COMMENT.match(line)
            if not comment:
                continue
            lines += 1
            if len(line) > MAX_COMMENT_COLUMNS and "http" not in line:
                say(path, number, f"a comment of {len(line)} columns, at most {MAX_COMMENT_COLUMNS}")
            text = re.sub(r"`[^`]*`", "", comment[1].lower())
            found += [(path, number, word) for word in pattern.findall(text)]
    rate = 1000 * len(found) / lines
    print(f"paraphrasing words: {rate:.1f} per 1,000 of {lines} lines of comments, at most {MAX_PARAPHRASES}")
    if list_all or rate > MAX_PARAPHRASES:
        for path, number, word in found:
            print(f"{path.relative_to(ROOT)}:{number}: {word}")
    if rate > MAX_PARAPHRASES:
        say(ROOT / "crates", 0, f"{rate:.1f} paraphrasing words per 1,000 lines of comments")


def check_names(say):
    for path in rust_files():
        lines = lines_of(path)
        for number, line in enumerate(lines, 1):
            name = TYPE.match(line)
            if name and name[1] in BANNED_TYPES:
                say(path, number, f"the type name {name[1]} does not say what the type is")
            constant = CONSTANT.match(line)
            before = lines[number - 2].strip() if number > 1 else ""
            explained = before.startswith(("///", "//", "#[", "const", "pub const")) or "_" in (constant or [""])[0]
            if constant and not explained and not is_test(path):
                say(path, number, f"the constant {constant[1]} says neither unit nor purpose")


def use_paths(tree, prefix=()):
    """All paths of a `use` tree."""
    depth, part, parts = 0, "", []
    for char in tree:
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += char
    for part in filter(None, (p.strip() for p in [*parts, part])):
        at = part.find("{")
        segments = [s.strip().split(" as ")[0] for s in (part if at < 0 else part[:at]).split("::") if s.strip()]
        if at < 0:
            yield (*prefix, *segments)
        else:
            yield from use_paths(part[at + 1 : part.rindex("}")], (*prefix, *segments))


class Crate:
    """The files of a crate, and which of them import which."""

    def __init__(self, folder):
        self.source = folder / "src"
        self.files = {self.module(f): f for f in sorted(self.source.rglob("*.rs"))}
        self.uses = {f: list(self.read_uses(m, f)) for m, f in self.files.items()}
        self.imports = {f: self.read_imports(f) for f in self.files.values() if not is_test(f.relative_to(folder))}

    def module(self, path):
        parts = path.relative_to(self.source).with_suffix("").parts
        return parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts

    def read_uses(self, module, path):
        """Pairs of whether it is public, and an absolute path."""
        text = re.sub(r"//[^\n]*", "", without_tests(path.read_text()))
        found = [(bool(m[1]), p) for m in USE.finditer(text) for p in use_paths(m[2])]
        body = USE.sub("", text)
        found += [(False, tuple(m[0].split("::"))) for m in re.finditer(r"\b(?:crate|super|self)(?:::\w+)+", body)]
        for public, names in found:
            if names[0] == "crate":
                yield public, (), names[1:]
            elif names[0] == "self" or (*module, names[0]) in self.files:
                yield public, module, names[names[0] == "self" :]
            elif names[0] == "super":
                ups = next(i for i, name in enumerate((*names, "")) if name != "super")
                yield public, module[: len(module) - ups], names[ups:]

    def resolve(self, base, names, depth=0):
        """The file that defines what a path names, behind re-exports."""
        at = 0
        while at < len(names) and (*base, names[at]) in self.files:
            base, at = (*base, names[at]), at + 1
        path = self.files.get(base)
        if path and at < len(names) and depth < 6:
            for public, other, rest in self.uses[path]:
                if public and rest and rest[-1] == names[at] and (other, rest) != (base, names[at:]):
                    return self.resolve(other, rest, depth + 1) or path
        return path

    def read_imports(self, path):
        found = {self.resolve(base, names) for public, base, names in self.uses[path] if not public}
        return {f for f in found if f and f != path and not is_test(f.relative_to(self.source))}

    def circles(self):
        """Strongly connected files (Tarjan)."""
        index, low, stack, found = {}, {}, [], []

        def visit(file):
            index[file] = low[file] = len(index)
            stack.append(file)
            for other in sorted(self.imports.get(file, ())):
                if other not in index:
                    visit(other)
                if other in stack:
                    low[file] = min(low[file], low[other])
            if low[file] == index[file]:
                at = stack.index(file)
                found.append(sorted(stack[at:]))
                del stack[at:]

        for file in self.imports:
            if file not in index:
                visit(file)
        return [circle for circle in found if len(circle) > MAX_CIRCLE]


def check_circles(say):
    for folder in sorted((ROOT / "crates").iterdir()):
        if (folder / "src").is_dir():
            crate = Crate(folder)
            for circle in sorted(crate.circles(), key=len):
                names = ", ".join(str(f.relative_to(crate.source)) for f in circle)
                say(circle[0], 0, f"a circle of {len(circle)} files: {names}")


def check_sentences(say):
    pages = [ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs/guide").glob("*.md"))]
    for path in pages:
        text = re.sub(r"^```.*?^```", lambda m: "\n" * m[0].count("\n"), path.read_text(), flags=re.M | re.S)
        for start, paragraph in paragraphs(text):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "code", paragraph))
            for sentence in re.split(r"(?<=[.!?:;])\s+", plain):
                words = len(sentence.split())
                if words > MAX_SENTENCE_WORDS:
                    say(path, start, f"a sentence of {words} words, at most {MAX_SENTENCE_WORDS}: {sentence[:60]}…")


def check_unsafe(say):
    """Every file with an `unsafe fn` states its contract, or a module above it does, under `# Safety`."""
    stated = re.compile(r"^\s*//[/!] # Safety\b", re.M)
    for crate in ("gguf", "quant", "kernels", "cpu"):
        source = ROOT / "crates" / crate / "src"
        for path in sorted(source.rglob("*.rs")):
            text = path.read_text()
            start = re.search(r"^\s*(?:pub(?:\([^)]*\))? )?(?:default )?unsafe fn ", text, re.M)
            if not start:
                continue
            modules = [folder / "mod.rs" for folder in path.parents if source in folder.parents]
            above = [module for module in modules if module != path and module.exists()]
            contracts = [text] + [module.read_text().split("\n\n", 1)[0] for module in above]
            if not any(stated.search(contract) for contract in contracts):
                line = text.count("\n", 0, start.start()) + 2
                say(path, line, "an unsafe function without `# Safety` in its file or in a module above")


def paragraphs(text):
    """Paragraphs, list items and headings with the number of their first line; tables have cells, not sentences."""
    start, lines = 1, []
    for number, line in enumerate(text.splitlines(), 1):
        begins = re.match(r"\s*([-*]|\d+\.|#+)\s", line)
        if not line.strip() or begins or line.lstrip().startswith("|"):
            if lines:
                yield start, " ".join(lines)
            start, lines = number, [re.sub(r"^\s*([-*]|\d+\.|#+)\s", "", line)] if begins else []
        else:
            start = start if lines else number
            lines.append(line.strip())
    if lines:
        yield start, " ".join(lines)


def main():
    sys.setrecursionlimit(10_000)
    broken = []
    say = lambda path, line, what: broken.append(f"{path.relative_to(ROOT)}:{line}: {what}")
    check_comments(say, "--list" in sys.argv)
    check_names(say)
    check_circles(say)
    check_sentences(say)
    print(f"shared tables: {shared_tables.check(ROOT, say)}")
    check_unsafe(say)
    print(*broken, sep="\n", end="\n" if broken else "")
    print(f"{len(broken)} broken rules" if broken else "tidy")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
