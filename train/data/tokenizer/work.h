// Limits the work of a tokenizer's calls, since backtracking can take time exponential in the
// text's length. The limit is in steps: a text has the same outcome on every machine and in every
// thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace shoal {

class Work;

// The texts of one corpus, one call each. Each text has an allowance that grows with its length.
// What a call takes beyond it is lent by the corpus, of whose loans only the sum is limited.
// Otherwise each of many short texts could take as long as the patterns of a long number, which is
// 10 ms. The sum does not depend on the order of the calls, so a corpus is refused or not whatever
// the number of threads.
class CorpusWork {
 public:
  // `bytes`: of all texts.
  explicit CorpusWork(std::int64_t bytes);
  // For the end: throws invalid_argument if the calls have taken too much together. (A call also
  // throws if too little is left to lend.) Thread-safe.
  void check() const;

  // While it lives, calls on this thread are for texts of the corpus.
  class Scope {
   public:
    explicit Scope(CorpusWork& corpus);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    CorpusWork* before_;
  };

 private:
  friend class Work;
  static constinit thread_local CorpusWork* current_;
  std::int64_t bytes_;
  std::atomic<std::int64_t> left_;  // to lend
};

// The work that one call may do for the text it reads. A unit is about 4 ns. Nested calls on a
// thread share the outermost one's allowance. The loan of up to 10 ms is for patterns that group
// digits from the right, which take quadratic time on a long number. Usual tokenizers need half of
// the part that grows with the text. Internal to this folder.
class Work {
 public:
  explicit Work(std::size_t bytes);
  ~Work();
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  // Only within the life of a Work on this thread.
  static void spend(std::int64_t units) { current_->left_ -= units; }
  static bool is_done() { return current_->left_ < 0; }
  // For one of a tokenizer's steps on a text of `text` bytes. `step`: its name, with the file.
  // Throws invalid_argument if the steps so far are too many.
  static void spend(std::int64_t units, std::string_view step, std::size_t text);
  // "a text of 30 bytes", or the corpus if it had too little left to lend.
  static std::string place(std::size_t text);

 private:
  friend class CorpusWork;
  static constexpr std::int64_t kUnitsAtLeast = 400, kUnitsOfAByte = 150;
  static constexpr std::int64_t kUnitsToLend = 2'200'000, kUnitsToLendOfAByte = 100;
  static constinit thread_local Work* current_;
  std::int64_t lent_, left_;
  bool outermost_;
};

}  // namespace shoal
