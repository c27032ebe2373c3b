// Moves the data of each collective once all cards match.
#include <cstring>

#include "shoal/collectives/backend/mpi/engine.h"
#include "shoal/collectives/backend/tree_reduction.h"
#include "shoal/collectives/call.h"
#include "shoal/runtime/base/log.h"

namespace shoal::collectives::mpi {
namespace {

MPI_Op mpi_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::prod:
      return MPI_PROD;
    case ReduceOp::min:
      return MPI_MIN;
    case ReduceOp::max:
      return MPI_MAX;
    case ReduceOp::sum:
    case ReduceOp::avg:
    case ReduceOp::premultiplied_sum:
      break;
  }
  return MPI_SUM;
}

// Appends counts and offsets as MPI's ints. submit() has checked that they fit.
void append_parts(const std::vector<std::int64_t>& from, std::vector<int>& counts,
                  std::vector<int>& offsets) {
  std::int64_t offset = 0;
  for (const std::int64_t count : from) {
    counts.push_back(static_cast<int>(count));
    offsets.push_back(static_cast<int>(offset));
    offset += count;
  }
}

}  // namespace

std::string_view MpiEngine::why_exchanged(const Call& call) const {
  if (!call.reduces()) return {};
  if (fixed_order_ && is_floating(call.dtype)) return "in fixed order, which MPI's have not";
  if (call.operation != Operation::all_reduce && call.operation != Operation::reduce)
    return "in parts, whose in-place form differs from MPI's";
  if (call.op == ReduceOp::premultiplied_sum) return "with factors, which MPI's have not";
  if (call.dtype == DType::bf16 || call.dtype == DType::f16)
    return "of 16-bit floats, which MPI's cannot add";
  if ((call.op == ReduceOp::min || call.op == ReduceOp::max) && is_floating(call.dtype))
    return "min and max of floats, where MPI's drop NaN";
  return {};
}

void MpiEngine::start_data(MpiOperation& o) {
  const Call& c = o.call;
  // Other ranks may send in an all_to_all_v even if this rank does not.
  if (c.operation == Operation::barrier || (c.count == 0 && c.operation != Operation::all_to_all_v))
    return finish(o);
  if (c.reduces() && !reduced_by_mpi(c)) return start_exchange(o);
  o.requests = {start_move(o)};
  o.stage = MpiOperation::Stage::gather;
}

MPI_Request MpiEngine::start_move(MpiOperation& o) {
  const Call& c = o.call;
  const int count = static_cast<int>(c.count);
  const MPI_Datatype type = mpi_type(c.dtype);
  const std::int64_t own = rank_ * c.count * static_cast<std::int64_t>(size_of(c.dtype));
  const auto* send = static_cast<const std::byte*>(c.send);
  auto* recv = static_cast<std::byte*>(c.recv);
  const auto from = [&](bool in_place) { return in_place ? MPI_IN_PLACE : c.send; };
  MPI_Request request = MPI_REQUEST_NULL;
  int code = MPI_SUCCESS;
  switch (c.operation) {
    case Operation::all_reduce:
      code = MPI_Iallreduce(from(send == recv), recv, count, type, mpi_op(c.op), data_, &request);
      break;
    case Operation::reduce:
      code = MPI_Ireduce(from(rank_ == c.root && send == recv), recv, count, type, mpi_op(c.op),
                         c.root, data_, &request);
      break;
    case Operation::all_gather:
    case Operation::split:
      code =
          MPI_Iallgather(from(send == recv + own), count, type, recv, count, type, data_, &request);
      break;
    case Operation::all_gather_v:
      append_parts(c.counts, o.counts, o.offsets);
      code = MPI_Iallgatherv(from(send == recv + o.offsets[static_cast<std::size_t>(rank_)] *
                                                     static_cast<std::int64_t>(size_of(c.dtype))),
                             o.counts[static_cast<std::size_t>(rank_)], type, recv, o.counts.data(),
                             o.offsets.data(), type, data_, &request);
      break;
    case Operation::gather:
      code = MPI_Igather(from(rank_ == c.root && send == recv + own), count, type, recv, count,
                         type, c.root, data_, &request);
      break;
    case Operation::scatter:
      code = MPI_Iscatter(send, count, type,
                          rank_ == c.root && recv == send + own ? MPI_IN_PLACE : c.recv, count,
                          type, c.root, data_, &request);
      break;
    case Operation::all_to_all:
      code = MPI_Ialltoall(send, count, type, recv, count, type, data_, &request);
      break;
    case Operation::all_to_all_v:
      append_parts(c.counts, o.own_counts, o.own_offsets);
      append_parts(c.recv_counts, o.counts, o.offsets);
      code = MPI_Ialltoallv(send, o.own_counts.data(), o.own_offsets.data(), type, recv,
                            o.counts.data(), o.offsets.data(), type, data_, &request);
      break;
    case Operation::broadcast:
      code = MPI_Ibcast(recv, count, type, c.root, data_, &request);
      break;
    default:
      SHOAL_ASSERT(false);
  }
  check_mpi(code, "a collective");
  return request;
}

