#include "shoal/collectives/backend/net/compiled_program.h"

#include "shoal/runtime/base/error.h"

namespace shoal::collectives::net {

CompiledProgram::CompiledProgram(algorithm::Program program, Selection selection)
    : program_(std::move(program)), selection_(std::move(selection)) {
  const auto n = program_.instructions.size();
  predecessors_.resize(n);
  first_.assign(n + 1, 0);
  for (std::size_t i = 0; i < n; ++i) {
    const algorithm::Instruction& instruction = program_.instructions[i];
    predecessors_[i] = static_cast<int>(instruction.after.size());
    for (const int before : instruction.after) {
      SHOAL_ASSERT(before >= 0 && static_cast<std::size_t>(before) < i);
      ++first_[static_cast<std::size_t>(before) + 1];
    }
  }
  for (std::size_t i = 0; i < n; ++i) first_[i + 1] += first_[i];
  successors_.resize(static_cast<std::size_t>(first_[n]));
  std::vector<int> next(first_.begin(), first_.end() - 1);
  for (std::size_t i = 0; i < n; ++i)
    for (const int before : program_.instructions[i].after)
      successors_[static_cast<std::size_t>(next[static_cast<std::size_t>(before)]++)] =
          static_cast<int>(i);
}

}  // namespace shoal::collectives::net
