"""Every operation of the backend shoal, by dtype, shape and number of ranks, against formulas."""
import os
import pathlib
import threading
import time
import unittest
import unittest.mock
import weakref
from datetime import timedelta

import torch
import torch.distributed as dist

import ranks

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex64, torch.complex128]
BYTES = [torch.float8_e4m3fn, torch.float8_e5m2]
MOVED = FLOATS + INTEGERS + UNSIGNED + COMPLEX + BYTES + [torch.bool]
FACTOR = 0.5  # of PREMUL_SUM
SHAPES = [(0,), (1,), (5, 3), (1000,)]


def values(rank, shape, dtype, seed=0):
    """Small whole numbers, so that every sum and product is exact."""
    count = torch.Size(shape).numel()
    numbers = ((torch.arange(count) * 7 + 3 * rank + 5 * seed) % 11 % 3).reshape(shape)
    if dtype.is_complex:
        return torch.complex(numbers.double(), numbers.double() + 1).to(dtype)
    return numbers.to(dtype)


def exact(tensor):
    """The bits, for comparison."""
    return torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.reshape(-1)).view(torch.uint8)


def check(got, want, what):
    assert got.dtype == want.dtype and got.shape == want.shape, f"{what}: {got.dtype} {got.shape}"
    assert torch.equal(exact(got), exact(want)), f"{what}: {got} instead of {want}"


def strided(tensor):
    """The same values as every other element of a larger tensor."""
    wide = torch.zeros(*tensor.shape, 2, dtype=tensor.dtype)
    wide[..., 0] = tensor
    return wide[..., 0]


def folded(op, all_values):
    dtype = all_values[0].dtype
    wide = torch.stack([v.to(torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point
                             else torch.int64) for v in all_values])
    if dtype == torch.bool:
        logical = {"SUM": wide.any(0), "PRODUCT": wide.all(0), "MIN": wide.all(0), "MAX": wide.any(0),
                   "BAND": wide.all(0), "BOR": wide.any(0), "BXOR": wide.sum(0) % 2 == 1}
        return logical[op].bool()
    if op in ("BAND", "BOR", "BXOR"):
        out = wide[0]
        for v in wide[1:]:
            out = {"BAND": out & v, "BOR": out | v, "BXOR": out ^ v}[op]
        return out.to(dtype)
    return {"SUM": lambda: wide.sum(0), "AVG": lambda: wide.mean(0), "PREMUL_SUM": lambda: (wide * FACTOR).sum(0),
            "PRODUCT": lambda: wide.prod(0), "MIN": lambda: wide.amin(0), "MAX": lambda: wide.amax(0)}[op]().to(dtype)


def reductions(dtype):
    if dtype in FLOATS:
        return ["SUM", "AVG", "PREMUL_SUM", "PRODUCT", "MIN", "MAX"]
    if dtype in COMPLEX:
        return ["SUM", "AVG", "PREMUL_SUM"]
    if dtype == torch.uint64:
        return ["SUM", "PRODUCT", "BAND", "BOR", "BXOR"]
    return ["SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]


def operation(name):
    return dist._make_nccl_premul_sum(FACTOR) if name == "PREMUL_SUM" else getattr(dist.ReduceOp, name)


def all_reduces(rank, size):
    for dtype in FLOATS + INTEGERS + UNSIGNED + COMPLEX + [torch.bool]:
        for name in reductions(dtype):
            for shape in SHAPES:
                every = [values(r, shape, dtype) for r in range(size)]
                want, what = folded(name, every), f"{name} of {dtype} {shape}"
                op = operation(name)
                for view in (torch.clone, strided):
                    tensor = view(every[rank])
                    dist.all_reduce(tensor, op)
                    check(tensor, want, "all_reduce " + what)
                tensor = strided(every[rank])
                dist.reduce(tensor, size - 1, op)
                if rank == size - 1:
                    check(tensor, want, "reduce " + what)
    tensor = torch.full((3,), 1.0)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(torch.tensor(FACTOR)))
    check(tensor, torch.full((3,), size * FACTOR), "PREMUL_SUM by a tensor")


