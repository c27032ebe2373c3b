#!/usr/bin/env python3
"""One long TCP stream between two emulated hosts: prints bytes per second as the receiver saw them.

goodput.py --serve ADDRESS      receives once
goodput.py --connect ADDRESS    sends for SECONDS, prints the receiver's figure
"""

import argparse
import socket
import struct
import time

PORT = 29399
SECONDS = 3.0
WARM_UP = 0.5  # the shaper's bucket is full at first, and TCP's window opens


def serve(address):
    with socket.create_server((address, PORT)) as listener:
        connection, _ = listener.accept()
    buffer = bytearray(1 << 20)
    start = time.monotonic()
    counted_from = counted = 0
    while read := connection.recv_into(buffer):
        now = time.monotonic()
        if not counted_from:
            if now - start > WARM_UP:
                counted_from = now
        else:
            counted += read
            last = now
    rate = counted / (last - counted_from)
    connection.sendall(struct.pack("d", rate))


def connect(address):
    deadline = time.monotonic() + 10
    while True:
        try:
            connection = socket.create_connection((address, PORT), timeout=10)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    payload = bytes(1 << 20)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        connection.sendall(payload)
    connection.shutdown(socket.SHUT_WR)
    print(round(struct.unpack("d", connection.recv(8))[0]))


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
group = parser.add_mutually_exclusive_group(required=True)
group.add_argument("--serve", metavar="ADDRESS")
group.add_argument("--connect", metavar="ADDRESS")
arguments = parser.parse_args()
if arguments.serve:
    serve(arguments.serve)
else:
    connect(arguments.connect)
