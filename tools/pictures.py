#!/usr/bin/env python3
"""Draws docs/pictures/*.svg from files of the tree: tables of pages, and docs/pictures/schedules.txt, which a test
compares with the simulator. --check draws nothing, and fails if a picture differs from the one it would draw.
"""
import html
import math
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
LOG = ROOT / "docs" / "lab" / "2026-11-measurements.md"

INK, PALE, LINE = "#1f2937", "#6b7280", "#d1d5db"
BLUE, SKY, GREEN, ORANGE, RED, VIOLET, GREY = (
    "#2563eb", "#60a5fa", "#16a34a", "#f59e0b", "#dc2626", "#7c3aed", "#9ca3af")
TINTS = ("#eff6ff", "#ecfdf5", "#fff7ed", "#f5f3ff", "#f9fafb")


class Svg:
    """A picture of fixed size on white, so that it reads on dark pages too."""

    def __init__(self, width, height, title):
        self.size = (width, height)
        self.parts = [f"<title>{html.escape(title)}</title>",
                      f'<rect width="{width}" height="{height}" rx="6" fill="#ffffff"/>']

    def box(self, x, y, width, height, fill, stroke="none", radius=0):
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}" '
                          f'fill="{fill}" stroke="{stroke}"/>')

    def text(self, x, y, text, size=12, fill=INK, anchor="start", bold=False):
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}" text-anchor="{anchor}"'
                          f'{weight}>{html.escape(text)}</text>')

    def line(self, x1, y1, x2, y2, stroke=LINE, width=1, dash="", arrow=False):
        extra = (f' stroke-dasharray="{dash}"' if dash else "") + (' marker-end="url(#tip)"' if arrow else "")
        self.parts.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{stroke}" '
                          f'stroke-width="{width}"{extra}/>')

    def curve(self, points, stroke):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{stroke}" stroke-width="2"/>')
        self.parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{stroke}"/>' for x, y in points]

    def legend(self, x, y, entries, step=150):
        for number, (fill, label) in enumerate(entries):
            self.box(x + step * number, y - 10, 12, 12, fill)
            self.text(x + step * number + 18, y, label)

    def __str__(self):
        width, height = self.size
        return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                f'viewBox="0 0 {width} {height}" font-family="Helvetica,Arial,sans-serif">\n'
                '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="6" refY="3" orient="auto">'
                f'<path d="M0,0 L7,3 L0,6 z" fill="{PALE}"/></marker></defs>\n' + "\n".join(self.parts) + "\n</svg>\n")


def table(path, heading, columns):
    """Rows of the first table under `heading` of a page whose header has all of `columns`."""
    text = path.read_text()
    text = text[text.index(heading):]
    rows, head = [], None
    for line in text.split("\n"):
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else None
        if head is None:
            head = cells if cells and set(columns) <= set(cells) else None
        elif cells is None:
            return rows
        elif not set(line) <= set("|-"):
            rows.append(dict(zip(head, cells)))
    raise ValueError(f"{path} has no table of {columns} under {heading}")


def layers():
    """The parts of a program, and how the processes of a job connect."""
    text = (ROOT / "docs/internals/architecture.md").read_text()
    said = dict(re.findall(r"^(\w+) +-> .*? {2,}(.*)$", text, re.MULTILINE))
    svg = Svg(900, 372, "The libraries of Shoal, and the processes of a job")
    svg.text(24, 30, "One process: each library uses those below it", 14, bold=True)
    stack = (("apps", VIOLET), ("train", BLUE), ("parallel", BLUE), ("nn", GREEN), ("collectives", GREEN),
             ("kernels", ORANGE), ("runtime", GREY))
    for number, (name, color) in enumerate(stack):
        y = 48 + 44 * number
        svg.box(24, y, 410, 38, "#f9fafb", LINE, 4)
        svg.box(24, y, 6, 38, color)
        svg.text(42, y + 24, name, 13, bold=True)
        words = (said[name] if name in said else "the programs").split("; ")[0]
        svg.text(134, y + 24, re.sub(r" \(.*", "", words).split(", rendezvous")[0], 11, PALE)
    svg.text(470, 30, "One job: a process for each rank, no server", 14, bold=True)
    for host in range(2):
        y = 48 + 172 * host
        svg.box(470, y, 406, 130, TINTS[host], LINE, 6)
        svg.text(484, y + 20, f"host {host}", 12, PALE)
        for local in range(3):
            x = 490 + 128 * local
            svg.box(x, y + 32, 110, 40, "#ffffff", BLUE, 4)
            svg.text(x + 55, y + 57, f"rank {3 * host + local}", 13, anchor="middle", bold=True)
            svg.line(x + 55, y + 72, x + 55, y + 90, PALE)
        svg.box(490, y + 90, 366, 26, "#ffffff", GREEN, 4)
        svg.text(673, y + 107, "shared memory, or CUDA IPC between GPUs", 11, anchor="middle")
    for local in range(3):
        x = 545 + 128 * local
        svg.line(x, 178, x, 218, ORANGE, 2, "4 3")
    svg.box(520, 190, 306, 18, "#ffffff")
    svg.text(673, 203, "each rank's rail between hosts: libfabric (EFA, TCP)", 11, anchor="middle")
    return svg


