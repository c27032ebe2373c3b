#include "shoal/collectives/backend/net/program_cache.h"

#include <algorithm>

#include "shoal/collectives/algorithm/programs.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"

namespace shoal::collectives::net {
namespace {

constexpr std::size_t kMostEntries = 64;
constexpr std::int64_t kMostInstructions = 1 << 16;
constexpr std::int64_t kSliceBytes = 1 << 20;  // bytes of a slice, unless the table says
constexpr std::int64_t kGranule = 32;          // elements

bool is_half(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }

// The sender sends the message and, if acknowledged, receives an answer. The receiver does the
// reverse.
algorithm::Program message_program(const Call& call, bool acknowledged) {
  algorithm::Program program;
  algorithm::Instruction data, answer;
  const bool sends = call.operation == Operation::send;
  data.verb = sends ? algorithm::Verb::send : algorithm::Verb::receive;
  answer.verb = sends ? algorithm::Verb::receive : algorithm::Verb::send;
  data.peer = answer.peer = call.root;
  answer.ordinal = 1;
  if (sends) {
    data.sources = {{algorithm::Space::input, 0, call.count}};
  } else {
    data.target = {algorithm::Space::output, 0, call.count};
    answer.sources = {{}};
    answer.after = {0};
  }
  program.instructions.push_back(std::move(data));
  if (acknowledged) program.instructions.push_back(std::move(answer));
  return program;
}

}  // namespace

ProgramCache::ProgramCache(int rank, int size, const CommunicatorOptions& options)
    : rank_(rank),
      size_(size),
      nodes_(size),
      forced_(parse_algorithm(options.algorithm)),
      fixed_order_(options.fixed_order),
      selector_(make_selector(options.collectives)) {}

bool ProgramCache::matches(const Shape& shape, const Call& call, bool acknowledged) const {
  return shape.operation == call.operation && shape.count == call.count &&
         shape.element == static_cast<std::int64_t>(size_of(call.dtype)) &&
         shape.wide == is_half(call.dtype) && shape.root == call.root &&
         shape.acknowledged == acknowledged && shape.counts == call.counts &&
         shape.recv_counts == call.recv_counts;
}

std::shared_ptr<const CompiledProgram> ProgramCache::get(const Call& call, bool acknowledged) {
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry)
    if (matches(entry->first, call, acknowledged)) {
      entries_.splice(entries_.begin(), entries_, entry);
      return entry->second;
    }
  const bool is_call = !is_message(call.operation);
  const Selection selection = is_call ? select(call) : Selection{Algorithm::automatic, 0, ""};
  auto compiled = std::make_shared<const CompiledProgram>(
      is_call ? generate(call, selection) : message_program(call, acknowledged), selection);
  instructions_ += compiled->size();
  entries_.emplace_front(
      Shape{call.operation, acknowledged, static_cast<std::int64_t>(size_of(call.dtype)),
            is_half(call.dtype), call.count, call.root, call.counts, call.recv_counts},
      compiled);
  while (entries_.size() > 1 &&
         (entries_.size() > kMostEntries || instructions_ > kMostInstructions)) {
    instructions_ -= entries_.back().second->size();
    entries_.pop_back();
  }
  return compiled;
}

Selection ProgramCache::select(const Call& call) const {
  if (call.operation == Operation::split) return {Algorithm::direct, 0, ""};
  const auto all = candidates(call.operation);
  std::vector<Algorithm> offered(all.begin(), all.end());
  const bool ordered = fixed_order_ && call.reduces();
  if (ordered)
    std::erase_if(offered, [&](Algorithm algorithm) {
      return !algorithm::programs::sums_canonically(algorithm, size_, std::max(0, call.root));
    });
  if (std::ranges::count(offered, forced_) > 0) return {forced_, 0, "forced"};
  if (forced_ != Algorithm::automatic && call.operation != Operation::barrier)
    log::once(log::Level::info,
              fmt::format("forced-{}-{}", to_string(call.operation), to_string(forced_)),
              fmt::format("{} between hosts has no algorithm {}{}; the table chooses",
                          to_string(call.operation), to_string(forced_),
                          ordered ? " that keeps fixed_order" : ""));
  SelectionFacts facts;
  facts.operation = call.operation;
  facts.bytes = table_bytes(call, size_);
  facts.memory = MemoryKind::unknown;
  facts.ranks = size_;
  facts.nodes = nodes_;
  Selection selection = selector_.select(facts, offered);
  const std::string chosen =
      fmt::format("{} ranks: {} ({})", size_, to_string(selection.algorithm), selection.why);
  log::once(log::Level::debug, fmt::format("net-{}-{}", to_string(call.operation), chosen),
            fmt::format("{} of {} bytes, {}", to_string(call.operation), facts.bytes, chosen));
  return selection;
}

algorithm::Program ProgramCache::generate(const Call& call, const Selection& selection) const {
  const algorithm::Member member{rank_, size_};
  const Algorithm algorithm = selection.algorithm;
  const std::int64_t bytes = selection.slice > 0 ? selection.slice : kSliceBytes;
  const auto element = static_cast<std::int64_t>(size_of(call.dtype));
  const algorithm::Slicing slicing{std::max<std::int64_t>(1, bytes / element), kGranule};
  const std::vector<std::int64_t> equal(static_cast<std::size_t>(size_), call.count);
  const auto& counts = has_counts(call.operation) ? call.counts : equal;
  switch (call.operation) {
    case Operation::all_reduce:
      return algorithm::programs::all_reduce(algorithm, member, call.count, slicing);
    case Operation::reduce_scatter:
    case Operation::reduce_scatter_v:
      return algorithm::programs::reduce_scatter(algorithm, member, counts, slicing);
    case Operation::all_gather:
    case Operation::all_gather_v:
    case Operation::split:
      return algorithm::programs::all_gather(algorithm, member, counts, slicing);
    case Operation::broadcast:
      return algorithm::programs::broadcast(algorithm, member, call.count, call.root, slicing);
    case Operation::reduce:
      return algorithm::programs::reduce(algorithm, member, call.count, call.root, slicing);
    case Operation::gather:
      return algorithm::programs::gather(algorithm, member, call.count, call.root, slicing);
    case Operation::scatter:
      return algorithm::programs::scatter(algorithm, member, call.count, call.root, slicing);
    case Operation::all_to_all:
      return algorithm::programs::all_to_all(algorithm, member, counts, counts, slicing);
    case Operation::all_to_all_v:
      return algorithm::programs::all_to_all(algorithm, member, call.counts, call.recv_counts,
                                             slicing);
    case Operation::barrier:
      return algorithm::programs::barrier(member);
    case Operation::send:
    case Operation::recv:
      break;
  }
  throw_error(ErrorCode::internal, "a message is no collective");
}

}  // namespace shoal::collectives::net
