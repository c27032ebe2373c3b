#include "shoal/collectives/long_work.h"

#include <utility>

#include "shoal/runtime/base/deadlines.h"

namespace shoal::collectives {

LongWork::LongWork(Communicator& ranks) : size_(ranks.size()) {
  if (size_ > 1) group_ = ranks.split(0, ranks.rank());
}

int LongWork::beat(Told told) {
  if (size_ == 1) return told != nullptr ? told->load() : 0;
  if (told_ != 0) return told_;
  if (work_) {
    if (!work_->test()) return 0;
    end_round();
    if (told_ != 0) return told_;
  }
  if (Clock::now() >= next_) begin_round(false, told);
  return 0;
}

int LongWork::agree(Told told) {
  if (size_ == 1) return told != nullptr ? told->load() : 0;
  begin_round(false, told);
  work_->wait();
  end_round();
  return told_;
}

int LongWork::finish(Told told) {
  if (size_ == 1) return told != nullptr ? told->load() : 0;
  for (all_done_ = false; !all_done_ && told_ == 0;) {
    if (!work_) begin_round(true, told);
    work_->wait();
    end_round();
  }
  return std::exchange(told_, 0);
}

void LongWork::abort(std::string_view reason) {
  if (group_) group_->abort(reason);
}

void LongWork::begin_round(bool done, Told told) {
  round_ = {told != nullptr ? told->load() : 0, done ? 0 : 1};
  next_ = Clock::now() + deadlines::kLookAtRanks;
  work_ = group_->all_reduce(round_.data(), round_.data(), std::ssize(round_), DType::i64,
                             ReduceOp::max);
}

void LongWork::end_round() {
  work_.reset();
  told_ = static_cast<int>(round_[0]);
  all_done_ = round_[1] == 0;
}

}  // namespace shoal::collectives
