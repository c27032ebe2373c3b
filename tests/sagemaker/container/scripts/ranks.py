"""Stands in for a training script: records its arguments and variables, or fails, or waits to be stopped."""
import argparse
import json
import os
import pathlib
import signal
import socket
import sys
import time

import helper

parser = argparse.ArgumentParser()
parser.add_argument("--mode", choices=["record", "fail", "stop", "die"], default="record")
parser.add_argument("--needs", default="")
arguments, _ = parser.parse_known_args()
rank = int(os.environ.get("RANK", 0))
place = pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"])
told = []
if arguments.mode == "stop":  # before the ranks meet, so that no signal comes too early
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
met = helper.meet() if "RANK" in os.environ else []


def answer() -> None:
    if rank == int(os.environ.get("WORLD_SIZE", 1)) - 1:
        raise ValueError(f"rank {rank} has\nno answer")
    time.sleep(60)


def wait_for_the_end() -> None:
    print("ready", flush=True)
    while not told:
        time.sleep(0.05)
    time.sleep(2 if rank == 0 else 0)  # the others end before rank 0 has saved
    (place / f"saved-{rank}").write_text("all")
    sys.exit(143)


if arguments.mode == "fail":
    answer()
elif arguments.mode == "stop":
    wait_for_the_end()
elif arguments.mode == "die" and rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
for module in filter(None, arguments.needs.split(",")):
    __import__(module)
(place / f"rank-{rank}.json").write_text(json.dumps({
    "arguments": sys.argv[1:], "directory": os.getcwd(), "host": socket.gethostname(), "met": met,
    "path": sys.path, "variables": dict(os.environ)}))
