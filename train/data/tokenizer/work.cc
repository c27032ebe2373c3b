#include "shoal/train/data/tokenizer/work.h"

#include <algorithm>
#include <utility>

#include "shoal/runtime/base/error.h"

namespace shoal {

constinit thread_local CorpusWork* CorpusWork::current_ = nullptr;
constinit thread_local Work* Work::current_ = nullptr;

CorpusWork::CorpusWork(std::int64_t bytes)
    : bytes_(bytes), left_(Work::kUnitsToLend + Work::kUnitsToLendOfAByte * bytes) {}

void CorpusWork::check() const {
  if (left_ < 0)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("the tokenizer takes too many steps on texts of {} bytes together", bytes_),
        "simplify its patterns: repetitions within repetitions take time without bound");
}

CorpusWork::Scope::Scope(CorpusWork& corpus) : before_(std::exchange(current_, &corpus)) {}
CorpusWork::Scope::~Scope() { current_ = before_; }

Work::Work(std::size_t bytes)
    : lent_(kUnitsToLend),
      left_(kUnitsAtLeast + kUnitsOfAByte * static_cast<std::int64_t>(bytes)),
      outermost_(current_ == nullptr) {
  if (!outermost_) return;
  if (const CorpusWork* corpus = CorpusWork::current_)
    lent_ = std::clamp<std::int64_t>(corpus->left_, 0, kUnitsToLend);
  left_ += lent_;
  current_ = this;
}

Work::~Work() {
  if (!outermost_) return;
  current_ = nullptr;
  if (CorpusWork::current_ != nullptr && left_ < lent_)
    CorpusWork::current_->left_ -= lent_ - left_;
}

void Work::spend(std::int64_t units, std::string_view step, std::size_t text) {
  spend(units);
  if (is_done())
    throw_error(ErrorCode::invalid_argument, "{}: the steps up to this one are too many for {}",
                step, place(text));
}

std::string Work::place(std::size_t text) {
  if (current_->lent_ < kUnitsToLend)
    return fmt::format("texts of {} bytes together", CorpusWork::current_->bytes_);
  return fmt::format("a text of {} bytes", text);
}

}  // namespace shoal
