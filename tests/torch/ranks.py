"""Ranks as forked processes of one host, each in a process group that it creates itself."""
import contextlib
import multiprocessing
import os
import tempfile
import traceback
from datetime import timedelta

import torch
import torch._dynamo  # optimizers import it at their first use: each rank would, for 2 s of processor
import torch.distributed as dist

import shoal.torch  # registers the backend

PYTORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
CONTEXT = multiprocessing.get_context("fork")
_CASES_OF_A_START = 10


def _rank(body, backend, rank, size, path, timeout, pipe, arguments):
    torch.set_num_threads(1)
    try:
        dist.init_process_group(backend, init_method=f"file://{path}", rank=rank, world_size=size,
                                timeout=timedelta(seconds=timeout))
        result = body(rank, size, *arguments)
        if backend != "gloo":
            dist.destroy_process_group()
        pipe.send((True, result))
        if backend == "gloo":  # peers may still use its connections: keep it until all have a result
            pipe.recv()
    except BaseException as problem:  # the parent reports it
        pipe.send((False, f"{type(problem).__name__}: {problem}\n{traceback.format_exc()}"))
    pipe.close()
    os._exit(0)


@contextlib.contextmanager
def raises(kind, *texts):
    """The block must raise an error of this kind whose message contains each of the texts."""
    try:
        yield
    except kind as problem:
        for text in texts:
            assert text in str(problem), f"{problem} does not say {text}"
    else:
        raise AssertionError(f"no {kind.__name__} that says {texts}")


class Failed(AssertionError):
    """At least one rank failed; `texts` has the error of each failed rank."""

    def __init__(self, texts):
        super().__init__("\n".join(f"rank {rank}: {text}" for rank, text in texts.items()))
        self.texts = texts


def start(size, body, *arguments, backend="shoal", timeout=30, path):
    """The processes, and the pipes for their results."""
    started = []
    for rank in range(size):
        receiver, sender = CONTEXT.Pipe()
        process = CONTEXT.Process(target=_rank, args=(body, backend, rank, size, path, timeout, sender, arguments))
        process.start()
        sender.close()
        started.append((process, receiver))
    return started


def collect(started, seconds=60):
    """Each rank's result: (True, value), (False, text), or None if it ended without one."""
    results = []
    for process, receiver in started:
        try:
            results.append(receiver.recv() if receiver.poll(seconds) else (False, f"no result within {seconds} s"))
        except EOFError:
            results.append(None)
    for _, receiver in started:
        with contextlib.suppress(OSError):  # the rank has ended
            receiver.send("end")
    for process, _ in started:
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()
    return results


def run(size, body, *arguments, backend="shoal", timeout=30):
    """Calls body(rank, size, *arguments) in `size` ranks; returns their results in rank order."""
    with tempfile.TemporaryDirectory() as directory:
        results = collect(start(size, body, *arguments, backend=backend, timeout=timeout,
                                path=os.path.join(directory, "store")), max(60, timeout))
    texts = {rank: "ended without a result" if result is None else result[1]
             for rank, result in enumerate(results) if result is None or not result[0]}
    if texts:
        raise Failed(texts)
    return [value for _, value in results]


def _each(rank, size, body, cases):
    results = []
    for case in cases:
        try:
            results.append(body(case))
        except Exception as problem:
            raise RuntimeError(f"{case}: {problem}") from problem
    return results


def run_cases(body, cases, size_of, timeout=300):
    """Calls body(case) in size_of(case) ranks for each case, several cases in one set of ranks. Yields each case with
    its results in rank order."""
    for size in sorted({size_of(case) for case in cases}):
        members = [case for case in cases if size_of(case) == size]
        for start in range(0, len(members), _CASES_OF_A_START):
            several = members[start:start + _CASES_OF_A_START]
            yield from zip(several, zip(*run(size, _each, body, several, timeout=timeout), strict=True), strict=True)