def schedules():
    """The six pipeline schedules over 4 ranks and 8 microbatches."""
    lines = (PICTURES / "schedules.txt").read_text().splitlines()
    ranks = {}
    for line in lines:
        kind, rank, actions = re.match(r"(\w+) (\d+): (.*)", line).groups()
        ranks.setdefault(kind, []).append(re.findall(r"(\d+)([FBIW])(\d+)@([\d.]+)-([\d.]+)", actions))
    left, scale, row, block = 54, 24.0, 17, 104
    svg = Svg(900, 40 + block * len(ranks) + 16, "Pipeline schedules over four ranks and eight microbatches")
    svg.legend(left, 24, ((BLUE, "forward"), (SKY, "forward, second stage"), (GREEN, "backward"),
                          (ORANGE, "weight gradient"), ("#f3f4f6", "idle")), 165)
    boxes, numbers = {}, ""  # paths of one colour are joined: a fifth of the bytes
    for number, (kind, rows) in enumerate(ranks.items()):
        top = 40 + block * number
        end = max(float(action[4]) for actions in rows for action in actions)
        busy = sum(float(action[4]) - float(action[3]) for actions in rows for action in actions)
        svg.text(left, top + 18, kind, 13, bold=True)
        svg.text(left + 160, top + 18, f"{end:g} units of time, idle {1 - busy / end / len(rows):.0%}", 12, PALE)
        for rank, actions in enumerate(rows):
            y = top + 26 + row * rank
            svg.text(left - 8, y + 12, str(rank), 11, PALE, "end")
            svg.box(left, y, end * scale, row - 2, "#f3f4f6")
            for stage, action, microbatch, begin, finish in actions:
                fill = {"F": BLUE if int(stage) < len(rows) else SKY, "W": ORANGE}.get(action, GREEN)
                x, width = left + float(begin) * scale, (float(finish) - float(begin)) * scale
                boxes[fill] = boxes.get(fill, "") + f"M{x:g} {y}h{width - 1:g}v{row - 2}h{1 - width:g}z"
                numbers += f'<text x="{x + width / 2 - .5:g}" y="{y + 11}">{microbatch}</text>'
    svg.parts += [f'<path d="{path}" fill="{fill}"/>' for fill, path in boxes.items()]
    svg.parts.append(f'<g font-size="9" text-anchor="middle" fill="#ffffff">{numbers}</g>')
    return svg


def mesh():
    """Ranks 0 to 7 on a mesh of 2 replicas, 2 stages and 2 tensor-parallel ranks, placement cluster."""
    svg = Svg(900, 300, "A mesh of two replicas, two pipeline stages and two tensor-parallel ranks")
    for replica in range(2):
        x = 30 + 430 * replica
        svg.box(x, 40, 408, 236, TINTS[replica], LINE, 6)
        svg.text(x + 14, 64, f"replica {replica}: its own samples", 13, bold=True)
        for stage in range(2):
            y = 84 + 92 * stage
            svg.box(x + 14, y, 380, 78, "#ffffff", LINE, 4)
            svg.text(x + 26, y + 20, f"stage {stage}: " + ("embeddings and the first blocks" if stage == 0 else
                                                              "the last blocks and the head"), 11, PALE)
            for part in range(2):
                rank = (replica * 2 + stage) * 2 + part
                svg.box(x + 26 + 184 * part, y + 30, 172, 36, (SKY, "#bbf7d0")[part], "none", 4)
                svg.text(x + 112 + 184 * part, y + 53, f"rank {rank}: half {part}", 12, anchor="middle")
        svg.line(x + 204, 160, x + 204, 174, INK, 1.5, arrow=True)
    svg.line(438, 140, 460, 140, INK, 1.5, "3 3")
    svg.line(438, 232, 460, 232, INK, 1.5, "3 3")
    svg.text(450, 24, "dashed: ranks that sum their gradients; arrows: activations; "
             "side by side: the halves of each layer",
             12, PALE, "middle")
    return svg