algorithm::Range MpiEngine::part(const Call& c, int peer) const {
  if (c.operation == Operation::reduce_scatter) return {peer * c.count, (peer + 1) * c.count};
  if (c.operation != Operation::reduce_scatter_v) return algorithm::shard(c.count, size_, peer, 64);
  std::int64_t begin = 0;
  for (int rank = 0; rank < peer; ++rank) begin += c.counts[static_cast<std::size_t>(rank)];
  return {begin, begin + c.counts[static_cast<std::size_t>(peer)]};
}

// Every rank receives its part of all ranks' buffers, in rank order.
void MpiEngine::start_exchange(MpiOperation& o) {
  const Call& c = o.call;
  const std::string_view why = why_exchanged(c);
  log::once(log::Level::info, why,
            fmt::format("mpi: inputs are exchanged and reduced here in place of MPI's own "
                        "reductions: {} {}",
                        to_string(c.operation), why));
  const algorithm::Range mine = part(c, rank_);
  o.scratch.resize(static_cast<std::size_t>(mine.size() * size_) * size_of(c.dtype));
  for (int peer = 0; peer < size_; ++peer) {
    const algorithm::Range theirs = part(c, peer);
    o.own_counts.push_back(static_cast<int>(theirs.size()));
    o.own_offsets.push_back(static_cast<int>(theirs.begin));
    o.counts.push_back(static_cast<int>(mine.size()));
    o.offsets.push_back(static_cast<int>(mine.size() * peer));
  }
  MPI_Request request = MPI_REQUEST_NULL;
  const MPI_Datatype type = mpi_type(c.dtype);
  check_mpi(
      MPI_Ialltoallv(c.send, o.own_counts.data(), o.own_offsets.data(), type, o.scratch.data(),
                     o.counts.data(), o.offsets.data(), type, data_, &request),
      "MPI_Ialltoallv");
  o.requests = {request};
  o.stage = MpiOperation::Stage::exchange;
}

void MpiEngine::finish_exchange(MpiOperation& o) {
  const Call& c = o.call;
  const algorithm::Range mine = part(c, rank_);
  const auto element = static_cast<std::int64_t>(size_of(c.dtype));
  std::vector<const void*> sources;
  std::vector<double> factors;
  for (int peer = 0; peer < size_; ++peer) {
    sources.push_back(o.scratch.data() + peer * mine.size() * element);
    factors.push_back(o.cards[static_cast<std::size_t>(peer)].factor);
  }
  const bool everywhere = c.operation == Operation::all_reduce;
  const bool at_root = c.operation == Operation::reduce;
  auto* to = static_cast<std::byte*>(c.recv);
  if (at_root && rank_ != c.root) {
    o.result.resize(static_cast<std::size_t>(mine.size() * element));
    to = o.result.data();
  } else if (everywhere || at_root) {
    to += mine.begin * element;
  }
  if (c.op == ReduceOp::premultiplied_sum)
    reduce_in_tree(*reduction_, kernels::Reduce::sum, c.dtype, sources, factors, 1, to,
                   mine.size());
  else if (c.op == ReduceOp::avg)
    reduce_in_tree(*reduction_, kernels::Reduce::sum, c.dtype, sources, {}, 1.0 / size_, to,
                   mine.size());
  else
    reduction_->reduce(traits(c.op).fold, c.dtype, sources, to, mine.size(), Stream{});
  if (!everywhere && !at_root) return finish(o);
  MPI_Request request = MPI_REQUEST_NULL;
  const MPI_Datatype type = mpi_type(c.dtype);
  if (everywhere)
    check_mpi(MPI_Iallgatherv(MPI_IN_PLACE, 0, type, c.recv, o.own_counts.data(),
                              o.own_offsets.data(), type, data_, &request),
              "MPI_Iallgatherv");
  else
    check_mpi(MPI_Igatherv(rank_ == c.root ? MPI_IN_PLACE : to, static_cast<int>(mine.size()), type,
                           c.recv, o.own_counts.data(), o.own_offsets.data(), type, c.root, data_,
                           &request),
              "MPI_Igatherv");
  o.requests = {request};
  o.stage = MpiOperation::Stage::gather;
}

}  // namespace shoal::collectives::mpi
