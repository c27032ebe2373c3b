#!/usr/bin/env python3
"""Compares Shoal's collectives with Open MPI, MPICH and gloo, by turns in one call.

    bench/collectives/compare.py --ranks 2 --operation all_reduce --sizes 8,64k,1M,16M
    sudo bench/collectives/compare.py --cluster hosts=4,ranks=2,rails=1,rate=1gbit --sizes 4M,64M

Each round runs every contestant once over all sizes (so all are exposed to the same noise). The figure for a size
is the median over the rounds of the mean time of a call. Shoal runs on symmetric memory and on user
buffers. On the emulated cluster (bench/cluster/emulate) the bound is the least time in which the bytes
that must leave a host can do so at the measured goodput of one TCP stream a rail.
"""

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
GLOO_ALGORITHMS = {"all_reduce": ["", ":bcube", ":halving_doubling", ":ring_chunked"]}
BUS = {"all_reduce": lambda n: 2 * (n - 1) / n, "broadcast": lambda n: 1}
IN_PLACE = ("all_reduce", "broadcast")  # as the peers' programs do


def parse_bytes(text):
    match = re.fullmatch(r"(\d+)([kKmMgG]?)", text)
    if not match:
        raise SystemExit(f"compare: '{text}' is not a size; write bytes, or a number with k, M or G")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2].lower()]


def parse_cluster(text):
    cluster = {"hosts": "4", "ranks": "2", "rails": "1", "rate": "1gbit", "congestion": "cubic"}
    for pair in text.split(","):
        name, _, value = pair.partition("=")
        if name not in cluster or not value:
            raise SystemExit(f"compare: --cluster {text}: hosts=H,ranks=L,rails=R,rate=RATE,"
                             "congestion=NAME")
        cluster[name] = value
    return cluster


class Runner:
    """Starts a program on all ranks, on this host or on the emulated cluster."""

    def __init__(self, arguments):
        self.cluster = parse_cluster(arguments.cluster) if arguments.cluster else None
        self.ranks = arguments.ranks
        if self.cluster:
            self.ranks = int(self.cluster["hosts"]) * int(self.cluster["ranks"])
        self.timeout = arguments.timeout
        self.details = {}  # (contestant, size) -> what its last run used
        self.environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1",
                                OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")

    def command(self, launcher, program):
        if self.cluster:
            return [f"{ROOT}/bench/cluster/emulate", "--hosts", self.cluster["hosts"],
                    "--ranks-per-host", self.cluster["ranks"], "--rails", self.cluster["rails"],
                    "--rate", self.cluster["rate"], "--congestion", self.cluster["congestion"],
                    "--launcher", launcher, "--"] + program
        crowded = self.ranks > len(os.sched_getaffinity(0))
        if launcher == "mpich":
            return ["mpirun.mpich", "-n", str(self.ranks)] + program
        # Open MPI's manual advises yielding only if ranks outnumber the cores.
        return ["mpirun.openmpi", "-n", str(self.ranks), "--bind-to", "none", "--oversubscribe",
                "--mca", "mpi_yield_when_idle", "1" if crowded else "0"] + program

    def output(self, launcher, program, environment=()):
        result = subprocess.run(self.command(launcher, program), text=True, timeout=self.timeout,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env=dict(self.environment, **dict(environment)))
        if result.returncode != 0:
            raise RuntimeError(f"{shlex.join(program)} ended with {result.returncode}:\n"
                               f"{result.stderr[-2000:]}")
        return result.stdout

    def rows(self, launcher, program, environment=()):
        printed = self.output(launcher, program, environment)
        rows = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
        if any(row.get("wrong") for row in rows):  # from the peers; each checks one call
            raise RuntimeError(f"wrong results from {shlex.join(program)}")
        return rows

    def goodput(self):
        command = self.command("plain", ["true"])
        command.insert(1, "--goodput")
        text = subprocess.run(command, text=True, check=True, stdout=subprocess.PIPE,
                              env=self.environment).stdout
        return json.loads(text.splitlines()[0])["goodput_bytes_per_second"]


