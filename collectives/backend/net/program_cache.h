// Generates the program of each call once per shape, then reuses it.
#pragma once

#include <cstdint>
#include <list>
#include <memory>

#include "shoal/collectives/backend/net/compiled_program.h"
#include "shoal/collectives/call.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/collectives/select/algorithm_selector.h"

namespace shoal::collectives::net {

// Not thread-safe.
class ProgramCache {
 public:
  ProgramCache(int rank, int size, const CommunicatorOptions& options);

  // Sets the number of hosts that the ranks are on, for the selection table. Default: one host per
  // rank.
  void set_nodes(int nodes) { nodes_ = nodes; }

  // `acknowledged`: the call is a message that its receiver answers.
  std::shared_ptr<const CompiledProgram> get(const Call& call, bool acknowledged);

 private:
  struct Shape {
    Operation operation = Operation::barrier;
    bool acknowledged = false;
    std::int64_t element = 1;
    bool wide = false;  // partial results are wider than elements
    std::int64_t count = 0;
    int root = -1;
    std::vector<std::int64_t> counts, recv_counts;
    friend bool operator==(const Shape&, const Shape&) = default;
  };
  bool matches(const Shape& shape, const Call& call, bool acknowledged) const;
  // The algorithm that the options force, else the table's. With fixed_order, only algorithms that
  // sum by the canonical tree qualify.
  Selection select(const Call& call) const;
  algorithm::Program generate(const Call& call, const Selection& selection) const;

  int rank_, size_, nodes_;
  Algorithm forced_;
  bool fixed_order_;
  AlgorithmSelector selector_;
  std::list<std::pair<Shape, std::shared_ptr<const CompiledProgram>>> entries_;  // latest first
  std::int64_t instructions_ = 0;                                                // over all entries
};

}  // namespace shoal::collectives::net
