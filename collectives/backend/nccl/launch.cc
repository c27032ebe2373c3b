#include "shoal/collectives/backend/nccl/launch.h"

#include <bit>

#include <cuda_runtime_api.h>

#include "shoal/collectives/algorithm/exchange.h"

namespace shoal::collectives::nccl {
namespace {

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return ncclFloat32;
    case DType::f64:
      return ncclFloat64;
    case DType::f16:
      return ncclFloat16;
    case DType::bf16:
      return ncclBfloat16;
    case DType::i64:
      return ncclInt64;
    case DType::i32:
      return ncclInt32;
    case DType::u8:
      return ncclUint8;
    case DType::i8:
      return ncclInt8;
  }
  SHOAL_ASSERT(false);
}

// An NCCL reduction. For premultiplied_sum, it is made for this call and destroyed after the
// launch.
class NcclReduction {
 public:
  NcclReduction(const Call& call, ncclComm_t comm, int size) : comm_(comm) {
    switch (call.op) {
      case ReduceOp::sum:
        break;
      case ReduceOp::prod:
        op_ = ncclProd;
        break;
      case ReduceOp::min:
        op_ = ncclMin;
        break;
      case ReduceOp::max:
        op_ = ncclMax;
        break;
      case ReduceOp::avg:
        // With one rank, NCCL 2.28 left the result unchanged (seen on an H200).
        if (size > 1) op_ = ncclAvg;
        break;
      case ReduceOp::premultiplied_sum:
        made_ = true;
        result_ = make(call);
    }
  }
  ~NcclReduction() {
    if (made_ && result_ == ncclSuccess) ncclRedOpDestroy(op_, comm_);
  }
  NcclReduction(const NcclReduction&) = delete;
  NcclReduction& operator=(const NcclReduction&) = delete;

  ncclResult_t result() const { return result_; }
  ncclRedOp_t op() const { return op_; }

 private:
  // NCCL takes the factor in the call's dtype.
  ncclResult_t make(const Call& call) {
    double wide = call.factor;
    auto single = static_cast<float>(call.factor);
    float16 half(single);
    bfloat16 brain(single);
    void* factor = call.dtype == DType::f64    ? static_cast<void*>(&wide)
                   : call.dtype == DType::f32  ? static_cast<void*>(&single)
                   : call.dtype == DType::bf16 ? static_cast<void*>(&brain)
                                               : static_cast<void*>(&half);
    return ncclRedOpCreatePreMulSum(&op_, factor, nccl_type(call.dtype), ncclScalarHostImmediate,
                                    comm_);
  }

  ncclComm_t comm_;
  ncclRedOp_t op_ = ncclSum;
  ncclResult_t result_ = ncclSuccess;
  bool made_ = false;
};

class Launch {
 public:
  Launch(const Call& call, ncclComm_t comm, int rank, int size)
      : call_(call),
        comm_(comm),
        rank_(rank),
        size_(size),
        stream_(static_cast<cudaStream_t>(call.stream.handle)),
        type_(nccl_type(call.dtype)),
        element_(static_cast<std::int64_t>(size_of(call.dtype))) {}

  ncclResult_t reduce() const {
    const NcclReduction reduction(call_, comm_, size_);
    if (reduction.result() != ncclSuccess) return reduction.result();
    const auto count = static_cast<std::size_t>(call_.count);
    switch (call_.operation) {
      case Operation::all_reduce:
        return ncclAllReduce(call_.send, call_.recv, count, type_, reduction.op(), comm_, stream_);
      case Operation::reduce_scatter:
        return ncclReduceScatter(call_.send, call_.recv, count, type_, reduction.op(), comm_,
                                 stream_);
      case Operation::reduce:
        return ncclReduce(call_.send, call_.recv, count, type_, reduction.op(), call_.root, comm_,
                          stream_);
      default:
        return reduce_parts(reduction.op());
    }
  }

  // Every transfer becomes a send and a receive; a rank's own part is copied.
  ncclResult_t exchange(const algorithm::Exchange& exchange) const {
    ncclResult_t result = ncclGroupStart();
    for (int hop = 0; hop < size_ && result == ncclSuccess; ++hop) {
      const int to = (rank_ + hop) % size_, from = (rank_ + size_ - hop) % size_;
      if (hop == 0) {
        result = copy_own(exchange.at(rank_, rank_));
        continue;
      }
      const algorithm::Transfer out = exchange.at(rank_, to), in = exchange.at(from, rank_);
      if (out.count > 0)
        result = pending(ncclSend(send_at(out.from), static_cast<std::size_t>(out.count), type_, to,
                                  comm_, stream_));
      if (result == ncclSuccess && in.count > 0)
        result = pending(ncclRecv(recv_at(in.to), static_cast<std::size_t>(in.count), type_, from,
                                  comm_, stream_));
    }
    const ncclResult_t ended = ncclGroupEnd();
    return result == ncclSuccess ? ended : result;
  }