def contestants(arguments, runner, sizes):
    """name -> function that returns {bytes: seconds}"""
    build = os.path.abspath(arguments.build)
    listed = [str(size) for size in sizes]
    operation, iterations = arguments.operation, str(arguments.iterations)
    place = "in_place" if operation in IN_PLACE else "out_of_place"

    def shoal(label, memory, extra):
        program = [f"{build}/apps/shoal-collective-perf", operation, "--sizes", ",".join(listed),
                   "-n", iterations, "--memory", memory, "-F", "json", "--stats",
                   "-c", "1" if arguments.check else "0",
                   "--place", "in" if place == "in_place" else "out"] + shlex.split(extra)

        def run():
            rows = runner.rows("open-mpi", program)
            wrong = sum(row[place]["nwrong"] or 0 for row in rows)
            if wrong:
                raise RuntimeError(f"{wrong} wrong elements from {shlex.join(program)}")
            for size, row in zip(sizes, rows):
                runner.details[label, size] = {
                    "algorithm": row[place]["algorithm"], "transport": row["transport"],
                    "p99_us": round(row[f"{place}_per_iter"]["p99_us"], 3)}
            return {size: row[place]["time"] * 1e-6 for size, row in zip(sizes, rows)}
        return run

    def mpi(name, launcher):
        program = [f"{build}/bench/peers/{name}", operation, iterations] + listed
        # MPICH's ch4 spins. Its manual describes no yielding beyond the kernel's.
        return lambda: {row["bytes"]: row["seconds"] for row in runner.rows(launcher, program)}

    def gloo(algorithm):
        def run():
            with tempfile.TemporaryDirectory() as store:
                program = [f"{build}/bench/peers/shoal_peer_gloo", store, operation + algorithm,
                           iterations] + listed
                interface = {"GLOO_INTERFACE": "eth0"} if runner.cluster else {}
                return {row["bytes"]: row["seconds"]
                        for row in runner.rows("open-mpi", ["env"] + [f"{k}={v}" for k, v in interface.items()]
                                               + program)}
        return run

    made = {}
    for memory in arguments.memory.split(","):
        made[f"shoal {memory}"] = shoal(f"shoal {memory}", memory, "")
    for variant in arguments.variant:
        name, _, extra = variant.partition("=")
        made[f"shoal {name}"] = shoal(f"shoal {name}", "symmetric", extra)
    missing = []
    for peer in filter(None, arguments.peers.split(",")):
        program = {"open-mpi": "shoal_peer_open_mpi", "mpich": "shoal_peer_mpich",
                   "gloo": "shoal_peer_gloo"}.get(peer)
        if not program:
            raise SystemExit(f"compare: '{peer}' is not a peer; open-mpi, mpich, gloo")
        if not os.path.exists(f"{build}/bench/peers/{program}"):
            missing.append(peer)
        elif peer == "gloo":
            for algorithm in GLOO_ALGORITHMS.get(operation, [""]):
                made[f"gloo{algorithm}"] = gloo(algorithm)
        else:
            made[peer] = mpi(program, peer)
    if missing:
        print(f"compare: not built here, so not compared: {', '.join(missing)}", file=sys.stderr)
    return made


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
    return names[0] if names else "unknown"


def commit():
    result = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12"], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return result.stdout.strip() or "unknown"


def bound(arguments, runner, bytes_, goodput):
    """Least seconds of the operation between hosts: the bytes that must leave the busiest one."""
    hosts, local = int(runner.cluster["hosts"]), int(runner.cluster["ranks"])
    share = {"all_reduce": 2 * (hosts - 1) / hosts, "broadcast": 1,
             "all_to_all": local * (hosts - 1) / hosts}.get(arguments.operation, (hosts - 1) / hosts)
    return share * bytes_ / (goodput * int(runner.cluster["rails"]))


