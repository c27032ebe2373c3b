#include "shoal/collectives/backend/net/program_cache.h"

#include "shoal/collectives/backend/net/direct_programs.h"

namespace shoal::collectives {
namespace {

constexpr std::size_t kMostEntries = 64;
constexpr std::int64_t kMostInstructions = 1 << 16;

bool is_half(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }

// Sender: the message, then the receiver's word that it has it. Receiver: the reverse.
Program message_program(const Call& call, bool acknowledged) {
  Program program;
  Instruction data, answer;
  const bool sends = call.operation == Operation::send;
  data.verb = sends ? Verb::send : Verb::receive;
  answer.verb = sends ? Verb::receive : Verb::send;
  data.peer = answer.peer = call.root;
  answer.ordinal = 1;
  if (sends) {
    data.sources = {{Space::input, 0, call.count}};
  } else {
    data.target = {Space::output, 0, call.count};
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
      forced_(parse_algorithm(options.algorithm)),
      fixed_order_(options.fixed_order) {}

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
  auto compiled = std::make_shared<const CompiledProgram>(generate(call, acknowledged));
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

Program ProgramCache::generate(const Call& call, bool acknowledged) const {
  if (is_message(call.operation)) return message_program(call, acknowledged);
  return direct_program(call, rank_, size_);
}

}  // namespace shoal::collectives
