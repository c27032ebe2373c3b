// Operations whose results are known exactly in every dtype, whatever the order of the additions
// (the idea of nccl-tests' verifiable): small whole numbers.
#pragma once

#include <string>
#include <vector>

#include "shoal/collectives/communicator.h"

namespace shoal::collectives::test {

enum class Memory { plain, symmetric, mixed };  // mixed: symmetric on even ranks only

struct Case {
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  std::int64_t count = 0;
  bool in_place = false;
  int misalignment = 0;  // elements
  Memory memory = Memory::plain;
};
std::string describe(const Case& c);

inline constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64,
                                    DType::i64, DType::i32,  DType::u8,  DType::i8};
inline constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::prod, ReduceOp::min, ReduceOp::max,
                                    ReduceOp::avg};

// Each runs one collective and counts wrong elements, guard bytes around the result included.
// A rank must call them in the same order as the others.
std::int64_t wrong_in_all_reduce(Communicator& communicator, const Case& c);
std::int64_t wrong_in_reduce_scatter(Communicator& communicator, const Case& c);
std::int64_t wrong_in_all_gather(Communicator& communicator, const Case& c);
std::int64_t wrong_in_broadcast(Communicator& communicator, const Case& c, int root);

// All of them for every dtype and operation over `counts`; one line for each wrong case.
std::vector<std::string> check_everything(Communicator& communicator,
                                          const std::vector<std::int64_t>& counts);

}  // namespace shoal::collectives::test
