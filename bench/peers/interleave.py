#!/usr/bin/env python3
"""Runs benchmark servers by turns, so that each is exposed to the same noise of the machine.

    interleave.py --rounds 5 shoal='build/release/... --serve' \\
        pytorch='oracle/bin/python bench/peers/pytorch_gpt2.py f32-compile'

A server prints one JSON line when it is ready, one for each line `round` on its input, and ends at
`quit` or the end of its input; pytorch_gpt2.py is one. Prints every answer with `name` and `round`
added, then for each name the medians and how many times as fast as every other name it is.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys


class Server:
    def __init__(self, text):
        self.name, _, command = text.partition("=")
        if not command:
            raise SystemExit(f"'{text}' is not NAME=COMMAND")
        self.process = subprocess.Popen(shlex.split(command), stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.rows = []

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with status {self.process.wait()}")
        return json.loads(line)

    def round(self, number):
        print("round", file=self.process.stdin, flush=True)
        row = dict(name=self.name, round=number, **self.answer())
        self.rows.append(row)
        print(json.dumps(row), flush=True)

    def median(self, field):
        return statistics.median(row[field] for row in self.rows)

    def stop(self):
        self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def summary(servers):
    for server in servers:
        seconds = server.median("step_seconds")
        row = dict(name=server.name, rounds=len(server.rows), median_step_seconds=seconds,
                   median_tokens_per_second=server.median("tokens_per_second"),
                   peak_rss_bytes=max(row["peak_rss_bytes"] for row in server.rows),
                   times_as_fast_as={other.name: round(other.median("step_seconds") / seconds, 3)
                                     for other in servers if other is not server})
        print(json.dumps(row), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("servers", nargs="+", metavar="NAME=COMMAND")
    args = parser.parse_args()
    servers = []
    try:
        for text in args.servers:  # one at a time, so that their warm-ups do not disturb each other
            servers.append(Server(text))
            print(servers[-1].name, servers[-1].answer(), file=sys.stderr, flush=True)
        for number in range(args.rounds):
            for server in servers:
                server.round(number)
        summary(servers)
    finally:
        for server in servers:
            server.stop()


if __name__ == "__main__":
    main()
