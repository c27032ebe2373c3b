#include "capture.h"

#include <algorithm>
#include <map>
#include <set>

namespace shoal::emulated_gpu {
namespace {

// Visits each active capture once, through one of its streams.
template <class F>
void for_captures(const F& visit) {
  std::set<Capture*> seen;
  for (const auto& [handle, stream] : Streams::get().streams)
    if (stream->capture && seen.insert(stream->capture.get()).second) visit(*stream->capture);
}

cudaError_t refuse(Capture& capture, cudaError_t error) {
  if (capture.invalid) return cudaErrorStreamCaptureInvalidated;
  invalidate(capture);
  return error;
}

// Runs a graph's branches: the origin's branch in order, the others as late as their waiters allow.
class GraphRun {
 public:
  GraphRun(const GraphBranches& branches, bool works)
      : branches_(branches), done_(branches.size()), works_(works) {}

  // Runs the origin's branch with the branches it waits for, then the remaining marks.
  void run_all() {
    run(0, branches_.front().size());
    for (std::size_t i = 1; i < branches_.size(); ++i) run(i, branches_[i].size());
  }
  void run(std::size_t branch, std::size_t count) {
    while (done_[branch] < count) {
      const GraphNode& node = branches_[branch][done_[branch]];
      if (node.after) run(node.after->branch, node.after->count);
      if (works_ && node.operation.work) node.operation.work();
      ++done_[branch];
    }
  }
  bool all_done() const {
    for (std::size_t i = 0; i < branches_.size(); ++i)
      for (std::size_t node = done_[i]; node < branches_[i].size(); ++node)
        if (branches_[i][node].operation.work && !branches_[i][node].operation.is_mark)
          return false;
    return true;
  }

 private:
  const GraphBranches& branches_;
  std::vector<std::size_t> done_;
  bool works_;
};

// One operation that runs a whole graph. Pinned memory that one of its copies writes is poisoned
// beforehand, unless the graph also uses that memory elsewhere.
Operation operation_of(const std::shared_ptr<const GraphBranches>& branches) {
  Operation whole;
  std::map<const Pinned*, int> times;
  for (const auto& branch : *branches)
    for (const GraphNode& node : branch) {
      for (const auto& used : node.operation.uses) ++times[used.get()];
      whole.uses.insert(whole.uses.end(), node.operation.uses.begin(), node.operation.uses.end());
      whole.fills.insert(whole.fills.end(), node.operation.fills.begin(),
                         node.operation.fills.end());
      whole.uses_unknown |= node.operation.uses_unknown;
    }
  std::erase_if(whole.fills, [&](const PinnedRange& range) {
    return whole.uses_unknown || times[range.memory.get()] > 1;
  });
  whole.work = [branches] { GraphRun(*branches, true).run_all(); };
  return whole;
}

}  // namespace

void invalidate(Capture& capture) { capture.invalid = true; }

cudaError_t note(Capture& capture, std::size_t branch, Operation operation) {
  if (capture.invalid) return cudaErrorStreamCaptureInvalidated;
  capture.branches[branch].push_back({std::move(operation), std::nullopt});
  return cudaSuccess;
}

cudaError_t note_record(CUstream_st& stream, CUevent_st& event) {
  if (stream.capture->invalid) return cudaErrorStreamCaptureInvalidated;
  event.record.reset();
  event.asked = 0;
  event.capture = stream.capture;
  event.branch = stream.branch;
  event.place = stream.capture->branches[stream.branch].size();
  return cudaSuccess;
}

cudaError_t note_wait(const std::shared_ptr<CUstream_st>& stream, CUevent_st& event) {
  if (!event.capture) {  // recorded outside; an event never recorded needs no wait
    if (!event.record) return cudaSuccess;
    return refuse(*stream->capture, cudaErrorStreamCaptureIsolation);
  }
  Capture& capture = *event.capture;
  if (capture.ended) {
    if (stream->capture) invalidate(*stream->capture);
    return cudaErrorCapturedEvent;
  }
  if (capture.invalid) return cudaErrorStreamCaptureInvalidated;
  if (stream->legacy) return refuse(capture, cudaErrorStreamCaptureImplicit);
  if (!stream->capture) {
    stream->capture = event.capture;
    stream->branch = capture.branches.size();
    capture.branches.emplace_back();
    capture.streams.push_back(stream);
  } else if (stream->capture != event.capture) {
    invalidate(capture);
    return refuse(*stream->capture, cudaErrorStreamCaptureMerge);
  }
  GraphNode wait;
  wait.after = {event.branch, event.place};
  capture.branches[stream->branch].push_back(std::move(wait));
  return cudaSuccess;
}

cudaError_t refuse_captured(const CUevent_st& event) {
  if (!event.capture->ended) invalidate(*event.capture);
  return cudaErrorCapturedEvent;
}

cudaError_t refuse_legacy(Lock&, int device) {
  cudaError_t refused = cudaSuccess;
  for (const auto& [handle, stream] : Streams::get().streams)
    if (stream->capture && stream->blocking && stream->device == device)
      refused = refuse(*stream->capture, cudaErrorStreamCaptureImplicit);
  return refused;
}

cudaError_t refuse_wait(Lock& lock, const std::shared_ptr<CUstream_st>& stream) {
  if (stream->capture) return refuse(*stream->capture, cudaErrorStreamCaptureUnsupported);
  return stream->legacy ? refuse_legacy(lock, stream->device) : cudaSuccess;
}

cudaError_t refuse_device_wait(Lock&, int device) {
  cudaError_t refused = cudaSuccess;
  for (const auto& [handle, stream] : Streams::get().streams)
    if (stream->capture && stream->device == device)
      refused = refuse(*stream->capture, cudaErrorStreamCaptureUnsupported);
  return refused;
}

cudaError_t refuse_unordered(Lock&) {
  cudaError_t refused = cudaSuccess;
  for_captures([&](Capture& capture) {
    const bool here = capture.thread == std::this_thread::get_id();
    if (capture.mode == cudaStreamCaptureModeGlobal ||
        (capture.mode == cudaStreamCaptureModeThreadLocal && here))
      refused = refuse(capture, cudaErrorStreamCaptureUnsupported);
  });
  return refused;
}

}  // namespace shoal::emulated_gpu

