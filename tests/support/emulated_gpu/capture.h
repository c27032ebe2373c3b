// Captured work and the graphs made from it. A graph keeps the branches of its streams, so that
// inside it, too, work that no operation waits for runs last.
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "streams.h"

namespace shoal::emulated_gpu {

struct GraphNode {
  Operation operation;
  struct Place {
    std::size_t branch = 0, count = 0;
  };
  std::optional<Place> after;  // wait until that branch has run this many nodes
};
using GraphBranches = std::vector<std::vector<GraphNode>>;

struct Capture {
  std::shared_ptr<CUstream_st> origin;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  bool invalid = false, ended = false;
  GraphBranches branches;  // the origin's branch, then one for each stream that joined
  std::vector<std::shared_ptr<CUstream_st>> streams;
  std::set<const void*> handed_out;  // blocks that the library has cut within it (block_marks.cc)
};

// Record an operation on a captured stream, or on an event that was recorded in a capture.
cudaError_t note(Capture& capture, std::size_t branch, Operation operation);
cudaError_t note_record(CUstream_st& stream, CUevent_st& event);
cudaError_t note_wait(const std::shared_ptr<CUstream_st>& stream, CUevent_st& event);
cudaError_t refuse_captured(const CUevent_st& event);
// Refuses a use of the legacy stream while a blocking stream is captured, because it would wait for
// it.
cudaError_t refuse_legacy(Lock& lock, int device);
void invalidate(Capture& capture);

}  // namespace shoal::emulated_gpu
