#!/usr/bin/env python3
"""Runs Shoal's GPU bundle on a machine with one NVIDIA GPU and writes one report.

PIECE is unit (every kernel and model test on the device), multirank (ranks that share the GPU),
sanitize (compute-sanitizer over small shapes) or bench (compared with PyTorch, in the same call); several
may be named. Each ends within --limit seconds. report.json, in --out, holds the device, the
versions, every program's counts with the names of what failed, and every benchmark row; reports of
earlier pieces in --out are kept in it, and of earlier calls of bench the rows that are not measured
again. The results of issue 5's cases are printed last and are in the report under "shows".
PIECE.logs.tar.gz next to it (PIECE.2.logs.tar.gz ... for later calls) holds the programs' output.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bench
import libraries
import shows
import tests

HOME = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
PIECES = ["unit", "multirank", "sanitize", "bench"]


def describe_device():
    query = "name,driver_version,memory.total,clocks.sm,clocks.mem,power.limit"
    try:
        out = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
                             capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return {"error": str(problem)}
    if out.returncode != 0:
        return {"error": (out.stdout + out.stderr).strip().split("\n")[0]}
    values = [v.strip() for v in out.stdout.strip().split("\n")[0].split(",")]
    return dict(zip(query.split(","), values))


def describe_build():
    with open(os.path.join(HOME, "BUILD.json")) as file:
        return json.load(file)


def programs():
    folder = os.path.join(HOME, "bin")
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder))]


def dry_run(environment):
    """Without a GPU: lists what would run, and checks that every program starts."""
    problems = 0
    for program in programs():
        name = os.path.basename(program)
        if not name.endswith("_test"):
            done = subprocess.run([program, "--help"], env=environment, capture_output=True, text=True)
            print(f"{name:28} --help: {'ok' if done.returncode == 0 else done.stderr[:200]}")
            problems += done.returncode != 0
            continue
        names, problem = tests.list_tests(program, {**environment, "SHOAL_TEST_DEVICE": "cuda"})
        print(f"{name:28} {len(names)} tests {problem}")
        problems += not names
    return problems


def report_of(path):
    """The results of earlier calls. A file that an interrupted call left damaged is kept under another name."""
    try:
        with open(path) as file:
            return json.load(file)
    except FileNotFoundError:
        pass
    except ValueError as problem:
        os.replace(path, path + ".broken")
        print(f"{path} is no report ({problem}): kept as {path}.broken, and begun anew")
    return {"pieces": {}}


def keep(report, path):
    """Writes the file atomically, because the machine may be taken away at any time."""
    with open(path + ".part", "w") as file:
        json.dump(report, file, indent=1)
    os.replace(path + ".part", path)


def logs_of(out, piece):
    path, call = os.path.join(out, f"{piece}.logs.tar.gz"), 1
    while os.path.exists(path):
        call += 1
        path = os.path.join(out, f"{piece}.{call}.logs.tar.gz")
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pieces", nargs="*", choices=[*PIECES, []], metavar="PIECE")
    parser.add_argument("--out", default="gpu-report", help="folder for report.json and logs")
    parser.add_argument("--limit", type=float, default=0, help="seconds a piece may take; 0: its own")
    parser.add_argument("--jobs", type=int, default=0, help="test programs at once; 0: by cores")
    parser.add_argument("--filter", default="*", help="GoogleTest filter, for unit and multirank")
    parser.add_argument("--only", default="", help="regular expression: programs, tools or rows to run")
    parser.add_argument("--libraries", choices=["python", "system"], default="python",
                        help="whose CUDA libraries to prefer: PyTorch's packages or /usr/local/cuda")
    parser.add_argument("--no-gpu", action="store_true",
                        help="list what would run and check that everything loads")
    arguments = parser.parse_args()
    environment, chosen, problems = libraries.environment_for(programs(), HOME, arguments.libraries)
    print("\n".join(chosen))
    for program, missing in problems.items():
        print(f"{program}: does not load: {missing}")
    if arguments.no_gpu:
        sys.exit(1 if dry_run(environment) + len(problems) else 0)
    device = describe_device()
    print(", ".join(f"{k} {v}" for k, v in device.items()))
    if "error" in device:
        sys.exit("run: this machine has no NVIDIA GPU that nvidia-smi sees; --no-gpu checks the bundle")
    if problems:
        sys.exit("run: the bundle does not load here (above)")
    if not arguments.pieces:
        sys.exit(f"run: name pieces: {' '.join(PIECES)}")
    os.makedirs(arguments.out, exist_ok=True)
    path = os.path.join(arguments.out, "report.json")
    report = report_of(path)
    report.update(device=device, build=describe_build(), libraries=chosen, host=platform.platform())
    ok = True
    for piece in arguments.pieces:
        began = time.time()
        result = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
        work = os.path.join(HOME, "work", piece)
        shutil.rmtree(work, ignore_errors=True)
        os.makedirs(work)
        context = tests.Context(home=HOME, environment=environment, out=work,
                                limit=arguments.limit, jobs=arguments.jobs or os.cpu_count() // 2 or 1,
                                filter=arguments.filter, only=arguments.only)
        run = {"unit": tests.unit, "multirank": tests.multirank, "sanitize": tests.sanitize,
               "bench": bench.run}[piece]
        result.update(run(context))
        result["seconds"] = round(time.time() - began, 1)
        ok = ok and result.get("ok", True)
        if piece == "bench":
            result = bench.with_earlier(result, report["pieces"].get(piece, {}))
        report["pieces"][piece] = result
        report["shows"] = shows.cases(report)
        keep(report, path)
        with tarfile.open(logs_of(arguments.out, piece), "w:gz") as tar:
            tar.add(work, piece)
    shows.print_cases(report["shows"])
    print(f"report: {path}")
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
