#include "shoal/collectives/backend/net/execution.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>

#include <fmt/format.h>

#include "shoal/collectives/backend/partial_sums.h"
#include "shoal/collectives/backend/tree_reduction.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives::net {
namespace {

constexpr std::int64_t kBlock = 2048;  // elements that stay in the L1 cache
constexpr int kFinished = -1;          // State::waits_for
constexpr std::size_t kMostNamed = 4;  // messages that an error lists

std::size_t index_of(int index) { return static_cast<std::size_t>(index); }

Buffer scratch_of(MemoryResource& memory, std::int64_t bytes) {
  return bytes == 0 ? Buffer()
                    : Buffer(memory, static_cast<std::size_t>(bytes), MemoryTag::communication);
}

bool is_message(algorithm::Verb verb) {
  return verb == algorithm::Verb::send || verb == algorithm::Verb::receive;
}

}  // namespace

void Execution::start(const ExecutionContext& context,
                      std::shared_ptr<const CompiledProgram> program, const Call& call,
                      transport::OperationKey key, const std::vector<int>& members) {
  program_ = std::move(program);
  call_ = &call;
  key_ = key;
  members_ = &members;
  const bool half = call.dtype == DType::bf16 || call.dtype == DType::f16;
  const bool scales = call.op == ReduceOp::premultiplied_sum && call.reduces();
  // The product may not be representable in 16 bits, so it travels as f32.
  dtype_ = half && scales ? DType::f32 : call.dtype;
  element_ = static_cast<std::int64_t>(size_of(dtype_));
  partial_element_ = half ? 4 : element_;
  scratch_ = scratch_of(context.scratch, program_->program().scratch * element_);
  partial_ = scratch_of(context.scratch, program_->program().partial * partial_element_);
  input_ = static_cast<const std::byte*>(call.send);
  output_ = static_cast<std::byte*>(call.recv);
  rounded_ = 0;
  if (scales)
    scale_input(context, static_cast<int>(std::ranges::find(members, context.endpoint.rank()) -
                                          members.begin()));

  unfinished_ = program_->size();
  states_.resize(index_of(unfinished_));
  ready_.clear();
  posted_.clear();
  for (int i = 0; i < unfinished_; ++i) {
    State& state = states_[index_of(i)];
    state.waits_for = program_->predecessors()[index_of(i)];
    state.completion.pending = 0;
    if (state.waits_for == 0) ready_.push_back(i);  // ascending, which is a valid heap
  }
}

// Factors differ between ranks, so each rank applies its own before it sends anything.
void Execution::scale_input(const ExecutionContext& context, int rank) {
  const int size = static_cast<int>(members_->size());
  const auto dense = static_cast<std::int64_t>(size_of(call_->dtype));
  const std::int64_t count = call_->send_bytes(rank, size) / dense;
  if (count == 0) return;
  scaled_ = scratch_of(context.scratch, count * element_);
  if (dtype_ == call_->dtype) {
    std::memcpy(scaled_.data(), call_->send, static_cast<std::size_t>(count * element_));
  } else {
    widen(call_->dtype, call_->send, static_cast<float*>(scaled_.data()), count);
    if (call_->recv) rounded_ = call_->recv_bytes(rank, size) / dense;
    wide_output_ = scratch_of(context.scratch, rounded_ * element_);
    output_ = static_cast<std::byte*>(wide_output_.data());
  }
  context.reduction.scale(dtype_, scaled_.data(), call_->factor, count, Stream{});
  input_ = static_cast<const std::byte*>(scaled_.data());
}

std::byte* Execution::at(const algorithm::Piece& piece) const {
  const std::int64_t offset = piece.begin * element(piece.space);
  switch (piece.space) {
    case algorithm::Space::input:
      return const_cast<std::byte*>(input_) + offset;
    case algorithm::Space::output:
      return output_ + offset;
    case algorithm::Space::scratch:
      return static_cast<std::byte*>(scratch_.data()) + offset;
    case algorithm::Space::partial:
      return static_cast<std::byte*>(partial_.data()) + offset;
  }
  SHOAL_ASSERT(false);
}

