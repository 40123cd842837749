"""Computes medians, ratios and verdicts from samples, formats them as a table, and stores results."""
import csv
import io
import json
import re
import statistics

BEGIN, END = "<!-- table: begin (benches/table writes this) -->", "<!-- table: end -->"


def median(values):
    return statistics.median(values) if values else None


def evaluate(row, puna, peer, shares):
    """Result of a row. `puna` and `peer` are samples (the peer's by build or setting); `shares` are
    fractions of the limit. Samples are speeds, except seconds for `start` and bytes for `memory`."""
    ours = median(puna)
    rivals = {name: median(samples) for name, samples in peer.items() if samples}
    less_is_better = row.how in ("start", "memory")
    best = (min if less_is_better else max)(rivals, key=rivals.get, default=None)
    theirs = rivals.get(best)
    ratio = None
    if ours and theirs:
        ratio = theirs / ours if less_is_better else ours / theirs
    share = median(shares)
    verdicts = []
    if row.ratio is not None:
        verdicts.append(None if ratio is None else ratio >= row.ratio)
    if row.how == "memory":
        verdicts.append(None if ours is None else ours <= row.share)
    elif row.share is not None:
        verdicts.append(None if share is None else share >= row.share)
    met = False if False in verdicts else None if None in verdicts or not verdicts else True
    return {
        "puna": ours, "puna_range": span(puna), "peer": theirs, "peer_range": span(peer.get(best) or []), "peer_build": best,
        "ratio": ratio, "share": share, "met": met,
    }


def span(values):
    return [min(values), max(values)] if values else None


def number(x):
    if x is None:
        return "–"
    return f"{x:.0f}" if x >= 100 else f"{x:.1f}" if x >= 10 else f"{x:.2f}"


def speed(value, range_, scale=1.0):
    if value is None:
        return "–"
    text = number(value * scale)
    if range_ and number(range_[0] * scale) != number(range_[1] * scale):
        text += f" ({number(range_[0] * scale)}–{number(range_[1] * scale)})"
    return text


def share_text(row, share):
    if share is None:
        return "–"
    if row.limit == "single":
        return f"{share:.1f}× one sequence"
    kind = {"read": "of reading", "compute": "of arithmetic", "float": "of arithmetic", "fair": "kept"}.get(row.limit, "")
    return f"{share * 100:.0f} % {kind}".strip()


def share_target(row):
    if row.how == "memory":
        return f"≤ {row.share / 1e6:.0f} MB"
    if row.share is None:
        return ""
    return f"≥ {row.share:.0f}×" if row.limit == "single" else f"≥ {row.share * 100:.0f} %"


def ratio_target(row):
    if row.ratio is None:
        return ""
    # Readers expect a ratio of times to be below 1 for the faster program.
    return f"≤ {1 / row.ratio:g}× its time" if row.how == "start" else f"≥ {row.ratio:g}×"


def line(row, result):
    if "skipped" in result:
        return f"| {row.work} | {row.file} | skipped: {result['skipped']} | | | {ratio_target(row)} | | {share_target(row)} | |"
    return "| " + " | ".join(cells(row, result)) + " |"


def cells(row, result):
    """Cells of a measured row: work, file, both results, ratio, share, their targets, verdict."""
    scale = 1e-6 if row.how == "memory" else 1.0
    met = {True: "yes", False: "**no**", None: ""}[result["met"]]
    ratio = "–" if result["ratio"] is None else f"{result['ratio']:.2f}×"
    if row.how == "start" and result["ratio"]:
        ratio = f"{1 / result['ratio']:.2f}× its time"
    if row.how == "memory":
        ratio = ""
    out = [
        row.work, str(row.file), speed(result["puna"], result["puna_range"], scale),
        "" if row.how == "memory" else speed(result["peer"], result["peer_range"], scale), ratio, ratio_target(row),
        "" if row.how == "memory" else share_text(row, result["share"]), share_target(row), met,
    ]
    if result.get("note"):
        out[3] += f" {result['note']}"
    return out


def summary(done, results, machine, commands):
    """Machine, limits, the other program, and how many targets are met."""
    out = [f"Machine: {machine['cpu']}, {machine['threads']} threads of {machine['cores']} processors, {machine['memory_gb']:.0f} GB; {machine['os']}; {machine['date']}; commit {machine['commit']}."]
    limits = machine.get("limits") or {}
    # Rows such as `start` measure no speed and probe no limits.
    if limits.get("read_gbs"):
        parts = [f"reading {span_text(limits['read_gbs'])} GB/s"]
        for level, units in sorted(limits.get("levels", {}).items()):
            parts.append(f"`{level}` {span_text(units['int8_gmacs'])} G multiply-adds/s in 8 bits, {span_text(units['bf16_gmacs'])} in bf16")
        out.append("Limits, as probed in every run: " + "; ".join(parts) + ".")
    out.append(f"llama.cpp: {machine['peer']}. {commands}")
    measured = [results[row.id] for row in done if "puna" in results[row.id]]
    met, unmet = sum(r["met"] is True for r in measured), sum(r["met"] is False for r in measured)
    out.append(f"Targets met: {met} of {met + unmet}.")
    return out


def csv_text(rows, results, machine, commands):
    """The table as CSV, with the summary in lines that begin with #."""
    done = [row for row in rows if row.id in results]
    out = io.StringIO()
    out.writelines(f"# {text}\n" for text in summary(done, results, machine, commands))
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["group", "work", "file", "puna", "llama_cpp", "ratio", "ratio_target", "share_of_limit", "share_target", "met", "commit", "date"])
    for row in done:
        result = results[row.id]
        if "skipped" in result:
            values = [row.work, str(row.file), f"skipped: {result['skipped']}", "", "", ratio_target(row), "", share_target(row), ""]
        else:
            values = cells(row, result)
        stamp = [result.get("commit", machine["commit"]), result.get("date", machine["date"])]
        writer.writerow([row.group, *(value.replace("*", "") for value in values), *stamp])
    return out.getvalue()


def table(rows, results, machine, commands, titles=()):
    """The section as Markdown: machine, limits, and a table for each group."""
    titles = dict(titles)
    done = [row for row in rows if row.id in results]
    out = [text for line_ in summary(done, results, machine, commands) for text in (line_, "")][:-1]
    group = None
    for row in done:
        result = results[row.id]
        if row.group != group:
            group = row.group
            out += ["", f"**{titles.get(group, group).capitalize()}** (`--rows {group}`), tokens/s where nothing else is said", ""]
            out += ["| work | file | Puna | llama.cpp | ratio | target | share of the limit | target | met |", "|---|---|---|---|---|---|---|---|---|"]
        text = line(row, result)
        if result.get("commit") and result["commit"] != machine["commit"]:
            text = text[:-2].rstrip() + f" ({result['commit']}, {result['date']}) |"
        out.append(text)
    return "\n".join(out) + "\n"


def span_text(values):
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low}–{high}"


def write_between(text, section):
    """Replaces the text between the markers, or appends the section with markers if there are none."""
    block = f"{BEGIN}\n## Puna beside llama.cpp\n\n{section}{END}"
    pattern = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.S)
    if pattern.search(text):
        return pattern.sub(lambda _: block, text, count=1)
    return text.rstrip("\n") + f"\n\n{block}\n"


def load(path, fingerprint):
    """Rows of earlier runs on the same machine."""
    try:
        stored = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return stored["rows"] if stored.get("machine") == fingerprint else {}


def store(path, fingerprint, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": fingerprint, "rows": rows}, indent=1))
