// Tests captures and graphs: what is recorded and replayed, and what CUDA refuses during a capture.
#include <thread>

#include "rig.h"

namespace shoal::emulated_gpu {
namespace {

class Capturing : public ::testing::Test {
 protected:
  ~Capturing() override {
    if (executable_) (void)cudaGraphExecDestroy(executable_);
  }
  void begin() { CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed)); }
  cudaError_t end() {
    cudaGraph_t graph = nullptr;
    const cudaError_t status = cudaStreamEndCapture(stream_, &graph);
    if (status != cudaSuccess) {
      EXPECT_EQ(graph, nullptr);
      return status;
    }
    CUDA(cudaGraphInstantiate(&executable_, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    return status;
  }
  // Checks that the call fails with `expected` and ends the capture, and that the stream works
  // again afterwards.
  void expect_ended_by(cudaError_t expected, const std::function<cudaError_t()>& call) {
    begin();
    EXPECT_CUDA(expected, call());
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    CUDA(cudaStreamIsCapturing(stream_, &status));
    EXPECT_EQ(status, cudaStreamCaptureStatusInvalidated);
    EXPECT_CUDA(cudaErrorStreamCaptureInvalidated, set(memory_.data, 1, stream_));
    EXPECT_CUDA(cudaErrorStreamCaptureInvalidated, end());
    CUDA(set(memory_.data, 1, stream_));
    CUDA(cudaStreamSynchronize(stream_));
  }
  void run() {
    CUDA(cudaGraphLaunch(executable_, stream_));
    CUDA(cudaStreamSynchronize(stream_));
  }

  const Ints memory_{8};
  const OwnStream stream_, side_, third_;
  const OwnEvent fork_, join_;
  cudaGraphExec_t executable_ = nullptr;
};

TEST_F(Capturing, WorkIsRecordedAndReplayed) {
  const Ints pinned(1, Ints::pinned);
  int* const at = memory_.data;
  CUDA(cudaMemsetAsync(at, 0, 32, stream_));
  CUDA(cudaStreamSynchronize(stream_));
  begin();
  int added = 3;
  CUDA(launch(stream_, [=] { *at += added; }, {at}));
  added = 100;  // the graph keeps the argument's value
  CUDA(copy(at + 1, pinned.data, sizeof(int), stream_));
  EXPECT_CUDA(cudaSuccess, end());
  EXPECT_EQ(value_of(at), 0) << "the captured work ran: " << added;
  for (int turn = 1; turn < 4; ++turn) {
    *pinned.data = 10 * turn;
    run();
    EXPECT_EQ(value_of(at), 3 * turn);
    EXPECT_EQ(value_of(at + 1), 10 * turn) << "pinned memory is read when the graph runs";
  }
}

TEST_F(Capturing, ForksAndJoinsKeepTheirOrder) {
  int* const at = memory_.data;
  for (const bool waits : {true, false}) {
    CUDA(cudaMemsetAsync(at, 0, 32, stream_));
    CUDA(cudaStreamSynchronize(stream_));
    begin();
    CUDA(cudaEventRecord(fork_, stream_));
    CUDA(cudaStreamWaitEvent(side_, fork_));
    CUDA(set(at, 1, side_));
    CUDA(cudaEventRecord(join_, side_));
    if (waits) {
      CUDA(cudaStreamWaitEvent(stream_, join_));
    }
    CUDA(launch(stream_, [=] { at[1] = at[0]; }, {at}));
    if (!waits) {
      CUDA(cudaStreamWaitEvent(stream_, join_));
    }
    EXPECT_CUDA(cudaSuccess, end());
    CUDA(cudaStreamSynchronize(side_));  // no longer captured
    run();
    EXPECT_EQ(value_of(at), 1);
    EXPECT_EQ(value_of(at + 1), waits ? 1 : 0) << "work without a waiter runs last";
  }
}

TEST_F(Capturing, AForkThatIsNotJoinedIsAnError) {
  begin();
  CUDA(cudaEventRecord(fork_, stream_));
  CUDA(cudaStreamWaitEvent(side_, fork_));
  CUDA(set(memory_.data, 1, side_));
  CUDA(cudaEventRecord(join_, side_));
  CUDA(cudaStreamWaitEvent(stream_, join_));
  CUDA(set(memory_.data, 2, side_));  // after the join
  EXPECT_CUDA(cudaErrorStreamCaptureUnjoined, end());
}

TEST_F(Capturing, CallsThatWaitForTheStreamEndIt) {
  void* pointer = nullptr;
  int host = 0;
  expect_ended_by(cudaErrorStreamCaptureUnsupported,
                  [&] { return cudaStreamSynchronize(stream_); });
  expect_ended_by(cudaErrorStreamCaptureUnsupported, [] { return cudaDeviceSynchronize(); });
  expect_ended_by(cudaErrorStreamCaptureUnsupported,
                  [&] { return copy(&host, memory_.data, 4, stream_); });
  expect_ended_by(cudaErrorStreamCaptureUnsupported,
                  [&] { return copy(memory_.data, &host, 4, stream_); });
  expect_ended_by(cudaErrorCapturedEvent, [&] {
    CUDA(cudaEventRecord(fork_, stream_));
    return cudaEventQuery(fork_);
  });
  expect_ended_by(cudaErrorCapturedEvent, [&] {
    CUDA(cudaEventRecord(fork_, stream_));
    return cudaEventSynchronize(fork_);
  });
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, 0};
  cudaMemPool_t pool = nullptr;
  CUDA(cudaMemPoolCreate(&pool, &properties));
  expect_ended_by(cudaErrorStreamCaptureUnsupported,
                  [&] { return cudaMallocFromPoolAsync(&pointer, 4, pool, stream_); });
}

TEST_F(Capturing, WorkFromOutsideEndsIt) {
  CUDA(set(memory_.data, 1, side_));
  CUDA(cudaEventRecord(fork_, side_));
  expect_ended_by(cudaErrorStreamCaptureIsolation,
                  [&] { return cudaStreamWaitEvent(stream_, fork_); });
  CUDA(cudaStreamBeginCapture(side_, cudaStreamCaptureModeRelaxed));
  CUDA(cudaEventRecord(fork_, side_));
  expect_ended_by(cudaErrorStreamCaptureMerge, [&] { return cudaStreamWaitEvent(stream_, fork_); });
  cudaGraph_t graph = nullptr;
  EXPECT_CUDA(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(side_, &graph));
  EXPECT_CUDA(cudaErrorCapturedEvent, cudaStreamWaitEvent(side_, fork_));
}

TEST_F(Capturing, EndsOnItsStreamAndThread) {
  cudaGraph_t graph = nullptr;
  EXPECT_CUDA(cudaErrorIllegalState, cudaStreamEndCapture(stream_, &graph));
  EXPECT_CUDA(cudaErrorStreamCaptureUnsupported,
              cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed));
  begin();
  EXPECT_CUDA(cudaErrorIllegalState, cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
  CUDA(cudaEventRecord(fork_, stream_));
  CUDA(cudaStreamWaitEvent(side_, fork_));
  EXPECT_CUDA(cudaErrorStreamCaptureUnmatched, cudaStreamEndCapture(side_, &graph));
  EXPECT_CUDA(cudaErrorStreamCaptureInvalidated, end());
  CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  std::thread([&] {
    EXPECT_CUDA(cudaErrorStreamCaptureWrongThread, cudaStreamEndCapture(stream_, &graph));
  }).join();
  EXPECT_CUDA(cudaErrorStreamCaptureInvalidated, end());
}

// During a capture a library may call the driver only if the capture is relaxed.
TEST_F(Capturing, OnlyRelaxedCapturesAllowUnorderedCalls) {
  for (const cudaStreamCaptureMode mode :
       {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
        cudaStreamCaptureModeRelaxed}) {
    const bool relaxed = mode == cudaStreamCaptureModeRelaxed;
    CUDA(cudaStreamBeginCapture(stream_, mode));
    void* pointer = nullptr;
    EXPECT_CUDA(relaxed ? cudaSuccess : cudaErrorStreamCaptureUnsupported, cudaMalloc(&pointer, 4));
    CUDA(cudaFree(pointer));
    EXPECT_CUDA(relaxed ? cudaSuccess : cudaErrorStreamCaptureInvalidated, end());
  }
}

}  // namespace
}  // namespace shoal::emulated_gpu
