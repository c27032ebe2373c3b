"""Every survivor of a fault gets a Python exception that names it; no process hangs at its end."""
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
from datetime import timedelta

import torch
import torch.distributed as dist

import ranks

DEADLINE = 3.0  # seconds, for the process groups
WITHIN = DEADLINE + 2.5  # half a second is for starting the ranks


def survivors(size, body, *, stopped=None):
    """What each rank but `stopped` reported, and the time of the last one."""
    with tempfile.TemporaryDirectory() as directory:
        began = time.monotonic()
        started = ranks.start(size, body, timeout=DEADLINE, path=os.path.join(directory, "store"))
        alive = [s for rank, s in enumerate(started) if rank != stopped]
        results = ranks.collect(alive, 30)
        if stopped is not None:
            started[stopped][0].kill()
            started[stopped][0].join()
        return results, time.monotonic() - began


def ends_itself(how):
    def body(rank, size):
        dist.all_reduce(torch.ones(4))
        if rank == 1:
            how()
        dist.all_reduce(torch.ones(4))
    return body


def shapes(rank, size):
    dist.all_reduce(torch.ones(4 + (rank == 1)))


def dtypes(rank, size):
    dist.all_reduce(torch.ones(4, dtype=torch.float64 if rank == 1 else torch.float32))


def orders(rank, size):
    if rank == 1:
        dist.broadcast(torch.ones(4), 0)
    dist.all_reduce(torch.ones(4))


def late(rank, size):
    if rank == 1:
        time.sleep(DEADLINE + 1)
        return
    dist.all_reduce(torch.ones(4))


def no_sender(rank, size):
    if rank == 0:
        dist.recv(torch.ones(4), 1, tag=7)
    else:
        time.sleep(DEADLINE + 1)


def no_senders(rank, size):
    """Each receive of the block waits for rank 1, which sends nothing."""
    if rank == 1:
        return time.sleep(10 * DEADLINE)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.ones(4), 1) for _ in range(3)]):
        work.wait()


def receives_that_only_futures_await(rank, size):
    if rank == 1:
        return time.sleep(10 * DEADLINE)
    work = dist.irecv(torch.ones(4), 1, tag=7)
    assert work.get_future_result().wait() == 1  # WorkResult::TIMEOUT
    work.get_future().wait()


def long_waits(rank, size):
    """The time-out of wait() counts, also if it is longer than the group's."""
    total = torch.zeros(4)
    if rank == 1:
        time.sleep(DEADLINE + 1)
        return dist.send(total + 2, 0)
    dist.irecv(total, 1).wait(timedelta(seconds=3 * DEADLINE))
    assert total.eq(2).all()


def long_waits_for_a_block(rank, size):
    """The same for each message of a block."""
    totals = [torch.zeros(4) for _ in range(2)]
    if rank == 1:
        time.sleep(DEADLINE + 1)
        for total in totals:
            dist.send(total + 2, 0)
        return
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, total, 1) for total in totals]):
        work.wait(timedelta(seconds=3 * DEADLINE))
    assert all(total.eq(2).all() for total in totals)


def late_receiver(rank, size):
    """A send that no thread awaits outlives the time-out."""
    large, small = torch.ones(1 << 20), torch.ones(4)
    if rank == 1:
        time.sleep(DEADLINE + 1.5)
        dist.recv(large.zero_(), 0)
        dist.recv(small.zero_(), 0)
        assert large.eq(1).all() and small.eq(1).all()
        return
    first = dist.isend(large, 1)
    time.sleep(DEADLINE + 0.5)
    second = dist.isend(small, 1)  # checks the first
    second.wait()
    first.wait()


def hooks_that_raise(rank, size):
    """Waits throw the operation's error, on the caller's thread and on the group's."""
    told = []

    def hook(*arguments):
        told.append(arguments)
        raise RuntimeError("the hook's own error")
    dist.group.WORLD.register_abort_hook(1, hook)
    if rank == 1:
        time.sleep(0.5)
        os._exit(0)
    first, second = (dist.all_reduce(torch.ones(4), async_op=True) for _ in range(2))
    future = second.get_future()
    time.sleep(1)
    for wait in (first.wait, first.wait, second.wait, future.wait):
        with ranks.raises(Exception, "rank 1"):
            wait()
    assert len(told) == 2, told


