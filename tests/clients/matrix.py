"""The page's matrix: a row for each client, a column for each scenario, and why something was left out."""

import datetime
from pathlib import Path

BEGIN = "<!-- made by: tests/clients/run --markdown -->"
END = "<!-- end of what tests/clients/run made -->"


def table(results, clients, scenarios, broker):
    """The lines between the marks. `results`: (client, scenario) -> (verdict, reasons)."""
    known = []

    def note(text):
        if text not in known:
            known.append(text)
        return str(known.index(text) + 1)

    def cell(client, scenario):
        verdict, reasons = results.get((client.name, scenario), ("", ()))
        word = {"ok": "yes", "FAILED": "**no**"}.get(verdict, "")
        return " ".join([word, *map(note, reasons)]).strip()

    counts = {verdict: sum(of == verdict for of, _ in results.values()) for verdict in ("ok", "FAILED", "skipped")}
    lines = [
        f"{broker}, {datetime.date.today().isoformat()}: {counts['ok']} passed, {counts['FAILED']} failed, "
        f"{counts['skipped']} skipped. A number is a reason below, why it or (behind a yes) a part was left out; "
        "an empty field is not asked of that client.",
        "",
        f"| client | {' | '.join(scenarios)} |",
        "|---" * (len(scenarios) + 1) + "|",
    ]
    for client in clients:
        row = [cell(client, scenario) for scenario in scenarios]
        lines.append(f"| {client.title} | {' | '.join(row)} |")
    if known:
        lines += [""] + [f"{number}. {reason}" for number, reason in enumerate(known, 1)]
    return lines


def wrapped(line, columns=120):
    """Prose in lines that fit; a row of a table stays as it is."""
    if line.startswith("|") or len(line) <= columns:
        return [line]
    hanging = "   " if line[:1].isdigit() and ". " in line[:4] else ""
    out, current = [], ""
    for word in line.split(" "):
        if current and len(current) + 1 + len(word) > columns:
            out.append(current)
            current = hanging + word
        else:
            current = f"{current} {word}" if current else word
    return [*out, current]


def write(path, lines):
    """Puts the lines between the marks of the page."""
    path = Path(path)
    text = path.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise SystemExit(f"{path} has no place for the matrix: a line `{BEGIN}` and behind it a line `{END}`")
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    body = "\n".join(part for line in lines for part in wrapped(line))
    path.write_text(f"{before}\n{body}\n{after}")
