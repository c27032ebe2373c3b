// Calls with CUDA tensors between startCoalescing() and endCoalescing(), on emulated GPUs.
#include <thread>
#include <vector>

#include "torch/device_rig.h"
#include "torch/emulated_cuda.h"
#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shoal::pytorch {
namespace {

using ::testing::HasSubstr;

class CoalescedOnDevices : public OnDevices {};
INSTANTIATE_TEST_SUITE_P(Two, CoalescedOnDevices,
                         ::testing::Values(Case{"native", 2}, Case{"nccl", 2}), name_of);

TEST_P(CoalescedOnDevices, CoalescedCallsAreOneWork) {
  run([](Rank& rank) {
    const int other = 1 - rank.rank;
    Tensors sum{rank.late(rank.rank + 1)}, root{rank.late(5 + rank.rank)};
    std::vector<Tensors> lists{rank.outputs(2)};
    Tensors mine{rank.late(rank.rank)};
    rank.group->startCoalescing();
    rank.group->allreduce(sum, {});
    rank.group->broadcast(root, {});
    rank.group->allgather(lists, mine, {});
    wait(rank.group->endCoalescing());
    expect(sum[0], rank.total(), "all_reduce");
    expect(root[0], 5, "broadcast");
    expect(lists[0][1], 1, "all_gather");

    Tensors out{rank.late(rank.rank)}, in = rank.outputs(1),
                                       host{at::full({3}, rank.rank + 1, at::kFloat)};
    rank.group->startCoalescing();
    rank.group->send(out, other, 0);
    rank.group->recv(in, other, 0);
    rank.group->allreduce(host, {});
    rank.group->allreduce(sum, {});
    wait(rank.group->endCoalescing());
    expect(in[0], other, "the message");
    expect(sum[0], 2 * rank.total(), "all_reduce");
    EXPECT_TRUE(host[0].eq(rank.total()).all().item<bool>()) << host[0];
  });
}

// Messages begin at once, because this rank may need one before it ends the block.
TEST_P(CoalescedOnDevices, MessagesAreNoneOfTheCollectives) {
  run([](Rank& rank) {
    const int other = 1 - rank.rank;
    Tensors sum{rank.late(rank.rank + 1)}, out{rank.late(rank.rank)}, in = rank.outputs(1);
    rank.group->startCoalescing();
    rank.group->allreduce(sum, {});
    rank.group->send(out, other, 0);
    wait(rank.group->recv(in, other, 0));
    expect(in[0], other, "the message");
    wait(rank.group->endCoalescing());
    expect(sum[0], rank.total(), "all_reduce");
  });
}

TEST_P(CoalescedOnDevices, ARefusedCallIsLeftOut) {
  run([](Rank& rank) {
    Tensors first{rank.late(rank.rank + 1)}, refused{rank.late(1)}, last{rank.late(rank.rank + 1)};
    c10d::BroadcastOptions from_nowhere;
    from_nowhere.rootRank = 9;
    rank.group->startCoalescing();
    const WorkResult work = rank.group->allreduce(first, {});
    EXPECT_THAT(problem_of([&] { rank.group->broadcast(refused, from_nowhere); }),
                HasSubstr("root"));
    rank.group->allreduce(last, {});
    wait(rank.group->endCoalescing());
    expect(first[0], rank.total(), "the call before it");
    expect(last[0], rank.total(), "the call after it");
    while (!work->isCompleted()) std::this_thread::yield();
    EXPECT_TRUE(work->isSuccess());
  });
}

// The caller's exception interrupted the block.
TEST_P(CoalescedOnDevices, CallsOfABlockThatNeverEndsAreMade) {
  run([](Rank& rank) {
    Tensors first{rank.late(rank.rank + 1)}, later{rank.late(rank.rank + 1)};
    rank.group->startCoalescing();
    rank.group->allreduce(first, {});
    wait(rank.group->allreduce(later, {}));
    expect(first[0], rank.total(), "the call of the block");
    expect(later[0], rank.total(), "the call after it");
    Tensors another{rank.late(rank.rank + 1)};
    wait(rank.group->allreduce(another, {}));
    expect(another[0], rank.total(), "one more call");

    Tensors left{rank.late(rank.rank + 1)}, again{rank.late(rank.rank + 1)};
    rank.group->allreduce(left, {});
    rank.group->startCoalescing();
    rank.group->allreduce(again, {});
    wait(rank.group->endCoalescing());
    expect(left[0], rank.total(), "the last call of the first block");
    expect(again[0], rank.total(), "another block");
  });
}

TEST_P(CoalescedOnDevices, CallbacksComeAfterTheResults) {
  run([](Rank& rank) {
    const int other = 1 - rank.rank;
    Tensors sum{rank.late(rank.rank + 1)}, out{rank.late(rank.rank)}, in = rank.outputs(1),
                                                                      mine{rank.late(rank.rank)};
    std::vector<Tensors> lists{rank.outputs(2)};
    const at::Tensor copied = rank.full(-1);
    rank.group->startCoalescing();
    rank.group->send(out, other, 0);
    rank.group->recv(in, other, 0);
    rank.group->allreduce(sum, {});
    rank.group->allgather(lists, mine, {});
    const auto future = rank.group->endCoalescing()->getFuture();
    EXPECT_EQ(future->devices(), std::vector<c10::Device>{rank.device});
    const auto then = future->then(
        [&](c10::ivalue::Future&) {
          test::queue_copy(copied, lists[0][1]);
          return c10::IValue(copied);
        },
        c10::TensorType::get());
    then->waitAndThrow();
    expect(then->value().toTensor(), 1, "the callback's copy");
  });
}

}  // namespace
}  // namespace shoal::pytorch
