// CUDA tensors through PyTorch's backend, on emulated GPUs: every operation with predictable
// results, and the order of streams. Runs with Shoal's own collectives and with a shim of NCCL.
#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "torch/device_rig.h"
#include "torch/emulated_cuda.h"
#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "shoal/torch/process_group.h"

namespace shoal::pytorch {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using Op = c10d::ReduceOp;

INSTANTIATE_TEST_SUITE_P(Two, OnDevices, ::testing::Values(Case{"native", 2}, Case{"nccl", 2}),
                         name_of);
class OperationsOnDevices : public OnDevices {};
INSTANTIATE_TEST_SUITE_P(Both, OperationsOnDevices,
                         ::testing::Values(Case{"native", 2}, Case{"native", 4}, Case{"nccl", 2},
                                           Case{"nccl", 4}),
                         name_of);

TEST_P(OperationsOnDevices, Sum) {
  run([](Rank& rank) {
    const double mine = rank.rank + 1;
    Tensors tensors{rank.late(mine)};
    wait(rank.group->allreduce(tensors, {}));
    expect(tensors[0], rank.total(), "all_reduce");

    Tensors several{rank.late(mine), rank.late(2 * mine, {3, 5})};
    wait(rank.group->allreduce_coalesced(several, {}));
    expect(several[0], rank.total(), "all_reduce_coalesced");
    expect(several[1], 2 * rank.total(), "all_reduce_coalesced");

    Tensors rooted{rank.late(mine)};
    c10d::ReduceOptions to_last;
    to_last.rootRank = rank.size - 1;
    wait(rank.group->reduce(rooted, to_last));
    if (rank.rank == rank.size - 1) expect(rooted[0], rank.total(), "reduce");

    Tensors parts(static_cast<std::size_t>(rank.size), rank.late(mine)), sums = rank.outputs(1);
    std::vector<Tensors> lists{parts};
    wait(rank.group->reduce_scatter(sums, lists, {}));
    expect(sums[0], rank.total(), "reduce_scatter");

    at::Tensor all = rank.late(mine, {rank.size, kElements}), part = rank.full(-1);
    wait(rank.group->_reduce_scatter_base(part, all, {}));
    expect(part, rank.total(), "_reduce_scatter_base");
  });
}

TEST_P(OperationsOnDevices, Gather) {
  run([](Rank& rank) {
    Tensors root{rank.late(rank.rank + 1)};
    c10d::BroadcastOptions from_last;
    from_last.rootRank = rank.size - 1;
    wait(rank.group->broadcast(root, from_last));
    expect(root[0], rank.size, "broadcast");

    Tensors mine{rank.late(rank.rank + 1)};
    std::vector<Tensors> lists{rank.outputs(rank.size)};
    wait(rank.group->allgather(lists, mine, {}));
    for (int i = 0; i < rank.size; ++i)
      expect(lists[0][static_cast<std::size_t>(i)], i + 1, "all_gather");

    at::Tensor all = rank.full(-1, {rank.size, kElements});
    wait(rank.group->_allgather_base(all, mine[0], {}));
    for (int i = 0; i < rank.size; ++i) expect(all[i], i + 1, "_all_gather_base");

    std::vector<Tensors> gathered;
    if (rank.rank == 0) gathered.push_back(rank.outputs(rank.size));
    wait(rank.group->gather(gathered, mine, {}));
    for (int i = 0; i < rank.size && rank.rank == 0; ++i)
      expect(gathered[0][static_cast<std::size_t>(i)], i + 1, "gather");

    std::vector<Tensors> parts;
    Tensors part = rank.outputs(1);
    if (rank.rank == 0) {
      parts.emplace_back();
      for (int i = 0; i < rank.size; ++i) parts[0].push_back(rank.late(10 + i));
    }
    wait(rank.group->scatter(part, parts, {}));
    expect(part[0], 10 + rank.rank, "scatter");
  });
}

TEST_P(OperationsOnDevices, AllToAll) {
  run([](Rank& rank) {
    at::Tensor from = rank.late(rank.rank + 1, {rank.size, kElements});
    at::Tensor to = rank.full(-1, {rank.size, kElements});
    std::vector<std::int64_t> none;
    wait(rank.group->alltoall_base(to, from, none, none, {}));
    for (int i = 0; i < rank.size; ++i) expect(to[i], i + 1, "all_to_all_single");

    // Rank a sends b + 1 rows to rank b.
    std::vector<std::int64_t> sends, receives(static_cast<std::size_t>(rank.size), rank.rank + 1);
    for (int i = 0; i < rank.size; ++i) sends.push_back(i + 1);
    at::Tensor rows = rank.late(rank.rank + 1, {rank.total(), 5});
    at::Tensor got = rank.full(-1, {rank.size * (rank.rank + 1), 5});
    wait(rank.group->alltoall_base(got, rows, receives, sends, {}));
    for (int i = 0; i < rank.size; ++i)
      expect(got.narrow(0, i * (rank.rank + 1), rank.rank + 1), i + 1, "all_to_all_single, uneven");

    Tensors inputs, outputs = rank.outputs(rank.size);
    for (int i = 0; i < rank.size; ++i) inputs.push_back(rank.late(10 * rank.rank + i));
    wait(rank.group->alltoall(outputs, inputs, {}));
    for (int i = 0; i < rank.size; ++i)
      expect(outputs[static_cast<std::size_t>(i)], 10 * i + rank.rank, "all_to_all");
  });
}

// All ranks send before they receive, which would block a stream with NCCL.
TEST_P(OperationsOnDevices, MessagesMatchInOrderBesideCollectives) {
  run([](Rank& rank) {
    const int next = (rank.rank + 1) % rank.size, last = (rank.rank + rank.size - 1) % rank.size;
    Tensors sum{rank.late(1)}, first{rank.late(rank.rank)}, second{rank.late(10 + rank.rank)};
    const auto sends = {rank.group->send(first, next, 0), rank.group->send(second, next, 0)};
    wait(rank.group->allreduce(sum, {}));
    Tensors a = rank.outputs(1), b{rank.full(-1, {kElements, 2}).select(1, 0)};  // with gaps
    const auto got = rank.group->recv(a, last, 0), more = rank.group->recv(b, last, 0);
    wait(more);
    wait(got);
    for (const auto& work : sends) wait(work);
    expect(sum[0], rank.size, "all_reduce");
    expect(a[0], last, "the first message");
    expect(b[0].contiguous(), 10 + last, "the second message");
  });
}

TEST_P(OnDevices, TypesAndReductions) {
  run([](Rank& rank) {
    const auto reduced = [&](const at::Tensor& tensor, const Op& op) {
      Tensors tensors{tensor.to(rank.device)};
      c10d::AllreduceOptions options;
      options.reduceOp = op;
      wait(rank.group->allreduce(tensors, options));
      return tensors[0].cpu();
    };
    const auto numbers = [&](at::ScalarType type) {
      return at::full({7}, rank.rank + 1, at::TensorOptions(type));
    };
    for (const auto type : {at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort,
                            at::kChar, at::kByte, at::kComplexFloat}) {
      const at::Tensor sum = reduced(numbers(type), Op::SUM);
      EXPECT_EQ(sum.scalar_type(), type);
      EXPECT_TRUE(sum.eq(numbers(type).fill_(rank.total())).all().item<bool>())
          << c10::toString(type) << ": " << sum;
    }
    EXPECT_EQ(reduced(numbers(at::kFloat), Op::AVG)[0].item<double>(), rank.total() / 2.0);
    EXPECT_EQ(reduced(numbers(at::kFloat), Op::MAX)[0].item<double>(), rank.size);
    EXPECT_EQ(reduced(numbers(at::kInt), Op::BAND)[0].item<int>(), 1 & 2);
    EXPECT_EQ(reduced(numbers(at::kInt), Op::BOR)[0].item<int>(), 1 | 2);
    EXPECT_EQ(reduced(numbers(at::kInt), Op::BXOR)[0].item<int>(), 1 ^ 2);
    EXPECT_TRUE(reduced(at::full({7}, rank.rank == 1, at::TensorOptions(at::kBool)), Op::SUM)
                    .all()
                    .item<bool>());
    EXPECT_EQ(reduced(at::empty({0}), Op::SUM).numel(), 0);
    const at::Tensor gaps = reduced(numbers(at::kFloat).expand({3, 7}).t(), Op::SUM);
    EXPECT_TRUE(gaps.eq(rank.total()).all().item<bool>()) << gaps;
  });
}

// A call waits for the stream on which it is made. The waiting stream follows the call and the
// copies out of it, whichever stream that is.
TEST_P(OnDevices, StreamsAreInOrderAroundACall) {
  run([](Rank& rank) {
    const c10::Stream makes = rank.new_stream(), waits = rank.new_stream();
    WorkResult sum, gather;
    Tensors tensors, mine;
    std::vector<Tensors> lists{rank.outputs(rank.size)};
    {
      const c10::StreamGuard guard(makes);
      tensors = {rank.late(rank.rank + 1)};
      mine = {rank.late(rank.rank + 1)};
      sum = rank.group->allreduce(tensors, {});
      gather = rank.group->allgather(lists, mine, {});
      mine.clear();
      test::queue_fill(rank.late(0), 0xff);  // uses free memory, if there is any
    }
    const c10::StreamGuard guard(waits);
    wait(gather);
    expect(lists[0][0], 1, "all_gather");
    expect(lists[0][1], 2, "all_gather");
    wait(sum);
    wait(sum);
    expect(tensors[0], rank.total(), "all_reduce");
    while (!sum->isCompleted()) std::this_thread::yield();
    while (!gather->isCompleted()) std::this_thread::yield();
    EXPECT_TRUE(sum->isSuccess());
  });
}

// NCCL's operations need no host thread, so wait() only orders streams.
TEST_P(OnDevices, WaitsOfNcclAreTheStreams) {
  if (!is_nccl()) GTEST_SKIP() << "Shoal's own operations need host threads, so the host waits";
  run([](Rank& rank) {
    Tensors tensors{rank.late(rank.rank + 1)};
    Tensors warm{rank.late(1)};
    wait(rank.group->allreduce(warm, {}));
    if (rank.rank == 1) rank.meet("rank 0 has waited");
    const WorkResult sum = rank.group->allreduce(tensors, {});
    const auto future = sum->getFuture();
    wait(sum);
    if (rank.rank == 0) {
      EXPECT_FALSE(sum->isCompleted());
      EXPECT_TRUE(future->completed());
      rank.meet("rank 0 has waited");
    }
    expect(tensors[0], rank.total(), "all_reduce");
  });
}

// Like DDP's hooks, these callbacks compute on the results of a collective.
TEST_P(OnDevices, CallbacksOfFuturesComeAfterTheResults) {
  run([](Rank& rank) {
    Tensors tensors{rank.late(rank.rank + 1)};
    const at::Tensor copied = rank.full(-1);
    const WorkResult work = rank.group->allreduce(tensors, {});
    const auto first = work->getFuture();
    ASSERT_EQ(first->devices(), std::vector<c10::Device>{rank.device});
    const auto then = first->then(
        [&](c10::ivalue::Future& future) {
          const at::Tensor sum = future.value().toTensorVector()[0];
          test::queue_copy(copied, sum);
          return c10::IValue(copied);
        },
        c10::TensorType::get());
    then->waitAndThrow();
    expect(then->value().toTensor(), rank.total(), "the callback's copy");

    Tensors mine{rank.late(rank.rank)};
    std::vector<Tensors> lists{rank.outputs(rank.size)};
    const WorkResult gather = rank.group->allgather(lists, mine, {});
    gather->getFuture()->waitAndThrow();
    expect(lists[0][1], 1, "all_gather");
    EXPECT_EQ(gather->getFuture()->value().toTensorVector().size(), 2U);
  });
}

// The tensors are freed without a later call of the group.
TEST_P(OnDevices, TensorsOfACallAreFreedOnceItHasEnded) {
  run([](Rank& rank) {
    std::optional<c10::weak_intrusive_ptr<c10::TensorImpl>> output;
    {
      Tensors mine{rank.late(rank.rank)};
      std::vector<Tensors> lists{rank.outputs(rank.size)};
      output.emplace(lists[0][0].getIntrusivePtr());
      wait(rank.group->allgather(lists, mine, {}));
      expect(lists[0][1], 1, "all_gather");
    }
    const Deadline deadline = Deadline::in_seconds(20);
    while (!output->expired() && !deadline.passed()) std::this_thread::yield();
    EXPECT_TRUE(output->expired());
  });
}

// Each thread starts calls, which also completes earlier calls of the other thread.
TEST_P(OnDevices, ThreadsShareAGroup) {
  run([](Rank& rank) {
    const auto call = [&] {
      for (int turn = 0; turn < 200; ++turn) {
        Tensors tensors{rank.full(rank.rank + 1, {8, 2}).select(1, 0)};  // copied out
        const WorkResult work = rank.group->allreduce(tensors, {});
        if (turn % 8 != 0) continue;  // otherwise another call completes it
        wait(work);
        expect(tensors[0].contiguous(), rank.total(), "all_reduce");
      }
    };
    std::thread other(call);
    call();
    other.join();
  });
}

TEST_P(OnDevices, TensorsOfHostAndDeviceShareAGroup) {
  run([](Rank& rank) {
    for (int turn = 0; turn < 3; ++turn) {
      Tensors host{at::full({kElements}, rank.rank + 1, at::kFloat)},
          device{rank.late(rank.rank + 1)};
      const WorkResult first = rank.group->allreduce(device, {});
      const WorkResult second = rank.group->allreduce(host, {});
      wait(second);
      wait(first);
      EXPECT_TRUE(host[0].eq(rank.total()).all().item<bool>());
      expect(device[0], rank.total(), "all_reduce");
      c10d::BarrierOptions options;
      if (turn > 0) options.device_ids = {rank.rank};
      wait(rank.group->barrier(options));
    }
    const auto part = rank.group->split(c10::make_intrusive<c10d::HashStore>(), {rank.rank}, {});
    Tensors alone{rank.late(3)};
    wait(part->allreduce(alone, {}));
    expect(alone[0], 3, "all_reduce of one rank");
  });
}

TEST_P(OnDevices, SymmetricMemoryIsTheStreams) {
  run([](Rank& rank) {
    for (int turn = 0; turn < 3; ++turn) {
      const at::Tensor memory = rank.group->allocateTensor(kElements, rank.floats());
      EXPECT_EQ(memory.device(), rank.device);
      test::queue_copy(memory, rank.full(rank.rank + 1 + turn));
      Tensors tensors{memory};
      wait(rank.group->allreduce(tensors, {}));
      expect(memory, rank.total() + 2 * turn, "all_reduce");
    }
  });
}

TEST_P(OnDevices, UnsupportedCallsAreRefusedByName) {
  run([](Rank& rank) {
    const int other = 1 - rank.rank;
    Tensors tensors{rank.full(1)}, two{rank.full(1), at::ones({3})};
    EXPECT_THAT(problem_of([&] { rank.group->allreduce_coalesced(two, {}); }), HasSubstr("cpu"));
    EXPECT_THAT(problem_of([&] { rank.group->send(tensors, other, 3); }),
                AllOf(HasSubstr("tag 3"), HasSubstr("order of the calls")));
    EXPECT_THAT(problem_of([&] { rank.group->recvAnysource(tensors, 0); }),
                HasSubstr("from any rank; name the rank"));
    Tensors meta{at::empty({3}, at::TensorOptions(at::kMeta))};
    EXPECT_THAT(problem_of([&] { rank.group->allreduce(meta, {}); }),
                AllOf(HasSubstr("all_reduce on meta"), HasSubstr("CUDA devices")));
    Tensors nowhere{at::for_blob(&rank, {1})
                        .options(at::TensorOptions(at::kFloat))
                        .target_device(c10::Device(c10::kCUDA, 9))
                        .make_tensor()};
    EXPECT_THAT(problem_of([&] { rank.group->allreduce(nowhere, {}); }),
                AllOf(HasSubstr("all_reduce on cuda:9"), HasSubstr("4 CUDA devices")));
    wait(rank.group->allreduce(tensors, {}));
    expect(tensors[0], 2, "all_reduce after the refusals");
  });
}

#ifdef C10D_BACKEND_HAS_HOOKS
// An exception in a hook has no effect.
TEST_P(OnDevices, HooksReceiveEndsAndFailures) {
  run(
      [](Rank& rank) {
        std::mutex mutex;
        std::vector<std::uint64_t> ended;
        std::atomic<int> failures{0};
        rank.group->registerCompletionHook(1, [&](const c10d::CompletionHookArgs& told) {
          const std::lock_guard lock(mutex);
          ended.push_back(told.completionKey);
          throw std::runtime_error("of the hook");
        });
        rank.group->registerAbortHook(1, [&] {
          ++failures;
          throw std::runtime_error("of the hook");
        });
        const auto has_ended = [&](const WorkResult& work) {
          const std::lock_guard lock(mutex);
          return std::ranges::count(ended, work->getCompletionKey());
        };
        for (const at::Tensor& tensor : {rank.late(1), at::ones({3}, at::kFloat)}) {
          Tensors tensors{tensor};
          const WorkResult work = rank.group->allreduce(tensors, {});
          wait(work);
          while (has_ended(work) == 0) std::this_thread::yield();
          EXPECT_EQ(has_ended(work), 1);
        }
        EXPECT_EQ(failures, 0);
        rank.meet("summed");
        if (rank.rank == 0) {
          Tensors alone{rank.late(1)};
          const WorkResult work = rank.group->allreduce(alone, {});
          EXPECT_THAT(problem_of([&] { work->wait(std::chrono::seconds(30)); }),
                      HasSubstr("timeout"));
          EXPECT_EQ(failures, 1);
          EXPECT_EQ(has_ended(work), 0);
        }
        rank.group->unregisterCompletionHook(1);
        rank.group->unregisterAbortHook(1);
        rank.meet("timed out");
      },
      1.5);
}
#endif

TEST_P(OnDevices, ARankThatDoesNotCallIsNamed) {
  run(
      [](Rank& rank) {
        Tensors warm{rank.late(1)}, tensors{rank.late(1)};
        wait(rank.group->allreduce(warm, {}));
        if (rank.rank == 0) {
          const WorkResult work = rank.group->allreduce(tensors, {});
          const std::string text = problem_of([&] { work->wait(std::chrono::seconds(30)); });
          EXPECT_THAT(text, HasSubstr("timeout"));
          EXPECT_THAT(text, AnyOf(HasSubstr("rank(s) 1"), HasSubstr("did not finish")));
          EXPECT_EQ(rank.group->getError(), c10d::ErrorType::TIMEOUT);
        }
        rank.meet("timed out");
      },
      1.5);
}

// No host thread waits for the calls that NCCL's streams wait for.
TEST_P(OnDevices, AWorkThatStreamsWaitForTimesOut) {
  if (!is_nccl()) GTEST_SKIP() << "the host waits";
  run(
      [](Rank& rank) {
        Tensors warm{rank.late(1)}, tensors{rank.late(1)};
        wait(rank.group->allreduce(warm, {}));
        if (rank.rank == 0) {
          const WorkResult work = rank.group->allreduce(tensors, {});
          wait(work);
          while (rank.group->getError() == c10d::ErrorType::SUCCESS) std::this_thread::yield();
          EXPECT_THAT(problem_of([&] { rank.group->allreduce(tensors, {}); }),
                      HasSubstr("did not finish within"));
          EXPECT_THAT(problem_of([&] { wait(work); }), HasSubstr("did not finish within"));
        }
        rank.meet("timed out");
      },
      1.5);
}

TEST_P(OnDevices, GroupsEndWithWorkInFlight) {
  run([](Rank& rank) {
    for (int i = 0; i < 3; ++i) {
      Tensors tensors{rank.late(1)}, mine{rank.late(1)};
      std::vector<Tensors> lists{rank.outputs(rank.size)};
      rank.group->allreduce(tensors, {});
      rank.group->allgather(lists, mine, {});
    }
    rank.group->shutdown();
    Tensors tensors{rank.late(1)};
    EXPECT_THAT(problem_of([&] { rank.group->allreduce(tensors, {}); }), HasSubstr("destroyed"));
  });
}

}  // namespace
}  // namespace shoal::pytorch
