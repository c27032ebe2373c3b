// Operations on small integers, whose results are exact in every dtype and for every order of
// additions (the idea of nccl-tests' verifiable).
#pragma once

#include <array>
#include <string>
#include <vector>

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/transport/operation.h"

namespace shoal::collectives::test {

enum class Memory { plain, symmetric, mixed };  // mixed: symmetric on even ranks only

struct Case {
  Operation operation = Operation::all_reduce;  // send: to the right, from the left
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  std::int64_t count = 0;  // of _v operations: the largest count
  bool in_place = false;
  int misalignment = 0;  // bytes
  Memory memory = Memory::plain;
  int root = 0;
};
std::string describe(const Case& c);
// False for combinations that do not exist, such as avg of integers or all_to_all in place.
bool is_possible(const Case& c);

inline constexpr Operation kOperations[] = {
    Operation::all_reduce,   Operation::reduce_scatter, Operation::all_gather,
    Operation::broadcast,    Operation::reduce,         Operation::gather,
    Operation::scatter,      Operation::all_to_all,     Operation::reduce_scatter_v,
    Operation::all_gather_v, Operation::all_to_all_v,   Operation::send};
inline constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64,
                                    DType::i64, DType::i32,  DType::u8,  DType::i8};
inline constexpr auto kOps = [] {  // all reductions of the table
  std::array<ReduceOp, kReduceTraits.size()> all{};
  for (std::size_t op = 0; op < all.size(); ++op) all[op] = static_cast<ReduceOp>(op);
  return all;
}();

// Runs one operation and counts wrong elements in the result, in a send buffer that must stay
// unchanged, and in the guard bytes around both. If all ranks must have the same result, a
// difference in bits adds one. All ranks must call it in step.
std::int64_t wrong_in(Communicator& communicator, const Case& c);

// Returns a line that describes the error, or an empty string.
std::string check(Communicator& communicator, const Case& c);

// Runs every operation with every dtype and reduction over `counts`, and varies the rest in turn.
// Returns one line for each wrong case.
std::vector<std::string> check_everything(Communicator& communicator,
                                          const std::vector<std::int64_t>& counts);

}  // namespace shoal::collectives::test