def report(arguments, runner, sizes, times, goodput):
    peers = [name for name in times if not name.startswith("shoal")]
    bus = BUS.get(arguments.operation, lambda n: (n - 1) / n)(runner.ranks)
    for size in sizes:
        medians = {name: statistics.median(run[size] for run in runs)
                   for name, runs in times.items() if all(size in run for run in runs) and runs}
        fastest = min((medians[name], name) for name in peers if name in medians) if peers else None
        row = {"operation": arguments.operation, "bytes": size, "ranks": runner.ranks, "dtype": "f32",
               "rounds": len(next(iter(times.values()))), "verified": arguments.check,
               "machine": machine(), "commit": commit()}
        if runner.cluster:
            row["cluster"] = runner.cluster
            row["goodput_bytes_per_second"] = goodput
            row["bound_us"] = round(bound(arguments, runner, size, goodput) * 1e6, 1)
        row["us"] = {name: round(seconds * 1e6, 3) for name, seconds in medians.items()}
        row["busbw_GBps"] = {name: round(size * bus / seconds * 1e-9, 3)
                             for name, seconds in medians.items()}
        row["ran"] = {name: runner.details[name, size] for name in medians
                      if (name, size) in runner.details}
        if runner.cluster:
            row["of_bound"] = {name: round(row["bound_us"] / (seconds * 1e6), 3)
                               for name, seconds in medians.items()}
        if fastest:
            row["best_peer"] = fastest[1]
            row["times_as_fast"] = {name: round(fastest[0] / seconds, 3)
                                    for name, seconds in medians.items() if name.startswith("shoal")}
        if arguments.json:
            print(json.dumps(row), flush=True)
            continue
        cells = [f"{size:>11}"]
        for name, seconds in medians.items():
            cells.append(f"{name} {seconds * 1e6:.2f} us ({size * bus / seconds * 1e-9:.2f} GB/s)")
        print(" | ".join(cells))
        notes = []
        for name, ratio in row.get("times_as_fast", {}).items():
            notes.append(f"{name}: {ratio:.2f}x of {row['best_peer']}")
        if runner.cluster:
            least = row["bound_us"] / 1e6
            notes += [f"{name}: {medians[name] / least:.3f} times the bound"
                      for name in medians if name.startswith("shoal")]
        print(" " * 11 + "   " + "; ".join(notes), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operation", default="all_reduce",
                        choices=["all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"])
    parser.add_argument("--ranks", type=int, default=2, help="on this host (default 2)")
    parser.add_argument("--cluster", help="emulated: hosts=H,ranks=L,rails=R,rate=RATE,congestion=NAME; what is "
                             "left out: 4, 2, 1, 1gbit, cubic")
    parser.add_argument("--sizes", default="8,512,4k,32k,64k,256k,1M,4M,16M,64M")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=0, help="0: about 0.2 s of them")
    parser.add_argument("--memory", default="symmetric,user", help="Shoal's buffers")
    parser.add_argument("--variant", action="append", default=[], metavar="NAME=OPTIONS",
                        help="one more Shoal, with these options of shoal-collective-perf")
    parser.add_argument("--peers", default="open-mpi,mpich,gloo")
    parser.add_argument("--build", default=f"{ROOT}/build/release")
    parser.add_argument("--timeout", type=float, default=600, help="seconds of one contestant's turn")
    parser.add_argument("--no-check", dest="check", action="store_false")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    runner = Runner(arguments)
    sizes = [parse_bytes(text) for text in arguments.sizes.split(",")]
    goodput = runner.goodput() if runner.cluster else None
    entrants = contestants(arguments, runner, sizes)
    times = {name: [] for name in entrants}
    for number in range(arguments.rounds):
        for name in list(entrants):
            print(f"round {number + 1}/{arguments.rounds}: {name}", file=sys.stderr)
            try:
                times[name].append(entrants[name]())
            except (RuntimeError, subprocess.TimeoutExpired) as problem:
                if name.startswith("shoal"):
                    raise SystemExit(f"compare: {name}: {problem}")
                print(f"compare: {name} is left out: {problem}", file=sys.stderr)
                del entrants[name], times[name]
    report(arguments, runner, sizes, times, goodput)


if __name__ == "__main__":
    main()