def memory():
    """Bytes for each parameter on a rank between two steps, by the formulas of the page on layouts."""
    rows = table(ROOT / "docs/internals/layouts.md", "## What a rank holds",
                 ("bytes between two steps", "level 0", "3"))
    degree = 8

    def value(formula):  # bytes for each parameter: bf16 values, f32 masters and two moments
        found = re.match(r"(4?)([ns]?)P( / D)?(?:,|$)", formula)
        return int(found[1] or 1) * {"s": 2, "n": 3, "": 1}[found[2]] / (degree if found[3] else 1)

    svg = Svg(900, 290, "Memory of a rank by level of sharding")
    svg.text(24, 30, "Bytes a parameter takes on a rank between two steps: bf16, AdamW, f32 masters, "
             f"{degree} replicas",
             14, bold=True)
    fills = (BLUE, GREEN, ORANGE)
    svg.legend(150, 56, tuple(zip(fills, ("parameters", "gradients", "masters and moments"))), 130)
    for number, level in enumerate(("level 0", "1", "2", "3")):
        y, x = 78 + 50 * number, 150.0
        svg.text(138, y + 22, ("no sharding", "ZeRO-1", "ZeRO-2", "ZeRO-3")[number], 13, anchor="end", bold=True)
        total = 0
        for row, fill in zip(rows, fills):
            size = value(row[level])
            svg.box(x, y, size * 36, 34, fill)
            if size >= .75:
                svg.text(x + size * 18, y + 22, f"{size:g}", 12, "#ffffff", "middle")
            x += size * 36
            total += size
        svg.text(x + 10, y + 22, f"{total:g}", 13, bold=True)
    return svg


def timeline():
    """A step of data-parallel ranks, with the communication that overlaps backward."""
    svg = Svg(900, 216, "A data-parallel step: buckets travel while backward runs")
    svg.text(24, 28, "One step of a data-parallel rank (drawn, not measured)", 14, bold=True)
    left, scale, blocks = 150, 33.0, 4
    for y, label in ((54, "computes"), (104, "sums over ranks")):
        svg.text(138, y + 22, label, 13, anchor="end", bold=True)
    at = 0.0
    for block in range(blocks):
        svg.box(left + at * scale, 54, scale * 1.2 - 2, 34, BLUE)
        svg.text(left + (at + .6) * scale, 76, f"F{block}", 12, "#ffffff", "middle")
        at += 1.2
    free = 0.0
    for block in reversed(range(blocks)):
        svg.box(left + at * scale, 54, scale * 2.4 - 2, 34, GREEN)
        svg.text(left + (at + 1.2) * scale, 76, f"B{block}", 12, "#ffffff", "middle")
        at += 2.4
        begin = max(at, free)
        svg.line(left + at * scale - 1, 88, left + begin * scale + 6, 104, PALE, 1, arrow=True)
        svg.box(left + begin * scale, 104, scale * 2.2 - 2, 34, ORANGE)
        svg.text(left + (begin + 1.1) * scale, 126, f"bucket {blocks - block}", 11, INK, "middle")
        free = begin + 2.2
    svg.box(left + at * scale, 54, (free - at) * scale - 2, 34, "#f3f4f6", LINE)
    svg.text(left + (at + free) / 2 * scale, 76, "exposed", 11, PALE, "middle")
    svg.box(left + free * scale, 54, scale * 1.4, 34, VIOLET)
    svg.text(left + (free + .7) * scale, 76, "update", 11, "#ffffff", "middle")
    svg.text(left, 168, "A bucket leaves when the gradients of its parameters are complete. "
             "Only the last one is waited for.", 12, PALE)
    svg.text(left, 188, "On CPUs, without clipping, the update runs within the next forward instead "
             "(ddp_overlap_forward).", 12, PALE)
    return svg


