// Checks that AddressSanitizer distinguishes the blocks that pools and plans cut from device
// memory, in stream order (block_marks.cc). Compiled only under AddressSanitizer.
#include "shoal/runtime/memory/block_marks.h"

#include <optional>

#include "rig.h"

#include "shoal/runtime/memory/memory_resource.h"

namespace shoal::emulated_gpu {
namespace {

constexpr std::size_t kBytes = 52;  // not a multiple of any block granularity

class BlockMarks : public ::testing::Test {
 protected:
  BlockMarks() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  // Reads as a kernel would.
  static void read(const void* block, std::size_t at, cudaStream_t on) {
    const auto* const byte = static_cast<const volatile char*>(block) + at;
    CUDA(enqueue(on, [=] { (void)*byte; }));
  }
  static void wait(cudaStream_t stream) { CUDA(cudaStreamSynchronize(stream)); }
  Buffer buffer(std::size_t bytes = kBytes) {
    return {pool_, bytes, MemoryTag::activations, of_library()};
  }
  Stream of_library() const { return {Device::cuda(0), stream_.handle}; }

  OwnStream stream_;
  std::unique_ptr<MemoryResource> memory_ = make_device_memory(Device::cuda(0));
  PoolMemory pool_{*memory_};
};
using BlockMarksDeath = BlockMarks;

TEST_F(BlockMarksDeath, ABlockEndsAtItsRequestedSize) {
  for (const bool again : {false, true}) {
    SCOPED_TRACE(again);
    const Buffer block = buffer();
    read(block.data(), kBytes - 1, stream_);
    wait(stream_);
    EXPECT_DEATH(
        {
          read(block.data(), kBytes + 2, stream_);
          wait(stream_);
        },
        "use-after-poison(.|\n)*READ of size 1(.|\n)*byte 54 of allocation .*, 2 bytes behind the "
        "end of a block of it of 52 bytes");
  }
  // A different, larger size of the same size class.
  const Buffer block = buffer(200);
  read(block.data(), 199, stream_);
  wait(stream_);
}

TEST_F(BlockMarksDeath, AFreedBlockStaysItsOwnersUntilItsTurn) {
  std::optional<Buffer> block = buffer();
  const void* const at = block->data();
  read(at, 0, stream_);
  block.reset();
  wait(stream_);
  EXPECT_DEATH(
      {
        read(at, 3, stream_);
        wait(stream_);
      },
      "use-after-poison(.|\n)*READ of size 1(.|\n)*byte 3 of a block of it of 256 that was given "
      "back");
  block = buffer();
  ASSERT_EQ(block->data(), at);
  read(at, 3, stream_);
  wait(stream_);
}

// A block without a stream: its owner uses it at once, whatever earlier owners have queued.
TEST_F(BlockMarks, ABlockWithoutAStreamIsUsableAtOnce) {
  const auto memory = make_device_memory(Device::cuda(0));
  const Buffer all(*memory, 1024, MemoryTag::workspace);
  auto* const block = static_cast<std::byte*>(all.data());
  mark_taken(all.device(), block, 300, 512, of_library(), true);
  mark_given_back(all.device(), block, 512, of_library());
  mark_taken(all.device(), block + 256, 300, 512, {}, true);
  read(block, 256, nullptr);
  wait(nullptr);
  wait(stream_);
  read(block, 256, nullptr);
  wait(nullptr);
}

TEST_F(BlockMarks, ABlockIsNanUntilItIsWritten) {
  const auto word = [&](const void* at) {
    int value = 0;
    int* const out = &value;
    CUDA(enqueue(stream_, [=] { *out = peek(static_cast<const int*>(at)); }));
    wait(stream_);
    return value;
  };
  for (int round = 0; round < 2; ++round) {
    const Buffer block = buffer();
    EXPECT_EQ(word(block.data()), kFresh) << round;
    CUDA(set(static_cast<int*>(block.data()), 7, stream_));
    EXPECT_EQ(word(block.data()), 7);
  }
  const void* const at = buffer().data();
  EXPECT_EQ(word(at), kFreed);
}

// The blocks of a captured step live within each launch of its graph.
TEST_F(BlockMarksDeath, GraphsRepeatTheMarksOfTheirBlocks) {
  const Buffer before = buffer();  // keeps its block, so the next one gets another place
  std::optional<Buffer> from_outside = buffer();
  const void* const outside = from_outside->data();
  const auto launched = [&](bool after) {
    CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
    const void* block = nullptr;
    {
      const Buffer within = buffer();
      block = within.data();
      read(block, 0, stream_);
    }
    if (after) read(block, 0, stream_);
    cudaGraph_t graph = nullptr;
    CUDA(cudaStreamEndCapture(stream_, &graph));
    std::size_t nodes = 0;
    CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
    EXPECT_EQ(nodes, after ? 2u : 1u);
    cudaGraphExec_t made = nullptr;
    CUDA(cudaGraphInstantiate(&made, graph, 0));
    for (int i = 0; i < 2; ++i) CUDA(cudaGraphLaunch(made, stream_));
    wait(stream_);
    CUDA(cudaGraphExecDestroy(made));
    CUDA(cudaGraphDestroy(graph));
  };
  buffer().reset();  // no driver call is needed during the capture
  launched(false);
  EXPECT_DEATH(launched(true), "use-after-poison(.|\n)*was given back");

  // A block that is freed in a capture, but was allocated before it, must not be freed at each
  // launch: it may belong to another owner by then.
  CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
  from_outside.reset();
  read(before.data(), 0, stream_);
  cudaGraph_t graph = nullptr;
  CUDA(cudaStreamEndCapture(stream_, &graph));
  cudaGraphExec_t made = nullptr;
  CUDA(cudaGraphInstantiate(&made, graph, 0));
  const Buffer others = buffer();
  ASSERT_EQ(others.data(), outside);
  CUDA(cudaGraphLaunch(made, stream_));
  read(outside, 0, stream_);
  wait(stream_);
  CUDA(cudaGraphExecDestroy(made));
  CUDA(cudaGraphDestroy(graph));
}

}  // namespace
}  // namespace shoal::emulated_gpu
