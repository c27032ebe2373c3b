#!/usr/bin/env python3
"""Compares a data-parallel step of Shoal's Reducer with PyTorch's DistributedDataParallel over gloo, by turns.

    sudo bench/collectives/ddp.py --python PYTHON --cluster hosts=4,ranks=2,rails=1,rate=1gbit

Both sides reduce the gradients of the same model (gpt2: 124M, albert: 11.7M, sizes from
shoal_bench_ddp_step --describe) in buckets of the same bytes over the same network. Every layer sleeps
equally long in forward and backward instead of computing, since the ranks of an emulated cluster share this
machine's cores. Each round runs each contestant once; the figure is the median of all rounds' steps.

--compute gives the sleep of a step, forward and backward together, as shares of the least time in which the gradients
can cross the network (on a host: as seconds); a third of it is the forward. exposed is the step without its sleeps,
hidden_share the share of the communication that is not exposed: of that least time, or of the contestant's own step
at --compute 0 if that was measured and is longer. least_seconds is a step in which only the sleeps and the network
take time, with gloo's ring over all ranks for PyTorch. bound_of_ratio divides PyTorch's by Shoal's: no contestant can
lead by more, unless the other misses its own bound. PYTHON is a virtual environment's with torch; without it only
Shoal runs.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile

from compare import ROOT, Runner


def contestants(arguments, runner, model, described, forward, backward):
    """name -> function that returns the rows of its timed steps"""
    sleeps = ["--forward-ms", f"{forward * 1e3:.3f}", "--backward-ms", f"{backward * 1e3:.3f}",
              "--bucket-mb", str(arguments.bucket_mb), "--steps", str(arguments.steps)]
    program = [f"{os.path.abspath(arguments.build)}/bench/collectives/shoal_bench_ddp_step", model] + sleeps
    made = {}
    own = [] if arguments.only_pytorch else ["shoal=", "shoal+forward=--overlap-forward"]
    for variant in arguments.variant or own:
        name, _, extra = variant.partition("=")
        if forward == 0 and "--overlap-forward" in extra:
            continue
        made[name] = lambda extra=extra: runner.rows("open-mpi", program + extra.split())
    if arguments.python:
        peer = ["env", "MASTER_ADDR=10.77.0.10" if runner.cluster else "MASTER_ADDR=127.0.0.1"]
        peer += [f"GLOO_SOCKET_IFNAME={'eth0' if runner.cluster else 'lo'}", arguments.python,
                 f"{ROOT}/bench/peers/pytorch_ddp.py", described] + sleeps
        # emulate's plain launcher sets torchrun's variables, and mpirun sets Open MPI's.
        launcher = "plain" if runner.cluster else "open-mpi"
        made["pytorch"] = lambda: runner.rows(launcher, peer)
        if arguments.package:
            made["pytorch, shoal"] = lambda: runner.rows(launcher, ["env", f"PYTHONPATH={arguments.package}",
                                                                    *peer, "--backend", "shoal"])
    return made


def least_step(layers, forward, backward, bytes_per_second, early=False):
    """seconds of a step of `layers`, bytes of gradients in the order of backward, on a network that is never
    idle while a layer's gradients are ready. It sends those first that the next forward needs first. early: the
    forward begins a layer when its gradients have arrived, not when all have."""
    count = len(layers)
    ready = [(i + 1) * backward / count for i in range(count)]
    left = [size / bytes_per_second for size in layers]
    come = list(ready)
    now = 0.0
    while any(left):
        waiting = [i for i in range(count) if left[i] and ready[i] <= now]
        if not waiting:
            now = min(ready[i] for i in range(count) if left[i])
            continue
        first = max(waiting)  # the last layer in backward is the first in forward
        until = min([now + left[first]] + [ready[i] for i in range(first + 1, count) if ready[i] > now])
        left[first] = 0.0 if until == now + left[first] else left[first] - (until - now)
        now = come[first] = until
    if not early:
        return max(come + [backward]) + forward
    now = backward
    for i in reversed(range(count)):
        now = max(now, come[i]) + forward / count
    return now


def measure(arguments, made):
    rows = {name: [] for name in made}
    for number in range(arguments.rounds):
        for name, run in made.items():
            print(f"round {number + 1}/{arguments.rounds}: {name}", file=sys.stderr)
            new = run()
            if not all(row["verified"] for row in new):
                raise SystemExit(f"ddp: {name}: wrong sums")
            rows[name] += new
    return rows


def summary(arguments, runner, model, rows, alone, bound):
    compute = rows[0]["forward_seconds"] + rows[0]["backward_seconds"]
    step = statistics.median(row["step_seconds"] for row in rows)
    exposed = max(0.0, step - compute)
    made = {"operation": "ddp_step", "peer": rows[0]["peer"], "model": model, "bytes": rows[0]["bytes"],
            "ranks": runner.ranks, "dtype": "f32", "bucket_bytes": rows[0]["bucket_bytes"],
            "compute_seconds": round(compute, 4), "p50_seconds": round(step, 4),
            "worst_seconds": round(max(row["step_seconds"] for row in rows), 4),
            "exposed_seconds": round(exposed, 4),
            "steps": len(rows)}
    if max(alone, bound) > 0:
        made["hidden_share"] = round(max(0.0, 1 - exposed / max(alone, bound)), 3)
    if runner.cluster:
        made["cluster"], made["bound_seconds"] = runner.cluster, round(bound, 4)
    return made


def run_model(arguments, runner, model, goodput):
    program = f"{os.path.abspath(arguments.build)}/bench/collectives/shoal_bench_ddp_step"
    text = subprocess.run([program, model, "--describe"], check=True, text=True,
                          stdout=subprocess.PIPE).stdout
    with tempfile.NamedTemporaryFile("w", suffix=".json") as described:
        described.write(text)
        described.flush()
        layers = [sum(4 * math.prod(parameter["shape"]) for parameter in layer["parameters"])
                  for layer in json.loads(text)["layers"]]
        bound, rate, ring_rate = 0.0, 0.0, 0.0
        if runner.cluster:
            hosts, wires = int(runner.cluster["hosts"]), goodput * int(runner.cluster["rails"])
            rate = wires / (2 * (hosts - 1) / hosts)
            ring_rate = goodput / (2 * (runner.ranks - 1) / runner.ranks)  # gloo has one interface
            bound = sum(layers) / rate
        alone = {}  # without sleeps: the communication that could be hidden
        for share in sorted(float(text) for text in arguments.compute.split(",")):
            compute = share * (bound if runner.cluster else 1.0)
            made = contestants(arguments, runner, model, described.name, compute / 3, compute * 2 / 3)
            rows = measure(arguments, made)
            peer = statistics.median(row["step_seconds"] for row in rows["pytorch"]) if "pytorch" in rows else None
            for name in made:
                middle = statistics.median(row["step_seconds"] for row in rows[name])
                if share == 0:
                    alone[name] = middle
                line = summary(arguments, runner, model, rows[name],
                               alone.get(name, 0.0), bound)
                line = {**line, "contestant": name, "compute_of_bound": share}
                if runner.cluster:
                    ring = least_step(layers, compute / 3, compute * 2 / 3, ring_rate)
                    early = rows[name][0].get("overlap_forward", False)
                    least = ring if name == "pytorch" else least_step(layers, compute / 3, compute * 2 / 3,
                                                                      rate, early)
                    line["least_seconds"] = round(least, 4)
                    if name != "pytorch":
                        line["bound_of_ratio"] = round(ring / least, 3)
                if peer and name != "pytorch":
                    line["times_as_fast_as_pytorch"] = round(peer / middle, 3)
                print(json.dumps(line), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="gpt2,albert")
    parser.add_argument("--ranks", type=int, default=2, help="on this host (default 2)")
    parser.add_argument("--cluster", help="emulated: hosts=H,ranks=L,rails=R,rate=RATE")
    parser.add_argument("--goodput", type=float, help="bytes a second of one stream, if known; else measured")
    parser.add_argument("--compute", default="0,0.5,1", help="shares of the bound (a host: seconds)")
    parser.add_argument("--bucket-mb", type=float, default=25)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2, help="timed steps a round")
    parser.add_argument("--variant", action="append", default=[], metavar="NAME=OPTIONS",
                        help="a Shoal with these options of shoal_bench_ddp_step, instead of the two")
    parser.add_argument("--python", help="with torch; PyTorch's step is run beside ours")
    parser.add_argument("--package", metavar="DIRECTORY",
                        help="with the package shoal, such as build/release/python: PyTorch's step over its "
                        "backend is run too")
    parser.add_argument("--only-pytorch", action="store_true", help="leave Shoal's own step out")
    parser.add_argument("--build", default=f"{ROOT}/build/release")
    parser.add_argument("--timeout", type=float, default=600, help="seconds of one contestant's turn")
    arguments = parser.parse_args()
    runner = Runner(arguments)
    goodput = (arguments.goodput or runner.goodput()) if runner.cluster else None
    for model in arguments.models.split(","):
        run_model(arguments, runner, model, goodput)


if __name__ == "__main__":
    main()
