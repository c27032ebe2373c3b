#include "shoal/collectives/communicator.h"

#include "shoal/runtime/base/error.h"

namespace shoal::collectives {

void Work::wait() { wait(Deadline::in_seconds(default_deadline_seconds())); }

void Work::block_stream(Stream) { wait(); }

// Backends take these up one by one; until then the error names what is missing.
namespace {
[[noreturn]] void not_offered(const Communicator& communicator, const char* operation) {
  throw_error(ErrorCode::unavailable, "backend {} does not offer {} yet", communicator.backend(),
              operation);
}
}  // namespace

WorkPtr Communicator::reduce_scatter_v(const void*, void*, Counts, DType, Reduction, Stream) {
  not_offered(*this, "reduce_scatter_v");
}
WorkPtr Communicator::all_gather_v(const void*, void*, Counts, DType, Stream) {
  not_offered(*this, "all_gather_v");
}
WorkPtr Communicator::reduce(const void*, void*, std::int64_t, DType, Reduction, int, Stream) {
  not_offered(*this, "reduce");
}
WorkPtr Communicator::gather(const void*, void*, std::int64_t, DType, int, Stream) {
  not_offered(*this, "gather");
}
WorkPtr Communicator::scatter(const void*, void*, std::int64_t, DType, int, Stream) {
  not_offered(*this, "scatter");
}
WorkPtr Communicator::all_to_all(const void*, void*, std::int64_t, DType, Stream) {
  not_offered(*this, "all_to_all");
}
WorkPtr Communicator::all_to_all_v(const void*, Counts, void*, Counts, DType, Stream) {
  not_offered(*this, "all_to_all_v");
}
WorkPtr Communicator::send(const void*, std::int64_t, DType, int, Stream) {
  not_offered(*this, "send");
}
WorkPtr Communicator::recv(void*, std::int64_t, DType, int, Stream) { not_offered(*this, "recv"); }
WorkPtr Communicator::end_group() { not_offered(*this, "end_group"); }
void Communicator::begin_group() { not_offered(*this, "begin_group"); }
std::unique_ptr<Communicator> Communicator::split(int, int) { not_offered(*this, "split"); }
std::unique_ptr<Registration> Communicator::register_buffer(void*, std::int64_t) {
  return std::make_unique<Registration>();
}

}  // namespace shoal::collectives
