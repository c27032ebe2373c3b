// Operations whose results are known exactly in every dtype, whatever the order of the additions
// (the idea of nccl-tests' verifiable): small whole numbers.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/transport/operation.h"

namespace shoal::collectives::test {

enum class Memory { plain, symmetric, mixed };  // mixed: symmetric on even ranks only

struct Case {
  Operation operation = Operation::all_reduce;  // send: every rank to its right and from its left
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  std::int64_t count = 0;  // of _v operations: the largest of the counts
  bool in_place = false;
  int misalignment = 0;  // bytes
  Memory memory = Memory::plain;
  int root = 0;
};
std::string describe(const Case& c);
// False where the operation has no such form: avg of integers, all_to_all in place ...
bool is_possible(const Case& c);

inline constexpr Operation kOperations[] = {
    Operation::all_reduce,   Operation::reduce_scatter, Operation::all_gather,
    Operation::broadcast,    Operation::reduce,         Operation::gather,
    Operation::scatter,      Operation::all_to_all,     Operation::reduce_scatter_v,
    Operation::all_gather_v, Operation::all_to_all_v,   Operation::send};
inline constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64,
                                    DType::i64, DType::i32,  DType::u8,  DType::i8};
inline constexpr auto kOps = [] {  // every one in the table
  std::array<ReduceOp, kReduceTraits.size()> all{};
  for (std::size_t op = 0; op < all.size(); ++op) all[op] = static_cast<ReduceOp>(op);
  return all;
}();

// Runs one operation and counts wrong elements: of the result, of a send buffer that should have
// stayed as it was, and of the guard bytes around both. Where every rank has the same result, one
// more is counted if it is not the same to the bit. A rank must call it in step with the others.
std::int64_t wrong_in(Communicator& communicator, const Case& c);

// A line, or none where nothing is wrong.
std::string check(Communicator& communicator, const Case& c);

// Every operation with every dtype and reduction over `counts`, the rest by turns; one line for
// each wrong case.
std::vector<std::string> check_everything(Communicator& communicator,
                                          const std::vector<std::int64_t>& counts);

}  // namespace shoal::collectives::test