def reduce_scatters(rank, size):
    for dtype in FLOATS + INTEGERS + COMPLEX + [torch.bool]:
        for name in reductions(dtype):
            for shape in SHAPES:
                every = [[values(r, shape, dtype, part) for part in range(size)] for r in range(size)]
                want = folded(name, [every[r][rank] for r in range(size)])
                op, what = operation(name), f"reduce_scatter {name} of {dtype} {shape}"
                out = strided(torch.zeros_like(want))
                dist.reduce_scatter(out, [part.clone() for part in every[rank]], op)
                check(out, want, what)
                out = torch.zeros_like(want)
                dist.reduce_scatter_tensor(out, torch.cat([p.reshape(-1) for p in every[rank]]), op)
                check(out, want, what + " tensor")


def moves(rank, size):
    for dtype in MOVED:
        for shape in SHAPES:
            every, what = [values(r, shape, dtype) for r in range(size)], f"{dtype} {shape}"
            for view in (torch.clone, strided):
                tensor = view(every[rank])
                dist.broadcast(tensor, size - 1)
                check(tensor, every[size - 1], "broadcast " + what)
                outs = [view(torch.zeros(shape).to(dtype)) for _ in range(size)]
                dist.all_gather(outs, view(every[rank]))
                for r in range(size):
                    check(outs[r], every[r], "all_gather " + what)
            out = torch.zeros((size, *shape)).to(dtype)
            dist.all_gather_into_tensor(out, every[rank])
            assert torch.equal(exact(out), torch.cat([exact(v) for v in every])), "all_gather_into_tensor " + what
            outs = [torch.zeros(shape).to(dtype) for _ in range(size)] if rank == 0 else None
            dist.gather(every[rank], outs, 0)
            for r in range(size if rank == 0 else 0):
                check(outs[r], every[r], "gather " + what)
            if hasattr(dist, "gather_into_tensor"):
                out = torch.zeros((size, *shape)).to(dtype) if rank == 1 else None
                dist.gather_into_tensor(view(every[rank]), out, 1)
                for r in range(size if rank == 1 else 0):
                    check(out[r], every[r], "gather_into_tensor " + what)
            out = strided(torch.zeros(shape).to(dtype))
            dist.scatter(out, every if rank == 1 else None, 1)
            check(out, every[rank], "scatter " + what)
            sent = [values(10 * rank + r, shape, dtype) for r in range(size)]
            outs = [torch.zeros(shape).to(dtype) for _ in range(size)]
            dist.all_to_all(outs, sent)
            for r in range(size):
                check(outs[r], values(10 * r + rank, shape, dtype), "all_to_all " + what)
    mine = torch.arange(size * (size + 1) // 2, dtype=torch.float32) + 100 * rank
    out = torch.zeros(size * (rank + 1))
    dist.all_to_all_single(out, mine, [rank + 1] * size, [r + 1 for r in range(size)])
    begin = rank * (rank + 1) // 2
    want = torch.cat([torch.arange(begin, begin + rank + 1) + 100.0 * r for r in range(size)])
    check(out, want, "all_to_all_single with splits")


def unequal(rank, size):
    outs = [torch.zeros(r) for r in range(size)]
    dist.all_gather(outs, torch.full((rank,), float(rank)))
    for r in range(size):
        check(outs[r], torch.full((r,), float(r)), "all_gather of unequal parts")
    out = torch.zeros(rank + 1)
    dist.reduce_scatter(out, [torch.full((r + 1,), 1.0 + rank) for r in range(size)])
    check(out, torch.full((rank + 1,), float(sum(range(1, size + 1)))), "reduce_scatter of unequal parts")


def coalesced(rank, size):
    tensors = [torch.full((n,), float(rank)) for n in (0, 3, 5000)]
    dist.all_reduce_coalesced(tensors)
    for tensor in tensors:
        check(tensor, torch.full_like(tensor, sum(range(size))), "all_reduce_coalesced")
    group = dist.group.WORLD
    outs = [torch.zeros(size * n) for n in (2, 3)]
    group.allgather_into_tensor_coalesced(outs, [torch.full((n,), float(rank)) for n in (2, 3)]).wait()
    for n, out in zip((2, 3), outs):
        check(out, torch.arange(size).repeat_interleave(n).float(), "allgather_into_tensor_coalesced")
    outs = [torch.zeros(n) for n in (2, 3)]
    group.reduce_scatter_tensor_coalesced(outs, [torch.ones(size * n) for n in (2, 3)]).wait()
    for out in outs:
        check(out, torch.full_like(out, size), "reduce_scatter_tensor_coalesced")
    lists = [[torch.zeros(2), torch.zeros(3)] for _ in range(size)]
    dist.all_gather_coalesced(lists, [torch.full((2,), float(rank)), torch.full((3,), float(rank))])
    for r in range(size):
        check(lists[r][1], torch.full((3,), float(r)), "all_gather_coalesced")
    with dist._coalescing_manager(async_ops=True) as pending:
        for tensor in tensors:
            dist.all_reduce(tensor)
    pending.wait()
    check(tensors[1], torch.full((3,), float(size * sum(range(size)))), "coalescing manager")


def messages(rank, size):
    peer = rank ^ 1
    for count in (0, 1, 5, 300000):
        if rank % 2 == 0:
            dist.send(torch.full((count,), 1.0), peer, tag=1)
            dist.send(torch.full((count,), 2.0), peer, tag=2)
        else:
            second, first = torch.zeros(count), strided(torch.zeros(count))
            dist.recv(second, peer, tag=2)  # tags, not order
            assert dist.recv(first, peer, tag=1) == peer
            check(first, torch.full((count,), 1.0), "tag 1")
            check(second, torch.full((count,), 2.0), "tag 2")
    if rank == 0:
        sources = set()
        for _ in range(size - 1):
            tensor = torch.zeros(1)
            sources.add(dist.recv(tensor, tag=3))  # its own tag; matches a message from any rank
        assert sources == set(range(1, size)), sources
    else:
        dist.send(torch.full((1,), float(rank)), 0, tag=3)
    out = torch.zeros(3)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((3,), float(rank)), (rank + 1) % size),
                                    dist.P2POp(dist.irecv, out, (rank - 1) % size)])
    for work in works:
        work.wait()
    check(out, torch.full((3,), float((rank - 1) % size)), "batch_isend_irecv")
    dist.barrier()  # a rank that leaves ends others' waits for a message from any rank