def forked(rank, size):
    """A child neither waits for its parent's operations nor hangs when it frees their memory."""
    held, ended = torch.empty(1 << 20), []
    work = dist.irecv(torch.zeros(4), 1 - rank)

    def allocates():  # in C++ without Python's lock, so it runs during the forks too
        while not ended:
            torch.empty(1 << 17).add(1)
    threads = [threading.Thread(target=allocates) for _ in range(2)]
    for thread in threads:
        thread.start()
    statuses = []
    for _ in range(100):
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            del held
            refusals = 0
            for call in (work.wait, work.is_completed, work.get_future):
                try:
                    call()
                except ValueError as problem:
                    refusals += "forked" in str(problem)
                except BaseException:
                    os._exit(99)  # the test counts only refusals
            os._exit(refusals)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        if statuses[-1] != 3:
            break
    ended.append(True)
    for thread in threads:
        thread.join()
    assert set(statuses) == {3}, statuses
    dist.barrier()  # the other rank forks no more children that expect a receive without its message
    dist.send(torch.ones(4), 1 - rank)
    work.wait()


def timeouts(rank, size):
    """A group's time-out can be lengthened and shortened. Unsupported changes are reported."""
    with tempfile.TemporaryFile("w+") as said:  # PyTorch writes warnings of C++ to standard error
        os.dup2(said.fileno(), 2)
        dist.group.WORLD.set_timeout(timedelta(seconds=10 * DEADLINE))
        dist.distributed_c10d._add_ephemeral_timeout_for_all_pgs(timedelta(seconds=DEADLINE))
        said.seek(0)
        text = said.read()
    assert "still end after" not in text and "cannot be extended for a while" in text, text
    with ranks.raises(ValueError, "a timeout of 0"):
        dist.group.WORLD.set_timeout(timedelta(seconds=0))
    if rank == 1:
        time.sleep(DEADLINE + 1)
    total = torch.ones(4)
    dist.all_reduce(total)
    work = dist.all_reduce(total, async_op=True)
    work.get_future().wait()
    assert total.eq(size * size).all()
    dist.group.WORLD.set_timeout(timedelta(seconds=0.5))
    if rank == 1:
        return time.sleep(10 * DEADLINE)
    began = time.monotonic()
    try:
        dist.all_reduce(torch.ones(4))
    finally:
        assert time.monotonic() - began < DEADLINE


def wrong_message(rank, size):
    if rank == 0:
        dist.recv(torch.ones(4), 1)
    else:
        dist.send(torch.ones(5), 0)


def leaves_early(rank, size):
    """Rank 2 leaves in order. Rank 0, which requested a message from it, stops waiting."""
    if rank == 0:
        assert dist.recv(torch.ones(4), tag=5) == 1
    if rank == 1:
        dist.send(torch.ones(4), 0, tag=5)
    total = torch.ones(4)
    work = dist.all_reduce(total, async_op=True)
    if rank < 2:
        time.sleep(1)
    work.wait()
    assert total.eq(size).all()
    if rank == 0:
        assert dist.recv(torch.ones(4), tag=6) == 1
        with ranks.raises(dist.DistBackendError, "rank 2", "left"):
            dist.recv(torch.ones(4), 2)
        assert dist.recv(torch.ones(4), 1) == 1
    if rank == 1:
        time.sleep(0.2)
        dist.send(torch.ones(4), 0, tag=6)
        dist.send(torch.ones(4), 0)


def all_leave(rank, size):
    if rank > 0:
        time.sleep(0.3 * rank)
        return dist.send(torch.ones(4), 0)
    assert {dist.recv(torch.ones(4)) for _ in range(1, size)} == set(range(1, size))
    began = time.monotonic()
    with ranks.raises(dist.DistBackendError, "every other rank has left"):
        dist.recv(torch.ones(4))
    assert time.monotonic() - began < DEADLINE / 2