using namespace shoal::emulated_gpu;

struct CUgraph_st {
  std::shared_ptr<const GraphBranches> branches;
};
struct CUgraphExec_st {
  std::shared_ptr<const GraphBranches> branches;
  std::shared_ptr<Record> last;  // orders the launches of one graph
};

namespace {

std::set<cudaGraph_t>& graphs() {
  static auto& made = *new std::set<cudaGraph_t>;
  return made;
}
std::set<cudaGraphExec_t>& executables() {
  static auto& made = *new std::set<cudaGraphExec_t>;
  return made;
}

}  // namespace

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return call("cudaStreamBeginCapture", [&](Lock&) {
    const auto stream = stream_of(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (stream->legacy) return cudaErrorStreamCaptureUnsupported;
    if (stream->capture) return cudaErrorIllegalState;
    auto capture = std::make_shared<Capture>();
    capture->origin = stream;
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    capture->branches.emplace_back();
    capture->streams.push_back(stream);
    stream->capture = std::move(capture);
    stream->branch = 0;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  return call("cudaStreamEndCapture", [&](Lock&) {
    const auto stream = stream_of(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (!graph) return cudaErrorInvalidValue;
    *graph = nullptr;
    const std::shared_ptr<Capture> capture = stream->capture;
    if (!capture) return cudaErrorIllegalState;
    if (capture->origin != stream) return refuse(*capture, cudaErrorStreamCaptureUnmatched);
    if (capture->mode != cudaStreamCaptureModeRelaxed &&
        capture->thread != std::this_thread::get_id())
      return refuse(*capture, cudaErrorStreamCaptureWrongThread);
    capture->ended = true;
    for (const auto& captured : capture->streams) captured->capture.reset();
    capture->streams.clear();
    capture->origin.reset();
    if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
    GraphRun tried(capture->branches, false);
    tried.run(0, capture->branches.front().size());
    if (!tried.all_done()) return cudaErrorStreamCaptureUnjoined;
    *graph = new CUgraph_st{std::make_shared<const GraphBranches>(std::move(capture->branches))};
    graphs().insert(*graph);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return call("cudaStreamIsCapturing", [&](Lock& lock) {
    const auto stream = stream_of(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (!status) return cudaErrorInvalidValue;
    if (stream->legacy)
      if (const cudaError_t refused = refuse_legacy(lock, stream->device)) return refused;
    *status = !stream->capture           ? cudaStreamCaptureStatusNone
              : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                         : cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}

// An operation that only orders is an edge of the graph and not a node.
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  return call("cudaGraphGetNodes", [&](Lock&) {
    if (nodes || !count || !graphs().contains(graph)) return cudaErrorInvalidValue;
    std::size_t works = 0, marks = 0;
    for (const auto& branch : *graph->branches)
      for (const GraphNode& node : branch)
        if (node.operation.work) ++(node.operation.is_mark ? marks : works);
    *count = works > 0 ? works : std::min<std::size_t>(marks, 1);  // keeps marks-only graphs
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  return call("cudaGraphInstantiate", [&](Lock&) {
    if (!made || !graphs().contains(graph)) return cudaErrorInvalidValue;
    *made = new CUgraphExec_st{graph->branches, nullptr};
    executables().insert(*made);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t handle) {
  return call("cudaGraphLaunch", [&](Lock& lock) {
    const auto stream = stream_of(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (!executables().contains(graph)) return cudaErrorInvalidValue;
    Operation launch = operation_of(graph->branches);
    if (stream->capture) return submit(lock, stream, std::move(launch));
    const auto record = std::make_shared<Record>();
    launch.after = graph->last;
    launch.record = record;
    const cudaError_t status = submit(lock, stream, std::move(launch));
    if (status == cudaSuccess) graph->last = record;
    return status;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return call("cudaGraphDestroy", [&](Lock&) {
    if (!graphs().erase(graph)) return cudaErrorInvalidValue;
    delete graph;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  return call("cudaGraphExecDestroy", [&](Lock&) {
    if (!executables().erase(graph)) return cudaErrorInvalidValue;
    delete graph;
    return cudaSuccess;
  });
}
