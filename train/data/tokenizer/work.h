// Limits the work of a tokenizer's calls, since backtracking can take time exponential in the
// text's length. The limit counts steps instead of time, so that a text has the same outcome on
// every machine and in every thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace shoal {

class Work;

// Limits the work of the calls for one corpus, one call per text. Each text has an allowance that
// grows with its length. A call that needs more borrows from the corpus, which limits only the sum
// of these loans. Without that limit, each of many short texts could borrow 10 ms (see Work). The
// sum does not depend on the order of the calls, so the number of threads does not affect whether a
// corpus is refused.
class CorpusWork {
 public:
  // `bytes`: total size of all texts.
  explicit CorpusWork(std::int64_t bytes);
  // Call at the end. Throws invalid_argument if all calls together have taken too much. (A call
  // also throws if the corpus has too little left to lend.) Thread-safe.
  void check() const;

  // While a Scope exists, calls on its thread are for texts of the corpus.
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
  std::atomic<std::int64_t> left_;  // units that the corpus can still lend
};

// Limits the work of one call by the size of its text. A unit is about 4 ns. Nested calls on a
// thread share the outermost one's allowance. The loan of up to 10 ms is for patterns that group
// digits from the right, which take quadratic time on a long number. Usual tokenizers need half of
// the allowance that grows with the text. Internal to this folder.
class Work {
 public:
  explicit Work(std::size_t bytes);
  ~Work();
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  // Call only while a Work exists on this thread.
  static void spend(std::int64_t units) { current_->left_ -= units; }
  static bool is_done() { return current_->left_ < 0; }
  // Counts the work of a tokenizer's step on a text of `text` bytes. `step`: its name, with the
  // file. Throws invalid_argument if the call has done too much work.
  static void spend(std::int64_t units, std::string_view step, std::size_t text);
  // For errors: "a text of 30 bytes", or "texts of 900 bytes together" if the corpus could no
  // longer lend this call its allowance.
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
