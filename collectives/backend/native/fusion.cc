#include "shoal/collectives/backend/native/fusion.h"

#include <algorithm>
#include <cstring>

namespace shoal::collectives::native {
namespace {

constexpr std::int64_t kMostFusedBytes = std::int64_t{1} << 20;

std::size_t bytes_of(const Call& call) { return static_cast<std::size_t>(call.send_bytes(0, 1)); }

std::int64_t sum_of(const std::vector<Call>& calls) {
  std::int64_t bytes = 0;
  for (const Call& call : calls) bytes += call.send_bytes(0, 1);
  return bytes;
}

bool worth_it(const Call& call) {
  return call.operation == Operation::all_reduce && call.count > 0 &&
         call.send_bytes(0, 1) <= Fusion::kMostBytes;
}

}  // namespace

Fusion::Fusion(std::vector<Call> parts, MemoryResource& memory)
    : parts_(std::move(parts)),
      buffer_(memory, static_cast<std::size_t>(sum_of(parts_)), MemoryTag::communication) {}

Call Fusion::call() const {
  Call call = parts_.front();
  call.send = call.recv = const_cast<void*>(static_cast<const void*>(buffer_.data()));
  call.count = 0;
  for (const Call& part : parts_) {
    call.count += part.count;
    call.counts.push_back(part.count);
  }
  return call;
}

void Fusion::pack() {
  auto* to = static_cast<std::byte*>(buffer_.data());
  for (const Call& part : parts_) {
    std::memcpy(to, part.send, bytes_of(part));
    to += bytes_of(part);
  }
}

void Fusion::unpack() {
  const auto* from = static_cast<const std::byte*>(buffer_.data());
  for (const Call& part : parts_) {
    std::memcpy(part.recv, from, bytes_of(part));
    from += bytes_of(part);
  }
}

std::vector<std::vector<Call>> fusible(std::vector<Call> calls) {
  std::vector<std::vector<Call>> lists;
  for (Call& call : calls) {
    const auto joins = [&](const std::vector<Call>& list) {
      const Call& first = list.front();
      // Calls with premultiplied_sum are not fused, because their factors differ between ranks.
      return worth_it(first) && first.dtype == call.dtype && first.op == call.op &&
             call.op != ReduceOp::premultiplied_sum &&
             sum_of(list) + call.send_bytes(0, 1) <= kMostFusedBytes;
    };
    const auto found = worth_it(call) ? std::ranges::find_if(lists, joins) : lists.end();
    if (found != lists.end()) {
      found->push_back(std::move(call));
    } else {
      lists.emplace_back();
      lists.back().push_back(std::move(call));
    }
  }
  return lists;
}

}  // namespace shoal::collectives::native
