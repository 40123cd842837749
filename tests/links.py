#!/usr/bin/env python3
"""Checks the links between the Markdown files of the repository: tests/links.py [--write]

Every relative link must name an existing file, and its anchor must be a heading or an `<a id>` of that file. Every page
below docs/ must be in docs/SUMMARY.md, the table of contents of the book. Pages for developers also name source files:
each `crates/…` path must exist. A path with a line, `FILE:LINE` (`name`), must name a file that defines the name;
--write corrects lines that have moved. Prints FILE:LINE for each error and exits with status 1 if there is one. Needs git
and nothing outside the standard library.
"""
import pathlib
import re
import subprocess
import sys
import unicodedata
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUMMARY = ROOT / "docs/SUMMARY.md"
# A link or an image with its target, and a definition such as `[name]: target`.
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
DEFINITION = re.compile(r"^\[[^\]^]+\]:\s+<?(\S+?)>?\s*$")
HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*\s*$")
NAMED_ANCHOR = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")
FENCE = re.compile(r"^\s*(```+|~~~+)")
# A path of the repository as code, with an optional line and the name that stands there.
SOURCE = re.compile(r"`((?:crates|tests|benches|docs|packaging|fuzz|\.ci)/[^`\s:]*)(?::(\d+))?`(?:\s\(`([^`]+)`\))?")
PLACEHOLDER = re.compile(r"[*{}…<>]|[A-Z]{4,}(?!\.md)")
DEVELOPER_PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "docs/howto/", "docs/design/")
EXTERNAL = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def pages():
    """Tracked Markdown files, and new ones that git does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.md"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return [path for path in (ROOT / name for name in sorted(set(names)) if name) if path.is_file()]


def prose(path):
    """Numbered lines outside fenced code blocks."""
    fence = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if mark := FENCE.match(line):
            if fence is None:
                fence = mark[1]
            elif mark[1].startswith(fence):
                fence = None
        elif fence is None:
            yield number, line


def slug(heading):
    """Anchor of a heading, as Git hosts and mdBook make it."""
    text = re.sub(r"!?\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\([^)]*\)", r"\1", heading)
    text = text.replace("`", "").replace("*", "").lower()
    kept = (c for c in text if c in "-_ " or unicodedata.category(c)[0] in "LNM")
    return "".join(kept).strip().replace(" ", "-")


def anchors(path):
    found, counts = set(), {}
    for _, line in prose(path):
        found.update(NAMED_ANCHOR.findall(line))
        if heading := HEADING.match(line):
            name = slug(heading[2])
            repeated = counts.get(name, 0)
            counts[name] = repeated + 1
            found.add(f"{name}-{repeated}" if repeated else name)
    return found


def links(path):
    """Numbered relative targets. Links may begin on one line and end on the next."""
    lines = list(prose(path))
    for number, line in lines:
        if definition := DEFINITION.match(line):
            yield number, definition[1]
    # Code spans contain no links. Replacing them keeps the offsets of lines.
    text = re.sub(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)", lambda m: re.sub(r"[^\n]", "x", m[0]), "\n".join(line for _, line in lines), flags=re.DOTALL)
    for link in LINK.finditer(text):
        yield lines[text.count("\n", 0, link.start())][0], link[1]


def check(path, known):
    errors = []
    for number, target in links(path):
        if EXTERNAL.match(target):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / urllib.parse.unquote(file)).resolve() if file else path
        where = f"{path.relative_to(ROOT)}:{number}"
        if not there.exists():
            errors.append(f"{where}: {target}: no such file")
        elif anchor and there.suffix == ".md":
            if there not in known:
                known[there] = anchors(there)
            if urllib.parse.unquote(anchor) not in known[there]:
                errors.append(f"{where}: {target}: no such heading")
    return errors


def source_line(path, name):
    """Number of the line that defines the name: an item, else a field or a variant. None if the file does not define it."""
    lines = path.read_text(encoding="utf-8").splitlines()
    item = re.compile(rf"\b(fn|struct|enum|trait|const|static|type|mod|def|class|macro_rules!)\s+{re.escape(name)}(?!\w)")
    member = re.compile(rf"^\s*(pub(\([^)]*\))?\s+)?{re.escape(name)}(:|,$|\(| \{{| =)")
    for definition in (item, member):
        for number, line in enumerate(lines, 1):
            if definition.search(line) and not line.lstrip().startswith(("//", "use ", "pub use ")):
                return number
    return None


def check_sources(page, write):
    """Source files that a page for developers names."""
    errors = []
    text = page.read_text(encoding="utf-8")

    def correct(match):
        path, line, name = match.groups()
        if PLACEHOLDER.search(path):
            return match[0]
        where = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}"
        there = ROOT / path
        if not there.exists():
            errors.append(f"{where}: {path}: no such file")
        elif line and name:
            number = source_line(there, name)
            if number is None:
                errors.append(f"{where}: {path}: does not define {name}")
            else:
                if number != int(line) and not write:
                    errors.append(f"{where}: {path}:{line}: {name} is on line {number}; --write corrects it")
                return f"`{path}:{number}` (`{name}`)"
        elif line and int(line) > len(there.read_text(encoding="utf-8").splitlines()):
            errors.append(f"{where}: {path}: has no line {line}")
        return match[0]

    corrected = SOURCE.sub(correct, text)
    if write and corrected != text:
        page.write_text(corrected, encoding="utf-8")
    return errors


def unlisted(all_pages):
    """Pages of the book that its table of contents does not name."""
    listed = {(SUMMARY.parent / target).resolve() for _, target in links(SUMMARY)}
    book = (path for path in all_pages if SUMMARY.parent in path.parents and path != SUMMARY)
    return [f"{path.relative_to(ROOT)}:1: not listed in {SUMMARY.relative_to(ROOT)}" for path in book if path not in listed]


def main():
    all_pages, known, write = pages(), {}, "--write" in sys.argv[1:]
    errors = [error for path in all_pages for error in check(path, known)] + unlisted(all_pages)
    for path in all_pages:
        if str(path.relative_to(ROOT)).startswith(DEVELOPER_PAGES):
            errors += check_sources(path, write)
    print("\n".join(errors) if errors else f"{len(all_pages)} pages: all links lead somewhere")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