def monitored(rank, size, port):
    """Rank 0 serves the store and ends at once."""
    dist.destroy_process_group()
    dist.init_process_group("shoal", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size,
                            timeout=timedelta(seconds=DEADLINE))
    if rank == 1:
        time.sleep(0.3)
    dist.group.WORLD.monitored_barrier(timedelta(seconds=DEADLINE), wait_all_ranks=False)
    if rank == 0:
        os._exit(0)


def all_failed(rank, peers):
    """Waits until all of them have seen the fault, because the first to continue may abort the old group."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"failed {rank}", "")
    store.wait([f"failed {peer}" for peer in peers])


def shrinks(rank, size):
    """Rank 1 dies. The others continue without it, and the last one also without rank 0."""
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(torch.ones(4))
    except dist.DistBackendError as problem:
        assert "rank 1" in str(problem), problem
    all_failed(rank, [0, 2, 3])
    group = dist.shrink_group([1], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
    total = torch.full((4,), float(rank))
    dist.all_reduce(total)
    assert total.eq(sum(range(size)) - 1).all(), total
    assert (dist.get_rank(), dist.get_world_size(), group.size()) == (max(rank - 1, 0), size - 1, size - 1)
    if rank == 0:
        return
    dist.shrink_group([0])
    total = torch.full((4,), float(rank))
    dist.all_reduce(total)
    assert total.eq(sum(range(2, size))).all(), total


def reconfigures(rank, size):
    """Rank 2 dies. The others create a new group, in another order."""
    store = dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    dist.init_process_group("shoal", store=dist.PrefixStore("again", store), rank=rank, world_size=size,
                            timeout=timedelta(seconds=DEADLINE), enable_reconfigure=True)
    group = dist.group.WORLD

    def empty_block():
        group._start_coalescing(torch.device("cpu"))
        group._end_coalescing(torch.device("cpu"))
    for call in (lambda: dist.all_reduce(torch.ones(4)), group.monitored_barrier, empty_block):
        with ranks.raises(ValueError, "call reconfigure()"):
            call()
    store.set(f"handle {rank}", dist._get_reconfigure_handle())
    handles = [store.get(f"handle {peer}").decode() for peer in range(size)]
    dist._reconfigure(uuid=1, handles=set(handles)).wait()
    assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
    total = torch.ones(4)
    dist.all_reduce(total)
    assert total.eq(size).all()
    group.monitored_barrier()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(torch.ones(4))
    except dist.DistBackendError as problem:
        assert "rank 2" in str(problem), problem
    all_failed(rank, [0, 1])
    dist._reconfigure(uuid=2, handles=[handles[1], handles[0]], timeout=timedelta(seconds=20)).wait()
    assert (dist.get_rank(), dist.get_world_size()) == (1 - rank, 2)
    total = torch.full((4,), float(rank))
    dist.broadcast(total, 0)
    assert total.eq(1).all()
    dist.recv(total, 0) if rank == 0 else dist.send(total + 1, 1)
    assert total.eq(2 - rank).all()
    if rank == 0:  # joins again, and so counts its barriers from 0
        dist.destroy_process_group()
        dist.init_process_group("shoal", store=dist.PrefixStore("again", store), rank=rank, world_size=size,
                                timeout=timedelta(seconds=DEADLINE), enable_reconfigure=True)
    store.set(f"handle {rank} anew", dist._get_reconfigure_handle())
    dist._reconfigure(uuid=3, handles=[store.get(f"handle {peer} anew").decode() for peer in (0, 1)]).wait()
    dist.group.WORLD.monitored_barrier()


def future(rank, size):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(4), async_op=True).get_future().wait()


def in_parts(how):
    """Rank 3 fails in a group with rank 2. Rank 0 has a group with rank 2 only."""
    def body(rank, size):
        pairs = [dist.new_group(pair, timeout=timedelta(seconds=DEADLINE))
                 for pair in ((0, 2), (1, 3), (0, 1), (2, 3))]
        for pair in pairs:
            dist.all_reduce(torch.ones(4), group=pair) if dist.get_rank(pair) >= 0 else None
        if rank == 3:
            how()
        dist.all_reduce(torch.ones(4), group=pairs[3 if rank == 2 else rank % 2])
    return body


def names_parts(rank, size):
    """Errors of a part of the job name its ranks as the job does."""
    part = dist.new_group([1, 3], timeout=timedelta(seconds=DEADLINE))
    if rank not in (1, 3):
        return
    with ranks.raises(dist.DistBackendError, "rank 1 called all_reduce of 4 f32", "rank 3 called all_reduce of 5 f32",
                      "among ranks 1, 3"):
        dist.all_reduce(torch.ones(4 + (rank == 3)), group=part)
    part = dist.new_group([1, 3], timeout=timedelta(seconds=DEADLINE), use_local_synchronization=True)
    if rank == 3:
        return time.sleep(DEADLINE + 2)
    with ranks.raises(dist.DistBackendError, "from rank 3 with tag 7"):
        dist.recv(torch.ones(4), 3, tag=7, group=part)
    with ranks.raises(dist.DistBackendError, "Rank 3 failed to pass"):
        part.monitored_barrier(timedelta(seconds=0.2))


def refused(rank, size):
    for call, word in ((lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BXOR), "BXOR"),
                       (lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), dist.ReduceOp.AVG), "AVG"),
                       (lambda: dist.all_reduce(torch.ones(2).to(torch.float8_e5m2)), "Float8"),
                       (lambda: dist.all_reduce(torch.ones(2).to_sparse()), "sparse"),
                       (lambda: dist.all_to_all_single(torch.ones(2), torch.ones(8)), "an output of 2"),
                       (lambda: dist.broadcast(torch.ones(2), size), "root")):
        with ranks.raises(Exception, word):
            call()
    dist.all_reduce(torch.ones(2))  # the group still works


SCRIPT = """
import os, sys, torch, torch.distributed as dist, shoal.torch
rank = int(sys.argv[1])
dist.init_process_group("shoal", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(10)]
futures = [work.get_future() for work in works]
if sys.argv[3] == "alone" and rank == 0:
    work = dist.all_reduce(torch.ones(3), async_op=True)  # the other rank never calls it
    future = work.get_future()
