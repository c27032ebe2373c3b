"""A module of the job's source_dir."""
import os
import socket
import time


def meet() -> list[int]:
    """All ranks meet at the address of torchrun's variables, and rank 0 gets the list of ranks."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if rank == 0:
        with socket.create_server(("", address[1]), backlog=size) as server:
            server.settimeout(60)
            others = [server.accept()[0] for _ in range(size - 1)]
        seen = sorted(int.from_bytes(other.recv(4), "big") for other in others)
        for other in others:
            other.sendall(b"go")
        return [0, *seen]
    for _ in range(600):
        try:
            with socket.create_connection(address, timeout=60) as master:
                master.sendall(rank.to_bytes(4, "big"))
                assert master.recv(2) == b"go"
            return []
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise TimeoutError(f"rank 0 is not at {address}")
