// A Program with successor lists, by which a finished instruction finds the instructions it
// releases. All operations of one shape share it.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "shoal/collectives/algorithm/program.h"
#include "shoal/collectives/select/algorithm_selector.h"

namespace shoal::collectives::net {

class CompiledProgram {
 public:
  // Throws internal if an instruction waits for one that does not precede it.
  explicit CompiledProgram(algorithm::Program program,
                           Selection selection = {Algorithm::automatic, 0, ""});

  const algorithm::Program& program() const { return program_; }
  const Selection& selection() const { return selection_; }  // made this program
  int size() const { return static_cast<int>(program_.instructions.size()); }
  const algorithm::Instruction& at(int index) const {
    return program_.instructions[static_cast<std::size_t>(index)];
  }
  // By instruction: number of instructions that must finish before it may start.
  const std::vector<int>& predecessors() const { return predecessors_; }
  std::span<const int> successors(int index) const {
    const auto i = static_cast<std::size_t>(index);
    return std::span(successors_)
        .subspan(static_cast<std::size_t>(first_[i]),
                 static_cast<std::size_t>(first_[i + 1] - first_[i]));
  }

 private:
  algorithm::Program program_;
  Selection selection_;
  std::vector<int> predecessors_, first_, successors_;
};

}  // namespace shoal::collectives::net
