#!/usr/bin/env python3
"""Draws what each step of a growing conversation adds on disk, and prints the same as a table.

    plot_growth.py GROWTH.csv OUT.svg [--each] [--windows N] > table.md

The CSV has the header `form,step,stored_bytes,raw_bytes`. The two last columns are totals after the step (the store's
size and the bytes handed in so far); with --each they are what that step alone added. Forms are drawn in the order in
which they first appear; steps may come in any order, and a form's first step counts from nothing.

Upper panel: bytes stored a step, from zero, so that a slope would show. Lower panel: the same beside the raw bytes of
the steps' bodies, logarithmic. Lines are means over windows of steps, since flushes and table writes come in lumps.
Python's standard library only; the same CSV gives the same bytes.
"""

import argparse
import csv
import itertools
import math
import sys

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
WIDTH, LEFT, RIGHT = 820, 84, 24
PANEL, TOP, GAP = 250, 64, 62


def load(path, each):
    """{form: [(step, stored, raw)]}, each value what that step added."""
    forms = {}
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = {"form", "step", "stored_bytes", "raw_bytes"} - set(reader.fieldnames or ())
        if missing:
            raise SystemExit(f"{path}: no column {', '.join(sorted(missing))}")
        for row in reader:
            point = int(row["step"]), int(row["stored_bytes"]), int(row["raw_bytes"])
            forms.setdefault(row["form"], []).append(point)
    if not forms:
        raise SystemExit(f"{path}: no rows")
    for form, points in forms.items():
        points.sort()
        if any(a[0] == b[0] for a, b in zip(points, points[1:])):
            raise SystemExit(f"{path}: {form}: a step stands twice")
        if not each:
            # A gap between steps is spread over the steps it spans.
            before = [(0, 0, 0), *points[:-1]]
            forms[form] = [
                (now[0], *((now[i] - old[i]) / (now[0] - old[0]) for i in (1, 2)))
                for old, now in zip(before, points)
            ]
    return forms


def windows(points, last_step, count):
    """Means over equal windows of steps: [(first, last, stored, raw)]."""
    size = max(1, math.ceil(last_step / count))
    out = []
    for first in range(1, last_step + 1, size):
        inside = [p for p in points if first <= p[0] < first + size]
        if inside:
            mean = [sum(p[i] for p in inside) / len(inside) for i in (1, 2)]
            out.append((first, min(first + size - 1, last_step), *mean))
    return out


