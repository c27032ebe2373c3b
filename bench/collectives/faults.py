#!/usr/bin/env python3
"""Faults of a running job: the time until the last survivor has ended, and whether each names the fault.

    sudo bench/collectives/faults.py [--build build/release] [--rounds 3] [PLACE...]

A fault (the rows) strikes the last of the ranks in the sixth all_reduce; tests/collectives/fault_ranks.cc
plays it. PLACE: shm (four ranks of one host), tcp (two named hosts of two, on this machine), efa (the same
over the provider of tests/support/efa_provider), cluster (4 emulated hosts of two ranks, bench/cluster,
which needs root). Cells: the median of the rounds, in seconds from the fault to the end of the last
survivor, and the longest. Exit status 1, with a line each, if a survivor ended with a status other than
1, too late, or without naming the rank and the operation, or if files or processes remain.
"""
import argparse
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

WAITS = 3.5  # deadline of the survivors' waits, tests/collectives/fault_deadlines.h
NAMED_WITHIN = 1.0  # for other faults: reported as soon as they are known
# The victim's action -> the text that every survivor reports.
SCENARIOS = {
    "kill": " died",
    "cut": "cannot be reached",
    "stall": "no heartbeat",
    "count": "called all_reduce of 199999 f32, max",
    "dtype": "called all_reduce of 200000 i32, max",
    "operation": "called reduce_scatter of 7 f32, sum",
    "order": "called barrier",
}
PLACES = {"shm": 4, "tcp": 4, "efa": 4, "cluster": 8}  # ranks


def play(place, build, directory, names):
    ranks = str(build / "tests/collectives/collectives_fault_ranks")
    command = [ranks, directory, *names]
    environment = dict(os.environ)
    if place == "cluster":
        environment["FAULT_TRANSPORT"] = "tcp"
        emulate = ["bench/cluster/emulate", "--hosts", "4", "--ranks-per-host", "2", "--launcher", "plain", "--"]
        return [subprocess.Popen(emulate + command, env=environment, stderr=subprocess.DEVNULL)]
    if place == "efa":
        environment["FI_PROVIDER_PATH"] = str(build.resolve() / "tests/support/efa_provider")
        environment["SHOAL_TEST_EFA_INTERFACES"] = "lo"
    if place != "shm":
        environment["FAULT_TRANSPORT"] = place
    processes = []
    for rank in range(PLACES[place]):
        own = {"RANK": str(rank), "WORLD_SIZE": str(PLACES[place])}
        own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "30500"}
        if place != "shm":
            own["SHOAL_HOST_NAME"] = f"host{rank // 2}"
        processes.append(subprocess.Popen(command, env=environment | own, stderr=subprocess.DEVNULL))
    return processes


def names_the_fault(what, victim, said):
    rank = re.search(rf"\branks? (\d+, )*{victim}\b", said) or what == "cut" and "cannot be reached" in said
    if what == "stall" and "did not finish" in said:  # shared memory: no heartbeats, but names the missing rank
        return bool(rank)
    return bool(rank) and SCENARIOS[what] in said and "all_reduce of 200000" in said


def survivors(place, directory, name):
    """(rank, exit status or -signal, seconds since the fault, its output) of each."""
    what, victim = name.split(":")
    for rank in range(PLACES[place]):
        if what in ("kill", "stall") and rank == int(victim):
            continue
        first, _, said = (pathlib.Path(directory) / f"{name}.{rank}").read_text().partition("\n")
        status, signal, seconds = first.split()
        yield rank, int(status) if signal == "0" else -int(signal), float(seconds), said


def left_behind(directory):
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    found = [line for line in listed.splitlines() if line.startswith("shoal-")]
    found += [str(file) for file in pathlib.Path("/dev/shm").glob("*shoal*")]
    for process in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if directory.encode() in process.read_bytes():
                found.append(str(process.parent))
        except OSError:
            pass  # ended in the meantime
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("places", nargs="*", metavar="PLACE", help=f"of {', '.join(PLACES)} (default: all)")
    options = parser.parse_args()
    places = options.places or list(PLACES)
    if unknown := set(places) - set(PLACES):
        parser.error(f"no such place: {', '.join(unknown)}")
    times, wrong = {}, []
    for place in [place for _ in range(options.rounds) for place in places]:
        victim = PLACES[place] - 1
        names = [f"{what}:{victim}" for what in SCENARIOS if what != "cut" or place == "cluster"]
        with tempfile.TemporaryDirectory(prefix="shoal-faults-") as directory:
            before = left_behind(directory)
            if any([process.wait() for process in play(place, options.build, directory, names)]):
                sys.exit(f"{place}: the ranks did not run; is collectives_fault_ranks built?")
            for name in names:
                what = name.split(":")[0]
                ends = list(survivors(place, directory, name))
                times.setdefault((what, place), []).append(max(seconds for _, _, seconds, _ in ends))
                bound = WAITS + 2 if what in ("stall", "cut") else NAMED_WITHIN
                wrong += [
                    f"{place}, {name}, rank {rank}: exit status {status} after {seconds} s: {said}"
                    for rank, status, seconds, said in ends
                    if status != 1 or seconds > bound or not names_the_fault(what, victim, said)
                ]
            wrong += [f"{place}: left behind: {what}" for what in left_behind(directory) if what not in before]
    print("| fault | " + " | ".join(places) + " |\n|---|" + "---|" * len(places))
    for what in SCENARIOS:
        cells = [times.get((what, place)) for place in places]
        shown = (f"{statistics.median(c):.2f} ({max(c):.2f})" if c else "" for c in cells)
        print(f"| {what} | {' | '.join(shown)} |")
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
