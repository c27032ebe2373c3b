#!/usr/bin/env python3
"""Fits a machine's file to measured steps: fit_machine.py MACHINE.json POINTS.csv... --shoal build/release/apps/shoal

Fits the fields of FIELDS to a quarter of the points of each file, then the factors of blocks that these points have.
The quarter is drawn by a hash of the row, so that it is the same in every run and the other points stay unseen.
`shoal plan validate` predicts: this script has no model of its own. Needs numpy and scipy. Writes MACHINE.json.
"""
import argparse
import csv
import json
import pathlib
import re
import statistics
import subprocess
import tempfile

import numpy
from scipy.optimize import least_squares

FIELDS = [("products", "efficiency"), ("products", "half_depth"), ("products", "attention_efficiency"),
          ("copy_efficiency",), ("network_efficiency",), ("network_rail_efficiency",), ("network_tensor_efficiency",),
          ("software", "pass_factor"), ("software", "head_factor"), ("software", "block_launch"),
          ("software", "launch_per_rank"), ("software", "sharpness"), ("software", "microbatch_fixed"),
          ("software", "step_fixed"), ("software", "optimizer_efficiency")]


def is_fitted(row):
    """True if a row belongs to the quarter that is fitted: FNV-1a of its text without the measured time, modulo 4.
    tests/apps/shoal_plan_test.cc uses the other rows."""
    value = 0xCBF29CE484222325
    for byte in ",".join(row[:-1]).encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value % 4 == 0


def split(path, folder):
    """Writes the fitted and the other rows of a file into two files. Returns their paths."""
    header, *rows = list(csv.reader(open(path, newline="")))
    paths = []
    for name, chosen in (("fitted", [r for r in rows if is_fitted(r)]), ("other", [r for r in rows if not is_fitted(r)])):
        paths.append(folder / f"{name}-{pathlib.Path(path).name}")
        with open(paths[-1], "w", newline="") as out:
            csv.writer(out).writerows([header, *chosen])
    return paths


def validate(shoal, machine, files, folder):
    """The points that `shoal plan validate` predicts for a machine."""
    path = folder / "machine.json"
    path.write_text(json.dumps(machine))
    points = []
    for file in files:
        output = subprocess.run([shoal, "plan", "validate", str(file), "--machine", str(path), "--json"], check=True,
                                capture_output=True, text=True).stdout
        points += json.loads(output)["points"]
    return points


def with_values(machine, values):
    """A copy of the machine with the fields of FIELDS set."""
    machine = json.loads(json.dumps(machine))
    for field, value in zip(FIELDS, values):
        where = machine
        for key in field[:-1]:
            where = where[key]
        where[field[-1]] = float(f"{value:.4g}")
    return machine


def values_of(machine):
    values = []
    for field in FIELDS:
        for key in field:
            value = machine[key] if key == field[0] else value[key]
        values.append(value)
    return numpy.array(values, dtype=float)


def block_factors(points, lengths):
    """The factor of each kind of block among the fitted points: the median error of the blocks' time."""
    kinds = {}
    for point, length in zip(points, lengths):
        others = point["predicted_ms"] - point["block_ms"]
        factor = (point["measured_ms"] - others) / point["block_ms"]
        key = (point["hidden"], point["tensor"], point["micro_batch"] * length)
        kinds.setdefault(key, []).append(factor)
    return [{"channels": c, "tensor": t, "tokens": n, "factor": round(statistics.median(found), 4)}
            for (c, t, n), found in sorted(kinds.items())]


def text_of(machine):
    """The machine as JSON, with each innermost list or object on one line if it is short."""
    def joined(match):
        line = re.sub(r"\s*\n\s*", " ", match[0])
        line = re.sub(r"([\[{]) | ([\]}])", r"\1\2", line)
        return line if len(line) <= 100 else match[0]

    return re.sub(r"[\[{][^\[\]{}]*[\]}]", joined, json.dumps(machine, indent=2)) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("machine", type=pathlib.Path)
    parser.add_argument("points", nargs="+")
    parser.add_argument("--shoal", default="build/release/apps/shoal")
    arguments = parser.parse_args()
    machine = json.loads(arguments.machine.read_text())
    machine["blocks"] = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        fitted, others = zip(*(split(path, folder) for path in arguments.points))

        def residuals(logs):
            points = validate(arguments.shoal, with_values(machine, numpy.exp(logs)), fitted, folder)
            errors = numpy.array([numpy.log(p["predicted_ms"] / p["measured_ms"]) for p in points])
            return numpy.concatenate([errors, 0.02 * (logs - start)])  # the latter holds idle fields in place

        # Shares of the maker's figures are at most 1.
        most = numpy.array([0 if "efficiency" in field[-1] else numpy.inf for field in FIELDS])
        start = numpy.minimum(numpy.log(values_of(machine)), most - 1e-2)
        found = least_squares(residuals, start, bounds=(-numpy.inf, most), loss="soft_l1", f_scale=0.05,
                              diff_step=1e-2, max_nfev=20)
        machine = with_values(machine, numpy.exp(found.x))
        lengths = [int(row["sequence length"]) for path in fitted for row in csv.DictReader(open(path, newline=""))]
        machine["blocks"] = block_factors(validate(arguments.shoal, machine, fitted, folder), lengths)
        arguments.machine.write_text(text_of(machine))
        for title, files in (("fitted", fitted), ("not fitted", others)):
            points = validate(arguments.shoal, machine, files, folder)
            errors = numpy.abs([p["predicted_ms"] / p["measured_ms"] - 1 for p in points])
            print(f"{title}: {len(errors)} points, median error {100 * numpy.median(errors):.1f} %, "
                  f"95th percentile {100 * numpy.percentile(errors, 95):.1f} %")


if __name__ == "__main__":
    main()
