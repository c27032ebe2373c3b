#!/usr/bin/env python3
"""Writes tests/golden/tensorboard.json: scalars, and the bytes of the `tensorboard` package's event file for them.
`check DIRECTORY` reads the event files that Shoal wrote there with that package, including checksums, and prints
each scalar.
"""
import argparse
import json
import pathlib
import tempfile

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCALARS = [("train/loss", 2.5, 10), ("train/learning_rate", 5e-05, 10), ("train/grad_norm", 1.0e10, 129),
           ("eval/loss", -0.0, 0), ("train/epoch", 0.1, 1 << 40), ("a" * 200, float("1e-40"), 1)]


def make(output):
    start = 1700000000.25
    events = [{"tag": tag, "value": value, "step": step, "wall_time": start + i} for i, (tag, value, step) in enumerate(SCALARS)]
    with tempfile.TemporaryFile() as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=start, file_version="brain.Event:2").SerializeToString())
        for event in events:
            value = Summary.Value(tag=event["tag"], simple_value=event["value"])
            writer.write(Event(wall_time=event["wall_time"], step=event["step"],
                               summary=Summary(value=[value])).SerializeToString())
        file.seek(0)
        data = file.read()
    output.write_text(json.dumps({"wall_time": start, "events": events, "file": data.hex()}) + "\n")


def check(directory):
    events = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    events.Reload()
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            print(json.dumps({"tag": tag, "step": event.step, "value": event.value}))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", nargs="?", choices=["write", "check"], default="write")
    parser.add_argument("directory", nargs="?", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.command == "check":
        check(arguments.directory)
    else:
        make(ROOT / "tests/golden/tensorboard.json")


if __name__ == "__main__":
    main()