def axis(svg, x0, y0, x1, y1, labels, ticks, scale_y):
    for y in ticks:
        at = scale_y(y)
        svg.line(x0, at, x1, at)
        svg.text(x0 - 8, at + 4, f"{y:g}" if y < 1e4 else f"{y:,.0f}", 11, PALE, "end")
    for x, label in labels:
        svg.text(x, y1 + 18, label, 11, PALE, "middle")


def all_reduce():
    """The measured all_reduce on one host, compared with MPI and gloo."""
    rows = table(LOG, "**all_reduce, 2 ranks**", ("bytes", "symmetric", "any", "Open MPI", "MPICH", "gloo"))
    svg = Svg(900, 400, "all_reduce on one host beside MPI and gloo")
    svg.text(24, 28, "all_reduce of 2 ranks on one host, microseconds of a call (both axes logarithmic)", 14, bold=True)
    svg.text(24, 46, "2 vCPUs of a Zen 3 EPYC, f32, 2026-11-22; table and method: docs/lab/2026-11-measurements.md", 11,
             PALE)
    x0, x1, y0, y1 = 70, 740, 66, 360
    across = [x0 + 24 + (x1 - x0 - 48) * number / (len(rows) - 1) for number in range(len(rows))]
    height = lambda value: y1 - (y1 - y0) * (math.log10(value) + .5) / 6.2
    axis(svg, x0, y0, x1, y1, [(x, row["bytes"]) for x, row in zip(across, rows)],
         [10.0 ** n for n in range(6)], height)
    last = []
    for name, label, color in (("symmetric", "Shoal, symmetric", BLUE), ("any", "Shoal, any memory", SKY),
                               ("Open MPI", "Open MPI 4.1.4", ORANGE), ("MPICH", "MPICH 4.0.2", RED),
                               ("gloo", "gloo", GREY)):
        points = [(x, height(float(row[name].replace(",", "")))) for x, row in zip(across, rows) if row[name]]
        svg.curve(points, color)
        last.append((points[-1][1], label, color))
    below = 0.0
    for y, label, color in sorted(last):
        below = max(y + 4, below + 16)
        svg.text(x1 + 8, below, label, 12, color, bold=True)
    return svg


def gpu():
    """GPT-2 on one H200, compared with PyTorch."""
    rows = table(LOG, "## GPU training: GPT-2 on one H200", ("model", "Shoal, tokens/s", "PyTorch", "ratio"))
    svg = Svg(900, 60 + 56 * len(rows), "GPT-2 on one H200 beside PyTorch")
    svg.text(24, 28, "GPT-2 training on one H200, tokens/s relative to PyTorch 2.11 with torch.compile", 14, bold=True)
    svg.text(24, 46, "bf16, 1,024 positions, 2026-11-22, commit 1a0675f", 11, PALE)
    for number, row in enumerate(rows):
        y, ratio = 64 + 52 * number, float(row["ratio"])
        svg.text(80, y + 26, row["model"], 13, anchor="end", bold=True)
        svg.box(90, y, 600 * ratio, 20, BLUE)
        svg.box(90, y + 20, 600, 18, GREY)
        svg.text(98, y + 14, f"Shoal {row['Shoal, tokens/s']}", 11, "#ffffff")
        svg.text(98, y + 33, f"PyTorch {row['PyTorch']}", 11, "#ffffff")
        svg.text(98 + 600 * ratio, y + 15, f"{ratio:.2f}x", 13, BLUE, bold=True)
    return svg


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = []
    for draw in (layers, schedules, mesh, memory, timeline, all_reduce, gpu):
        path = PICTURES / f"{draw.__name__}.svg"
        drawn = str(draw())
        if path.exists() and path.read_text() == drawn:
            continue
        stale.append(path.name)
        if not check:
            path.write_text(drawn)
            print(path)
    if check and stale:
        print(f"docs/pictures: {', '.join(stale)} would be drawn otherwise now; run tools/pictures.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