def human(value):
    for unit, size in (("MB", 1e6), ("KB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"


def nice_step(top, parts):
    """A round step that cuts 0..top into about `parts`."""
    rough = top / parts
    power = 10 ** math.floor(math.log10(rough))
    return next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * 0.999)


class Panel:
    """One set of axes; gathers SVG elements."""

    def __init__(self, top, title, last_step, low, high, log):
        self.top, self.low, self.high, self.log, self.last = top, low, high, log, last_step
        self.out = [f'<text x="{LEFT}" y="{top - 10}" class="t">{title}</text>']

    def x(self, step):
        return LEFT + (WIDTH - LEFT - RIGHT) * step / self.last

    def y(self, value):
        if self.log:
            value = max(value, self.low)
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = value / self.high
        return self.top + PANEL * (1 - part)

    def axes(self, ticks):
        for value in ticks:
            y = self.y(value)
            self.out.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" class="g"/>')
            self.out.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" class="e">{human(value)}</text>')
        step = nice_step(self.last, 8)
        for i in range(int(self.last / step + 1e-9) + 1):
            x = self.x(i * step)
            self.out.append(f'<path d="M{x:.1f} {self.top + PANEL}v5" class="a"/>')
            self.out.append(f'<text x="{x:.1f}" y="{self.top + PANEL + 19}" class="m">{i * step:g}</text>')
        self.out.append(f'<path d="M{LEFT} {self.top}v{PANEL}H{WIDTH - RIGHT}" class="a"/>')

    def line(self, points, colour, dashed=False):
        path = " ".join(f"{self.x(s):.1f},{self.y(v):.1f}" for s, v in points)
        dash = ' stroke-dasharray="2 4"' if dashed else ""
        self.out.append(f'<polyline points="{path}" stroke="{colour}"{dash} class="l"/>')


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def draw(means, last):
    """The whole SVG as text."""
    middle = {f: [((a + b) / 2, s, r) for a, b, s, r in ws] for f, ws in means.items()}
    stored = [p[1] for ps in middle.values() for p in ps]
    raw = [p[2] for ps in middle.values() for p in ps]
    step = nice_step(max(*stored, 1) * 1.15, 5)
    high = step * math.ceil(max(*stored, 1) * 1.15 / step)
    first = Panel(TOP, "Bytes stored a step", last, 0, high, False)
    first.axes([i * step for i in range(round(high / step) + 1)])
    positive = [v for v in stored + raw if v > 0] or [1]
    low = 10 ** math.floor(math.log10(min(positive)))
    top = 10 ** math.ceil(math.log10(max(positive) * 1.0001))
    second = Panel(TOP + PANEL + GAP, "Stored (lines) and handed in (dotted) a step, logarithmic", last, low, top, True)
    second.axes([10**i for i in range(round(math.log10(low)), round(math.log10(top)) + 1)])
    legend, x = [], LEFT
    for colour, (form, points) in zip(itertools.cycle(COLOURS), middle.items()):
        first.line([p[:2] for p in points], colour)
        second.line([p[::2] for p in points], colour, dashed=True)
        second.line([p[:2] for p in points], colour)
        legend.append(f'<path d="M{x} 24h22" stroke="{colour}" class="l"/>')
        legend.append(f'<text x="{x + 28}" y="28" class="t">{escape(form)}</text>')
        x += 60 + 8 * len(form)
    height = TOP + 2 * PANEL + GAP + 50
    style = (
        "text{font:13px sans-serif;fill:#333}.e{text-anchor:end}.m{text-anchor:middle}"
        ".g{stroke:#e4e4e4}.a{stroke:#666;fill:none}.l{stroke-width:2;fill:none}"
    )
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>Growth per step</title><style>{style}</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        *legend, *first.out, *second.out,
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{height - 10}" class="m">step</text>',
        "</svg>\n",
    ])


def table(forms, last):
    """Mean bytes stored a step in ten windows, and how the last compares with the second."""
    cells = {form: windows(points, last, 10) for form, points in forms.items()}
    spans = sorted({w[:2] for ws in cells.values() for w in ws})
    lines = ["| steps | " + " | ".join(f"{f}: bytes stored a step | raw" for f in cells) + " |"]
    lines.append("|---|" + "---:|---:|" * len(cells))
    for span in spans:
        row = []
        for ws in cells.values():
            here = [w for w in ws if w[:2] == span]
            row += [f"{value:,.0f}" for value in here[0][2:]] if here else ["", ""]
        lines.append(f"| {span[0]} to {span[1]} | " + " | ".join(row) + " |")
    # The first window carries what a conversation starts with, so growth is told from the second.
    for form, ws in cells.items():
        if len(ws) > 2 and ws[1][2]:
            lines += ["", f"{form}: the last tenth stores {ws[-1][2] / ws[1][2]:.2f} times what the second did."]
    return "\n".join(lines) + "\n"


def main():
    args = argparse.ArgumentParser(description="Growth per step, as a plot and a table")
    args.add_argument("csv")
    args.add_argument("svg")
    args.add_argument("--each", action="store_true", help="the columns are each step's own bytes, not totals")
    args.add_argument("--windows", type=int, default=50, help="windows along the plot (default 50)")
    args = args.parse_args()
    forms = load(args.csv, args.each)
    last = max(p[0] for points in forms.values() for p in points)
    means = {form: windows(points, last, max(1, args.windows)) for form, points in forms.items()}
    with open(args.svg, "w", encoding="utf-8", newline="\n") as file:
        file.write(draw(means, last))
    sys.stdout.write(table(forms, last))


if __name__ == "__main__":
    main()
