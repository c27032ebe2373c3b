// Limits the work of a tokenizer's call, since backtracking can take time exponential in the text's
// length. The limit is in steps: a text has the same outcome on every machine and in every thread.
// Internal to this folder.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal {

// The work that one call may do for the text it reads. A unit is about 5 ns. Nested calls on a
// thread share the outermost one's allowance. The fixed part is 8 ms: patterns that group digits
// from the right take quadratic time on a long number. Usual tokenizers need half of the part that
// grows with the text.
class Work {
 public:
  explicit Work(std::size_t bytes);
  ~Work();
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  // Only within the life of a Work on this thread.
  static void spend(std::int64_t units) { current_->left_ -= units; }
  static bool is_done() { return current_->left_ < 0; }

 private:
  static constexpr std::int64_t kUnitsAtLeast = 1'600'000, kUnitsOfAByte = 150;
  static constinit thread_local Work* current_;
  std::int64_t left_;
  bool outermost_;
};

}  // namespace shoal
