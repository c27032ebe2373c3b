#include "shoal/runtime/device/captured_work.h"

#include <algorithm>
#include <utility>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

thread_local CapturedWork* capturing = nullptr;
thread_local bool repeatable = false;

}  // namespace

bool is_capturing() { return capturing != nullptr; }

void host_node(std::function<void()> work) {
  if (capturing == nullptr) return work();
  if (!capturing->open_) return;  // the capture failed, and destructors still call this
  capturing->end_graph(std::move(work));
  capturing->begin_graph();
}

bool is_repeatable_step() { return repeatable; }

RepeatableStep::RepeatableStep() : before_(std::exchange(repeatable, true)) {}
RepeatableStep::~RepeatableStep() { repeatable = before_; }

CapturedWork::CapturedWork(DeviceBackend& backend, Stream stream, const std::function<void()>& work)
    : backend_(backend), stream_(stream) {
  SHOAL_CHECK(!is_capturing(), "a thread captures work inside another capture");
  struct Capturing {
    explicit Capturing(CapturedWork* captured) { capturing = captured; }
    ~Capturing() { capturing = nullptr; }
  };
  const Capturing scope(this);
  try {
    begin_graph();
    work();
    end_graph({});
  } catch (...) {
    if (open_) backend_.abandon_capture(stream_);
    throw;
  }
}

void CapturedWork::begin_graph() {
  backend_.begin_capture(stream_);
  open_ = true;
}

void CapturedWork::end_graph(std::function<void()> work) {
  open_ = false;
  pieces_.push_back({{backend_.end_capture(stream_), Destroy{&backend_}}, std::move(work)});
}

void CapturedWork::launch() const {
  for (const Piece& piece : pieces_) {
    if (piece.graph) backend_.launch_graph(piece.graph.get(), stream_);
    if (piece.work) piece.work();
  }
}

std::int64_t CapturedWork::graphs() const {
  return std::ranges::count_if(pieces_, [](const Piece& piece) { return piece.graph != nullptr; });
}

}  // namespace shoal