bool Execution::reap() {
  const auto still = std::ranges::partition(
      posted_, [this](int index) { return !states_[index_of(index)].completion.done(); });
  if (still.empty()) return false;
  // complete() only adds to ready_.
  for (const int index : still) complete(index);
  posted_.erase(still.begin(), still.end());
  return true;
}

void Execution::complete(int index) {
  --unfinished_;
  states_[index_of(index)].waits_for = kFinished;
  for (const int next : program_->successors(index))
    if (--states_[index_of(next)].waits_for == 0) {
      ready_.push_back(next);
      std::ranges::push_heap(ready_, std::greater<>());
    }
}

bool Execution::run(const ExecutionContext& context, std::int64_t& budget) {
  bool ran = false;
  while (!ready_.empty()) {
    const int index = ready_.front();
    const algorithm::Instruction& instruction = program_->at(index);
    if (!is_message(instruction.verb) && budget <= 0) return ran;
    std::ranges::pop_heap(ready_, std::greater<>());
    ready_.pop_back();
    ran = true;
    if (is_message(instruction.verb)) {
      post(context, index);
      continue;
    }
    budget -= compute(context, instruction);
    complete(index);
  }
  return ran;
}

void Execution::post(const ExecutionContext& context, int index) {
  const algorithm::Instruction& instruction = program_->at(index);
  State& state = states_[index_of(index)];
  const transport::MessageTag tag{key_, instruction.ordinal};
  const int peer = (*members_)[index_of(instruction.peer)];
  const bool sends = instruction.verb == algorithm::Verb::send;
  const algorithm::Piece& piece = sends ? instruction.sources.front() : instruction.target;
  const std::int64_t bytes = piece.count * element(piece.space);
  if (sends)
    context.endpoint.post_send(peer, tag, at(piece), bytes, state.completion);
  else
    context.endpoint.post_receive(peer, tag, at(piece), bytes, state.completion);
  if (state.completion.done()) return complete(index);
  state.started = Clock::now();
  posted_.push_back(index);
}

std::int64_t Execution::compute(const ExecutionContext& context,
                                const algorithm::Instruction& instruction) {
  if (instruction.target.count == 0) return 0;
  if (instruction.verb == algorithm::Verb::reduce)
    reduce(context, instruction);
  else
    copy(context, instruction);
  return instruction.target.count * element(instruction.target.space) *
         static_cast<std::int64_t>(instruction.sources.size() + 1);
}

void Execution::reduce(const ExecutionContext& context, const algorithm::Instruction& instruction) {
  const bool any_wide = wide(instruction.target.space) ||
                        std::ranges::any_of(instruction.sources, [this](const algorithm::Piece& p) {
                          return wide(p.space);
                        });
  const bool scaled = finishes_with_scale(instruction);
  if (instruction.in_tree && instruction.sources.size() > 3) {  // else it is the left fold
    sources_.clear();
    for (const algorithm::Piece& piece : instruction.sources) sources_.push_back(at(piece));
    return reduce_in_tree(context.reduction, traits(call_->op).fold, dtype_, sources_, {},
                          final_factor(instruction), at(instruction.target),
                          instruction.target.count);
  }
  // Rounds a 16-bit average once, after scaling.
  if (any_wide || (scaled && partial_element_ != element_))
    return fold_as_f32(context, instruction);
  sources_.clear();
  for (const algorithm::Piece& piece : instruction.sources) sources_.push_back(at(piece));
  context.reduction.reduce(traits(call_->op).fold, dtype_, sources_, at(instruction.target),
                           instruction.target.count, Stream{});
  if (scaled)
    context.reduction.scale(dtype_, at(instruction.target), final_factor(instruction),
                            instruction.target.count, Stream{});
}