 private:
  // Inside a group, NCCL may report that the call is in progress.
  static ncclResult_t pending(ncclResult_t result) {
    return result == ncclInProgress ? ncclSuccess : result;
  }
  const std::byte* send_at(std::int64_t index) const {
    return static_cast<const std::byte*>(call_.send) + index * element_;
  }
  std::byte* recv_at(std::int64_t index) const {
    return static_cast<std::byte*>(call_.recv) + index * element_;
  }
  ncclResult_t copy_own(const algorithm::Transfer& t) const {
    if (t.count == 0 || send_at(t.from) == recv_at(t.to)) return ncclSuccess;
    const auto bytes = static_cast<std::size_t>(t.count * element_);
    if (cudaMemcpyAsync(recv_at(t.to), send_at(t.from), bytes, cudaMemcpyDeviceToDevice, stream_) ==
        cudaSuccess)
      return ncclSuccess;
    (void)cudaGetLastError();  // clears the error for the thread's next call
    return ncclUnhandledCudaError;
  }
  // reduce_scatter_v: each rank is the root of its own part.
  ncclResult_t reduce_parts(ncclRedOp_t op) const {
    ncclResult_t result = ncclGroupStart();
    std::int64_t begin = 0;
    for (int root = 0; root < size_ && result == ncclSuccess; ++root) {
      const std::int64_t count = call_.counts[static_cast<std::size_t>(root)];
      if (count > 0)
        result = pending(ncclReduce(send_at(begin), call_.recv, static_cast<std::size_t>(count),
                                    type_, op, root, comm_, stream_));
      begin += count;
    }
    const ncclResult_t ended = ncclGroupEnd();
    return result == ncclSuccess ? ended : result;
  }

  const Call& call_;
  ncclComm_t comm_;
  int rank_, size_;
  cudaStream_t stream_;
  ncclDataType_t type_;
  std::int64_t element_;
};

// Fills the matrix of counts row by row. Only this rank's own row and column are known and read.
algorithm::Exchange unequal(const Call& call, int rank, int size) {
  const auto width = static_cast<std::size_t>(size), own = static_cast<std::size_t>(rank);
  std::vector<std::int64_t> counts(width * width);
  for (std::size_t peer = 0; peer < width; ++peer) {
    counts[peer * width + own] = call.recv_counts[peer];
    counts[own * width + peer] = call.counts[peer];
  }
  return algorithm::Exchange::all_to_all_v(size, counts);
}

}  // namespace

ncclResult_t launch(const Call& call, ncclComm_t comm, int rank, int size, void* word) {
  const Launch launch(call, comm, rank, size);
  const auto stream = static_cast<cudaStream_t>(call.stream.handle);
  const auto count = static_cast<std::size_t>(call.count);
  if (call.operation == Operation::barrier)
    return ncclAllReduce(word, word, 1, ncclInt32, ncclSum, comm, stream);
  if (call.count == 0 && call.operation != Operation::all_to_all_v) return ncclSuccess;
  if (call.reduces()) return launch.reduce();
  switch (call.operation) {
    case Operation::all_gather:
      return ncclAllGather(call.send, call.recv, count, nccl_type(call.dtype), comm, stream);
    case Operation::broadcast:
      return ncclBroadcast(call.send, call.recv, count, nccl_type(call.dtype), call.root, comm,
                           stream);
    case Operation::send:
      return ncclSend(call.send, count, nccl_type(call.dtype), call.root, comm, stream);
    case Operation::recv:
      return ncclRecv(call.recv, count, nccl_type(call.dtype), call.root, comm, stream);
    case Operation::gather:
      return launch.exchange(algorithm::Exchange::gather(size, call.count, call.root));
    case Operation::scatter:
      return launch.exchange(algorithm::Exchange::scatter(size, call.count, call.root));
    case Operation::all_gather_v:
      return launch.exchange(algorithm::Exchange::all_gather(call.counts));
    case Operation::all_to_all:
      return launch.exchange(algorithm::Exchange::all_to_all(size, call.count));
    case Operation::all_to_all_v:
      return launch.exchange(unequal(call, rank, size));
    default:
      break;
  }
  SHOAL_ASSERT(false);
}

}  // namespace shoal::collectives::nccl
