// Work noted instead of queued, and the graphs made of it. A graph keeps the branches that its
// streams made, so that inside it, too, what nobody waits for comes last.
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
  std::optional<Place> after;  // so many nodes of that branch come first
};
using GraphBranches = std::vector<std::vector<GraphNode>>;

struct Capture {
  std::shared_ptr<CUstream_st> origin;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  bool invalid = false, ended = false;
  GraphBranches branches;  // of the origin, then of each stream that joined
  std::vector<std::shared_ptr<CUstream_st>> streams;
  std::set<const void*> handed_out;  // blocks that the library has cut within it (block_marks.cc)
};

// What is asked of a stream that is captured, or of an event that was recorded in a capture.
cudaError_t note(Capture& capture, std::size_t branch, Operation operation);
cudaError_t note_record(CUstream_st& stream, CUevent_st& event);
cudaError_t note_wait(const std::shared_ptr<CUstream_st>& stream, CUevent_st& event);
cudaError_t refuse_captured(const CUevent_st& event);
// The legacy stream would wait for a blocking stream that is captured.
cudaError_t refuse_legacy(Lock& lock, int device);
void invalidate(Capture& capture);

}  // namespace shoal::emulated_gpu