void Execution::fold_as_f32(const ExecutionContext& context,
                            const algorithm::Instruction& instruction) {
  alignas(64) std::array<float, kBlock> sum, next;
  const auto load = [&](const algorithm::Piece& piece, std::int64_t begin, std::int64_t n,
                        float* to) {
    const std::byte* from = at(piece) + begin * element(piece.space);
    if (wide(piece.space))
      std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(float));
    else
      widen(dtype_, from, to, n);
  };
  const std::int64_t count = instruction.target.count;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, count - begin);
    load(instruction.sources.front(), begin, n, sum.data());
    for (std::size_t s = 1; s < instruction.sources.size(); ++s) {
      load(instruction.sources[s], begin, n, next.data());
      const std::array<const void*, 2> both{sum.data(), next.data()};
      context.reduction.reduce(traits(call_->op).fold, DType::f32, both, sum.data(), n, Stream{});
    }
    if (finishes_with_scale(instruction))
      context.reduction.scale(DType::f32, sum.data(), final_factor(instruction), n, Stream{});
    std::byte* to = at(instruction.target) + begin * element(instruction.target.space);
    if (wide(instruction.target.space))
      std::memcpy(to, sum.data(), static_cast<std::size_t>(n) * sizeof(float));
    else
      narrow(dtype_, sum.data(), to, n);
  }
}

void Execution::copy(const ExecutionContext& context, const algorithm::Instruction& instruction) {
  const algorithm::Piece& source = instruction.sources.front();
  if (wide(source.space) || wide(instruction.target.space))
    return fold_as_f32(context, instruction);
  const std::byte* from = at(source);
  std::byte* to = at(instruction.target);
  if (from != to)
    std::memmove(to, from, static_cast<std::size_t>(instruction.target.count * element_));
  if (finishes_with_scale(instruction))
    context.reduction.scale(dtype_, to, final_factor(instruction), instruction.target.count,
                            Stream{});
}

void Execution::finish() {
  if (rounded_ > 0)
    narrow(call_->dtype, static_cast<const float*>(wide_output_.data()), call_->recv, rounded_);
  wide_output_.reset();
  scratch_.reset();
  partial_.reset();
  scaled_.reset();
  program_.reset();
  call_ = nullptr;
}

std::string Execution::missing(std::vector<int>& peers) const {
  // A rank that has sent something has called the operation and may itself be waiting. The list
  // therefore begins with the ranks from which nothing has come.
  const auto peer_of = [this](int index) {
    return (*members_)[index_of(program_->at(index).peer)];
  };
  std::vector<int> pending, heard;
  for (int i = 0; i < program_->size(); ++i)
    if (states_[index_of(i)].waits_for == kFinished &&
        program_->at(i).verb == algorithm::Verb::receive)
      heard.push_back(peer_of(i));
  for (const int index : posted_)
    if (!states_[index_of(index)].completion.done()) pending.push_back(index);
  const auto is_quiet = [&](int index) {
    return std::ranges::find(heard, peer_of(index)) == heard.end();
  };
  const auto rest = std::ranges::stable_partition(pending, is_quiet);
  if (rest.begin() != pending.begin()) pending.erase(rest.begin(), rest.end());

  std::string text;
  for (std::size_t i = 0; i < pending.size(); ++i) {
    const int index = pending[i], peer = peer_of(index);
    if (std::ranges::find(peers, peer) == peers.end()) peers.push_back(peer);
    if (i >= kMostNamed) continue;
    const algorithm::Instruction& instruction = program_->at(index);
    const bool sends = instruction.verb == algorithm::Verb::send;
    const algorithm::Piece& piece = sends ? instruction.sources.front() : instruction.target;
    text += fmt::format("{}{} of {} bytes {} rank {} (instruction {} of {}, for {:.1f} s)",
                        i == 0 ? "" : ", ", sends ? "send" : "receive",
                        piece.count * element(piece.space), sends ? "to" : "from", peer, index,
                        program_->size(), seconds_since(states_[index_of(index)].started));
  }
  if (pending.size() > kMostNamed) text += fmt::format(" and {} more", pending.size() - kMostNamed);
  return text;
}

}  // namespace shoal::collectives::net
