#include "shoal/collectives/long_work.h"

#include <utility>

#include "shoal/runtime/base/deadlines.h"

namespace shoal::collectives {

LongWork::LongWork(Communicator& ranks) : size_(ranks.size()) {
  if (size_ > 1) group_ = ranks.split(0, ranks.rank());
}

int LongWork::beat(Received received) {
  if (size_ == 1) return received != nullptr ? received->load() : 0;
  if (agreed_ != 0) return agreed_;
  if (work_) {
    if (!work_->test()) return 0;
    end_round();
    if (agreed_ != 0) return agreed_;
  }
  if (Clock::now() >= next_) begin_round(false, received);
  return 0;
}

int LongWork::agree(Received received) {
  if (size_ == 1) return received != nullptr ? received->load() : 0;
  begin_round(false, received);
  work_->wait();
  end_round();
  return agreed_;
}

int LongWork::finish(Received received) {
  if (size_ == 1) return received != nullptr ? received->load() : 0;
  for (all_done_ = false; !all_done_ && agreed_ == 0;) {
    if (!work_) begin_round(true, received);
    work_->wait();
    end_round();
  }
  return std::exchange(agreed_, 0);
}

void LongWork::abort(std::string_view reason) {
  if (group_) group_->abort(reason);
}

void LongWork::begin_round(bool done, Received received) {
  round_ = {received != nullptr ? received->load() : 0, done ? 0 : 1};
  next_ = Clock::now() + deadlines::kLookAtRanks;
  work_ = group_->all_reduce(round_.data(), round_.data(), std::ssize(round_), DType::i64,
                             ReduceOp::max);
}

void LongWork::end_round() {
  work_.reset();
  agreed_ = static_cast<int>(round_[0]);
  all_done_ = round_[1] == 0;
}

}  // namespace shoal::collectives
