#include "shoal/collectives/transport/operation.h"

#include <fmt/format.h>

namespace shoal::collectives {

std::string describe(const Signature& s) {
  if (s.operation == Operation::barrier || s.operation == Operation::split)
    return std::string(to_string(s.operation));
  std::string text =
      s.operation == Operation::all_to_all_v
          ? fmt::format("all_to_all_v of {}", to_string(s.dtype))
          : fmt::format("{} of {} {}", to_string(s.operation), s.count, to_string(s.dtype));
  if (reduces(s.operation)) text += fmt::format(", {}", to_string(s.reduce));
  if (has_root(s.operation)) text += fmt::format(", root {}", s.root);
  if (s.operation == Operation::send) text += fmt::format(" to rank {}", s.root);
  if (s.operation == Operation::recv) text += fmt::format(" from rank {}", s.root);
  return text;
}

std::uint64_t hash_counts(std::span<const std::int64_t> counts) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::int64_t count : counts)
    for (int byte = 0; byte < 8; ++byte) {
      hash ^= (static_cast<std::uint64_t>(count) >> (8 * byte)) & 0xff;
      hash *= 0x100000001b3;
    }
  return hash == 0 ? 1 : hash;
}

}  // namespace shoal::collectives