if sys.argv[3] == "fork":
    from torch.utils.data import DataLoader
    for _ in DataLoader(range(64), num_workers=2):
        dist.all_reduce(torch.ones(3))
"""


class Faults(unittest.TestCase):
    def named(self, results, *words, within=None, took=0.0):
        for result in results:
            self.assertIsNotNone(result)
            ok, text = result
            self.assertFalse(ok, f"a survivor noticed nothing: {text}")
            for word in words:
                self.assertIn(word, text)
        if within is not None:
            self.assertLess(took, within)

    def test_killed(self):
        for size in (2, 4):
            results, took = survivors(size, ends_itself(lambda: os.kill(os.getpid(), signal.SIGKILL)), stopped=1)
            self.named(results, "DistBackendError", "rank 1", within=WITHIN, took=took)

    def test_stopped(self):
        results, took = survivors(4, ends_itself(lambda: os.kill(os.getpid(), signal.SIGSTOP)), stopped=1)
        self.named(results, "DistBackendError", "rank 1", "all_reduce", within=WITHIN, took=took)

    def test_in_parts_of_the_job(self):
        for kind in (signal.SIGKILL, signal.SIGSTOP):
            results, took = survivors(4, in_parts(lambda: os.kill(os.getpid(), kind)), stopped=3)
            self.named(results, "DistBackendError", "rank 3", within=WITHIN + 1, took=took)  # 1 s: to make the groups
        ranks.run(4, names_parts)

    def test_early_exit(self):
        results, took = survivors(4, ends_itself(lambda: os._exit(0)), stopped=1)
        self.named(results, "rank 1", within=WITHIN, took=took)

    def test_mismatches(self):
        for body, word in ((shapes, "5 f32"), (dtypes, "f64"), (orders, "broadcast")):
            with self.subTest(word):
                results, took = survivors(2, body)
                self.named(results, word, within=WITHIN, took=took)

    def test_late(self):
        results, took = survivors(4, late, stopped=1)
        self.named(results, "rank 1", "all_reduce", within=WITHIN, took=took)

    def test_messages(self):
        results, took = survivors(2, no_sender, stopped=1)
        self.named(results, "rank 1", "tag 7", within=WITHIN, took=took)
        for body in (no_senders, receives_that_only_futures_await):
            results, took = survivors(2, body, stopped=1)
            self.named(results, "rank 1", within=WITHIN, took=took)
        for body in (long_waits, long_waits_for_a_block, late_receiver):
            results, _ = survivors(2, body)
            self.assertEqual([ok for ok, _ in results], [True] * 2, results)
        results, _ = survivors(2, wrong_message, stopped=1)
        self.named(results, "rank 1 sent 5 Float")

    @unittest.skipUnless(hasattr(dist, "set_timeout"), "this PyTorch sets the time-outs of some backends only")
    def test_timeouts(self):
        results, _ = survivors(2, timeouts, stopped=1)
        self.named(results, "rank 1", "timeout")

    def test_leaving_beside_receives_from_any_rank(self):
        ranks.run(3, leaves_early)
        ranks.run(3, all_leave)

    def test_rank_0_may_end_after_a_monitored_barrier(self):
        with socket.socket() as probe, tempfile.TemporaryDirectory() as directory:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            probe.close()
            started = ranks.start(4, monitored, port, timeout=DEADLINE, path=os.path.join(directory, "store"))
            results = ranks.collect(started, 30)
        self.assertEqual([result and result[0] for result in results], [None, True, True, True], results)

    @unittest.skipUnless(hasattr(dist, "shrink_group"), "this PyTorch cannot shrink groups")
    def test_shrink(self):
        results, took = survivors(4, shrinks, stopped=1)
        self.assertEqual([ok for ok, _ in results], [True] * 3, results)
        self.assertLess(took, 2 * DEADLINE)

    @unittest.skipUnless(hasattr(dist, "_reconfigure"), "this PyTorch cannot reconfigure groups")
    def test_reconfigure(self):
        results, _ = survivors(3, reconfigures, stopped=2)
        self.assertEqual([ok for ok, _ in results], [True] * 2, results)

    @unittest.skipUnless(hasattr(dist.ProcessGroup, "register_abort_hook"), "this PyTorch has no hooks")
    def test_hooks_that_raise(self):
        results, _ = survivors(2, hooks_that_raise, stopped=1)
        self.assertEqual([ok for ok, _ in results], [True], results)

    def test_forked_children(self):
        with unittest.mock.patch.dict(os.environ, SHOAL_TORCH_SYMMETRIC="1"):
            ranks.run(2, forked, timeout=300)

    def test_future(self):
        results, took = survivors(2, future, stopped=1)
        self.named(results, "rank 1", within=WITHIN, took=took)

    def test_refused(self):
        ranks.run(2, refused)

    def test_ctrl_c_is_pythons(self):
        """libinfinipath, which Debian's libfabric loads, handles signals and ends the process without a message."""
        script = "import os, signal, time, shoal.torch; os.kill(os.getpid(), signal.SIGINT); time.sleep(5)"
        done = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertIn("KeyboardInterrupt", done.stderr)

    def test_exit(self):
        for case in ("together", "alone", "fork"):
            with self.subTest(case), tempfile.TemporaryDirectory() as directory:
                path = os.path.join(directory, "store")
                processes = [subprocess.Popen([sys.executable, "-c", SCRIPT, str(rank), path, case],
                                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                             for rank in range(2)]
                for process in processes:
                    output, _ = process.communicate(timeout=60)
                    self.assertEqual(process.returncode, 0, output)


if __name__ == "__main__":
    unittest.main()