def works(rank, size):
    tensor = torch.full((4,), float(rank))
    work = dist.all_reduce(tensor, async_op=True)
    seen = []
    future = work.get_future().then(lambda done: seen.append(done.value()) or done.value()[0] * 2)
    doubled = future.wait()
    assert torch.equal(doubled, tensor * 2) and len(seen) == 1 and len(seen[0]) == 1
    work.wait(), work.wait()
    assert work.is_completed() and work.is_success()
    if rank == 0:
        time.sleep(0.2)  # so that the others' callbacks run later, on the group's thread

    def another(done):
        return dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0]

    nested = dist.all_reduce(torch.ones(2), async_op=True).get_future().then(another)
    assert torch.equal(nested.wait(), torch.full((2,), float(size * size)))
    threads = [threading.Thread(target=work.wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(20):
        dist.all_reduce(torch.ones(100000), async_op=True)  # never waited for; its tensor stays alive
    last = dist.all_reduce(torch.ones(2), async_op=True)
    while not last.is_completed():
        pass
    # PyTorch's ProcessGroup asks plug-ins for it only in newer versions.
    assert dist.group.WORLD._get_backend(torch.device("cpu"))._get_sequence_number_for_group() > 20


def groups(rank, size):
    other = dist.new_group(list(range(size)), backend="shoal")
    pair = dist.new_group([0, 1], backend="shoal")
    assert dist.get_backend(other) == "shoal"
    errors = []

    def sums(group, base):
        try:
            for i in range(50):
                tensor = torch.full((7,), float(base + i))
                dist.all_reduce(tensor, group=group)
                assert torch.equal(tensor, torch.full((7,), float(size * (base + i))))
        except BaseException as problem:
            errors.append(problem)

    threads = [threading.Thread(target=sums, args=(group, base))
               for group, base in ((dist.group.WORLD, 0), (other, 1000))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    if rank < 2:
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=pair)
        assert tensor.item() == 2


def crossing(rank, size):
    """A thread waits for a message that the other rank sends only after it has received one itself."""
    got = torch.zeros(1)
    receiver = threading.Thread(target=lambda: dist.recv(got, 1 - rank))
    receiver.start()
    if rank == 1:
        receiver.join()
    dist.send(torch.ones(1), 1 - rank)
    receiver.join()
    assert got.item() == 1


def split(rank, size):
    halves = [[0, 1], [2, 3]][:size // 2]
    if ranks.PYTORCH >= (2, 15):
        half = dist.split_group(split_ranks=halves)
    else:  # the function is for ranks that have a GPU; it calls this method
        options = dist.group.WORLD._get_backend(torch.device("cpu")).options
        half = dist.group.WORLD.split_group(halves[rank // 2], opts=options)
    tensor = torch.full((2,), float(rank))
    dist.all_reduce(tensor, group=half)
    check(tensor, torch.full((2,), 1.0 if rank < 2 else 5.0), "split")


def without_a_color(rank, size):
    """What PyTorch calls on ranks that are not in a new group: nothing waits for them."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    if rank > 0:
        backend.perform_nocolor_split(torch.device("cpu"))
    group = dist.new_group([0], backend="shoal")
    if rank == 0:
        dist.all_reduce(torch.ones(1), group=group)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == size


def errors(rank, size):
    """The kind of a group's error: none, also after a refused call; a time-out; a rank that left."""
    kinds, cpu = torch._C._distributed_c10d.ErrorType, torch.device("cpu")
    late, left = (dist.new_group([0, 1], backend="shoal") for _ in range(2))
    error_of = {group: group._get_backend(cpu).get_error for group in (late, left)}
    for group in error_of:
        dist.all_reduce(torch.ones(2), group=group)
        with ranks.raises(ValueError, "AVG"):
            dist.all_reduce(torch.ones(2, dtype=torch.int32), dist.ReduceOp.AVG, group=group)
        assert error_of[group]() == kinds.SUCCESS, error_of[group]()
    dist.barrier()
    if rank == 1:
        dist.destroy_process_group(left)
        return dist.barrier()
    late.set_timeout(timedelta(seconds=0.5))
    for group, kind in ((late, kinds.TIMEOUT), (left, kinds.REMOTE_ERROR)):
        with ranks.raises(dist.DistBackendError, "rank 1"):
            dist.all_reduce(torch.ones(2), group=group)
        assert error_of[group]() == kind, error_of[group]()
    dist.barrier()


def interrupted(rank, size):
    """An exception leaves a coalesced block. Later calls work, and the group does not keep their tensors."""
    group, cpu = dist.group.WORLD, torch.device("cpu")
    group._start_coalescing(cpu)
    first = torch.full((1000,), float(rank))
    work = group.allreduce([first])
    try:
        group.broadcast(torch.ones(3), size)  # no such root
    except ValueError as error:
        assert "root" in str(error), error
    else:
        raise AssertionError("not refused")
    work.wait()
    check(first, torch.full((1000,), float(sum(range(size)))), "the call before the exception")
    del work
    freed = []
    for turn in range(4):
        tensor = torch.full((1000,), float(rank + turn))
        weakref.finalize(tensor, freed.append, turn)
        group.allreduce([tensor]).wait()
        check(tensor, torch.full((1000,), float(sum(range(size)) + turn * size)), "a later call")
        del tensor
    group.allreduce([torch.ones(1)]).wait()
    assert freed[:3] == [0, 1, 2], freed
    group._start_coalescing(cpu)
    again = torch.full((3,), float(rank))
    group.allreduce([again])
    group._end_coalescing(cpu).wait()
    check(again, torch.full((3,), float(sum(range(size)))), "another block")


def memory(rank, size):
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert backend.supports_tensor_alloc(torch.device("cpu"))
    assert not backend.supports_tensor_alloc(torch.device("cuda", 0))
    tensor = backend.allocate_tensor(1000, dtype=torch.float32, device=torch.device("cpu"))
    tensor.fill_(rank + 1)
    dist.all_reduce(tensor)
    check(tensor, torch.full((1000,), float(sum(range(1, size + 1)))), "symmetric memory")


def is_symmetric(tensor):
    mapped = [line for line in pathlib.Path("/proc/self/maps").read_text().splitlines() if "shoal" in line]
    return any(low <= tensor.data_ptr() < high for low, high in
               ([int(end, 16) for end in line.split()[0].split("-")] for line in mapped))


def buckets(rank, size):
    """DDP's buckets are in symmetric memory. The model keeps them alive, but not its rank in the group."""
    seen = []

    def hook(_, bucket):
        seen.append(bucket.buffer())
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    model.register_comm_hook(None, hook)
    model(torch.ones(1, 8)).sum().backward()
    assert seen and all(map(is_symmetric, seen)), "buckets in ordinary memory"
    if rank == 0:
        dist.destroy_process_group()
        time.sleep(2)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # the caller destroys one
        return
    began = time.monotonic()
    try:
        dist.all_reduce(torch.ones(2))
    except dist.DistBackendError as error:
        assert "left the group" in str(error) and time.monotonic() - began < 1.5, str(error)
    else:
        raise AssertionError("a sum without rank 0")


def symmetric(rank, size):
    """Large tensors in shared memory: every rank's own, also in a forked process and after the group."""
    kept = torch.full((1 << 18,), float(rank + 1))
    total = kept.clone()
    dist.all_reduce(total)
    check(total, torch.full((1 << 18,), float(sum(range(1, size + 1)))), "all_reduce in symmetric memory")
    for large in (10, 1 << 18):  # gelu frees its scratch memory by its address alone
        torch.nn.functional.gelu(torch.ones(1, large, requires_grad=True)).sum().backward()
    child = os.fork()
    if child == 0:
        other = torch.full((1 << 18,), -1.0)  # must not have the address of the parent's next tensor
        os._exit(int(not torch.equal(other, torch.full((1 << 18,), -1.0))))
    later = [torch.full((1 << 18,), float(i)) for i in range(4)]
    assert os.waitpid(child, 0)[1] == 0
    for i, tensor in enumerate(later):
        assert torch.equal(tensor, torch.full((1 << 18,), float(i)))
    assert is_symmetric(kept)
    dist.destroy_process_group()
    assert torch.equal(kept + 1, torch.full((1 << 18,), float(rank + 2)))
    assert not is_symmetric(torch.empty(1 << 18)), "memory of a group that this rank has left"
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # the caller destroys one


def monitored_barriers(rank, size):
    """Rank 0 removes the keys that the groups leave in the store. It counts while all ranks are there: a rank that
    leaves adds a key, which FileStore keeps."""
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    before = store.num_keys()
    dist.barrier()
    for _ in range(3):
        dist.group.WORLD.monitored_barrier()
    after = store.num_keys()
    dist.barrier()
    assert rank != 0 or after == before, (after, before)


def cuda(rank, size):
    """A device that cannot be used is refused by name, and the group remains usable."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    try:
        backend.eager_connect_single_device(torch.device("cuda:0"))
    except dist.DistBackendError as error:
        assert "a process group on cuda:0: " in str(error) and "SHOAL_CUDA=ON" in str(error), error
    else:
        raise AssertionError("not refused")
    dist.all_reduce(torch.ones(3))


def tests(body, sizes=(2, 4)):
    def test(self):
        for size in sizes:
            with self.subTest(ranks=size):
                ranks.run(size, body)
    return test


class Operations(unittest.TestCase):
    test_all_reduces = tests(all_reduces)
    test_reduce_scatters = tests(reduce_scatters)
    test_moves = tests(moves)
    test_unequal = tests(unequal)
    test_coalesced = tests(coalesced)
    test_messages = tests(messages)
    test_works = tests(works)
    test_groups = tests(groups)
    test_crossing = tests(crossing, (2,))
    test_split = unittest.skipIf(ranks.PYTORCH < (2, 9), "PyTorch 2.8 splits NCCL's groups only")(tests(split))
    test_without_a_color = tests(without_a_color)
    test_errors = tests(errors, (2,))
    test_interrupted = tests(interrupted, (2,))
    test_memory = tests(memory)
    test_monitored_barriers = tests(monitored_barriers)
    test_ddp_buckets = tests(buckets, (2,))

    @unittest.skipIf(torch.cuda.is_available(), "there is a GPU")
    def test_cuda(self):
        ranks.run(1, cuda)

    def test_symmetric_allocator(self):
        with unittest.mock.patch.dict(os.environ, SHOAL_TORCH_SYMMETRIC="1"):
            ranks.run(2, symmetric)


if __name__ == "__main__":
    unittest.main()
