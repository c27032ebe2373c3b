// The collectives of ProcessGroupShoal: how each calls the Communicator and copies its tensors.
#include <numeric>

#include "shoal/runtime/base/error.h"
#include "shoal/torch/process_group.h"

namespace shoal::pytorch {
namespace {

using c10d::OpType;
using collectives::Communicator;

// PyTorch 2.8 has no separate OpTypes for the coalesced forms.
template <typename Types>
constexpr Types all_gather_coalesced() {
  if constexpr (requires { Types::ALLGATHER_INTO_TENSOR_COALESCED; })
    return Types::ALLGATHER_INTO_TENSOR_COALESCED;
  else
    return Types::_ALLGATHER_BASE;
}
template <typename Types>
constexpr Types reduce_scatter_coalesced() {
  if constexpr (requires { Types::REDUCE_SCATTER_TENSOR_COALESCED; })
    return Types::REDUCE_SCATTER_TENSOR_COALESCED;
  else
    return Types::_REDUCE_SCATTER_BASE;
}

at::Tensor contiguous_or_empty(const at::Tensor& tensor) {
  return tensor.is_contiguous() ? tensor
                                : at::empty(tensor.sizes(), tensor.options().requires_grad(false));
}

// The memory in which values are reduced, and the tensor that gets the result.
struct Buffer {
  Reduced how;
  at::Tensor own;     // the tensor itself or a contiguous copy of it
  at::Tensor values;  // `own` under the type of the reduction
};

Buffer buffer_of(const at::Tensor& own, const Reduced& how) {
  // Making a view takes as long as a small operation.
  if (how.wide == how.view && how.view == own.scalar_type()) return {how, own, own};
  const at::Tensor seen = viewed(own, how.view);
  return {how, own, how.wide == how.view ? seen : seen.to(how.wide)};
}

void bring_back(const Buffer& buffer, const at::Tensor& target) {
  if (buffer.how.wide != buffer.how.view) viewed(buffer.own, buffer.how.view).copy_(buffer.values);
  if (!buffer.own.is_same(target)) target.copy_(buffer.own);
}

DType dtype_of(const at::Tensor& values) { return moved(values.scalar_type()).dtype; }

std::int64_t bytes_of(const at::Tensor& tensor) {
  return static_cast<std::int64_t>(tensor.nbytes());
}

at::Tensor bytes(std::int64_t count, const at::Tensor& like) {
  return at::empty({count}, at::TensorOptions(at::kByte).device(like.device()));
}

std::vector<std::int64_t> scaled(std::vector<std::int64_t> counts, std::int64_t units) {
  for (std::int64_t& count : counts) count *= units;
  return counts;
}

// Makes several calls for one Work.
template <typename Body>
void together(Communicator& ranks, CallWork& work, std::size_t calls, Body&& body) {
  if (calls == 1) return work.add(body(std::size_t{0}));
  if (calls == 0) return;
  ranks.begin_group();
  for (std::size_t i = 0; i < calls; ++i) body(i);
  work.add(ranks.end_group());
}

// The number of elements for each rank: those of its `splits` along the first dimension, or equal
// parts.
std::vector<std::int64_t> split_counts(const at::Tensor& tensor,
                                       const std::vector<std::int64_t>& splits, int size) {
  if (splits.empty()) {
    SHOAL_CHECK(tensor.dim() == 0 ? size == 1 : tensor.size(0) % size == 0,
                "all_to_all: the first dimension is not a multiple of the {} ranks", size);
    return std::vector<std::int64_t>(static_cast<std::size_t>(size), tensor.numel() / size);
  }
  SHOAL_CHECK(std::ssize(splits) == size, "all_to_all: {} split sizes for {} ranks", splits.size(),
              size);
  const std::int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  SHOAL_CHECK(std::accumulate(splits.begin(), splits.end(), std::int64_t{0}) == rows,
              "all_to_all: the split sizes do not add up to the first dimension, {}", rows);
  return scaled(splits, rows == 0 ? 0 : tensor.numel() / rows);
}

}  // namespace

WorkResult ProcessGroupShoal::reduce_all(const Title& title, Tensors tensors,
                                         const c10d::ReduceOp& op) {
  SHOAL_CHECK(!tensors.empty(), "{} of no tensor", title.name);
  std::vector<Buffer> buffers;
  Tensors all;  // for bitwise reductions: every rank's values
  bool copies = false;
  for (const at::Tensor& tensor : tensors) {
    check_tensors(title.name, {tensor});
    const Reduced how = reduced(tensor.scalar_type(), op);
    copies = copies || how.bitwise || how.wide != how.view || !tensor.is_contiguous();
    all.push_back(how.bitwise ? bytes(size_ * bytes_of(tensor), tensor) : at::Tensor());
    buffers.push_back(buffer_of(tensor.contiguous(), how));
  }
  const Call call = [&](Communicator& ranks, CallWork& work) {
    together(ranks, work, buffers.size(), [&](std::size_t i) {
      const auto& [how, own, values] = buffers[i];
      if (how.bitwise)
        return ranks.all_gather(values.const_data_ptr(), all[i].data_ptr(), bytes_of(values),
                                DType::u8);
      return ranks.all_reduce(values.const_data_ptr(), values.data_ptr(), values.numel(),
                              dtype_of(values), how.reduction);
    });
  };
  if (!copies) return start(title, tensors, tensors, call);
  const auto copy_out = [buffers, all, tensors, size = size_]() mutable {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      Buffer& buffer = buffers[i];
      if (buffer.how.bitwise)
        combine_bits(*buffer.how.bitwise, all[i], size, bytes_of(tensors[i]), 0, buffer.values);
      bring_back(buffer, tensors[i]);
    }
  };
  return start(title, tensors, tensors, call, copy_out);
}

WorkResult ProcessGroupShoal::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return translating([&] {
    only("all_reduce", tensors);
    return reduce_all({"shoal:all_reduce", OpType::ALLREDUCE, options.timeout}, tensors,
                      options.reduceOp);
  });
}

WorkResult ProcessGroupShoal::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions&) {
  return translating([&]() -> WorkResult {
    check_tensors("all_reduce", tensors);
    throw Error(ErrorCode::invalid_argument, "all_reduce of sparse tensors",
                "call to_dense() first, or use the gloo backend for it");
  });
}

WorkResult ProcessGroupShoal::allreduce_coalesced(Tensors& tensors,
                                                  const c10d::AllreduceCoalescedOptions& options) {
  return translating([&] {
    return reduce_all({"shoal:all_reduce", OpType::ALLREDUCE_COALESCED, options.timeout}, tensors,
                      options.reduceOp);
  });
}

WorkResult ProcessGroupShoal::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return translating([&] {
    check_tensors("broadcast", tensors);
    const at::Tensor tensor = only("broadcast", tensors);
    const at::Tensor own = tensor.contiguous();
    const Moved type = moved(own.scalar_type());
    const bool copies = !own.is_same(tensor) && rank_ != options.rootRank;
    return start(
        {"shoal:broadcast", OpType::BROADCAST, options.timeout}, {own}, tensors,
        [&](Communicator& ranks, CallWork& work) {
          work.add(ranks.broadcast(own.data_ptr(), own.numel() * type.units, type.dtype,
                                   static_cast<int>(options.rootRank)));
        },
        copies ? std::function<void()>([own, tensor] { tensor.copy_(own); }) : nullptr);
  });
}

WorkResult ProcessGroupShoal::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return translating([&] {
    check_tensors("reduce", tensors);
    const at::Tensor tensor = only("reduce", tensors);
    const Reduced how = reduced(tensor.scalar_type(), options.reduceOp);
    const Buffer buffer = buffer_of(tensor.contiguous(), how);
    const bool is_root = rank_ == options.rootRank;
    const int root = static_cast<int>(options.rootRank);
    const at::Tensor all = bytes(how.bitwise && is_root ? size_ * bytes_of(tensor) : 0, tensor);
    const auto copy_out = [=, size = size_] {
      if (!is_root) return;
      if (how.bitwise) combine_bits(*how.bitwise, all, size, bytes_of(tensor), 0, buffer.values);
      bring_back(buffer, tensor);
    };
    return start(
        {"shoal:reduce", OpType::REDUCE, options.timeout}, tensors, tensors,
        [&](Communicator& ranks, CallWork& work) {
          const at::Tensor& values = buffer.values;
          if (how.bitwise)
            work.add(ranks.gather(values.const_data_ptr(), all.data_ptr(), bytes_of(values),
                                  DType::u8, root));
          else
            work.add(ranks.reduce(values.const_data_ptr(), is_root ? values.data_ptr() : nullptr,
                                  values.numel(), dtype_of(values), how.reduction, root));
        },
        copy_out);
  });
}

WorkResult ProcessGroupShoal::gather_all(const Title& title, std::vector<Tensors> outputs,
                                         Tensors inputs) {
  SHOAL_CHECK(outputs.size() == inputs.size(), "{}: {} inputs, but {} lists of outputs", title.name,
              inputs.size(), outputs.size());
  std::vector<Flat> flats;
  Tensors results;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Tensors checked = outputs[i];
    checked.push_back(inputs[i]);
    check_tensors(title.name, checked);
    SHOAL_CHECK(std::ssize(outputs[i]) == size_, "{}: {} outputs for {} ranks", title.name,
                outputs[i].size(), size_);
    SHOAL_CHECK(outputs[i][static_cast<std::size_t>(rank_)].numel() == inputs[i].numel(),
                "{}: this rank gives {} elements, but has room for {} of its own", title.name,
                inputs[i].numel(), outputs[i][static_cast<std::size_t>(rank_)].numel());
    flats.push_back(flat_like(outputs[i]));
    inputs[i] = inputs[i].contiguous();
    results.insert(results.end(), outputs[i].begin(), outputs[i].end());
  }
  const Call call = [&](Communicator& ranks, CallWork& work) {
    together(ranks, work, inputs.size(), [&](std::size_t i) {
      const Moved type = moved(inputs[i].scalar_type());
      void* to = flats[i].tensor.data_ptr();
      const void* from = inputs[i].const_data_ptr();
      if (flats[i].equal)
        return ranks.all_gather(from, to, inputs[i].numel() * type.units, type.dtype);
      return ranks.all_gather_v(from, to, scaled(flats[i].counts, type.units), type.dtype);
    });
  };
  const auto copy_out = [flats, outputs = std::move(outputs)]() mutable {
    for (std::size_t i = 0; i < flats.size(); ++i) scatter_parts(flats[i], outputs[i]);
  };
  return start(title, inputs, std::move(results), call, copy_out);
}

WorkResult ProcessGroupShoal::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                        const c10d::AllgatherOptions& options) {
  return translating([&] {
    only("all_gather", inputs);
    return gather_all({"shoal:all_gather", OpType::ALLGATHER, options.timeout}, outputs, inputs);
  });
}

// PyTorch's lists of outputs are indexed by rank, then by tensor.
WorkResult ProcessGroupShoal::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                  const c10d::AllgatherOptions& options) {
  return translating([&] {
    std::vector<Tensors> by_tensor(inputs.size());
    SHOAL_CHECK(std::ssize(outputs) == size_, "all_gather_coalesced: {} lists for {} ranks",
                outputs.size(), size_);
    for (const Tensors& of_rank : outputs) {
      SHOAL_CHECK(of_rank.size() == inputs.size(), "all_gather_coalesced: {} outputs, {} inputs",
                  of_rank.size(), inputs.size());
      for (std::size_t i = 0; i < inputs.size(); ++i) by_tensor[i].push_back(of_rank[i]);
    }
    return gather_all({"shoal:all_gather", OpType::ALLGATHER_COALESCED, options.timeout},
                      std::move(by_tensor), inputs);
  });
}

WorkResult ProcessGroupShoal::gather_flat(const Title& title, Tensors outputs, Tensors inputs) {
  SHOAL_CHECK(outputs.size() == inputs.size(), "{}: {} inputs and {} outputs", title.name,
              inputs.size(), outputs.size());
  Tensors targets;
  bool copies = false;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_tensors(title.name, {inputs[i], outputs[i]});
    SHOAL_CHECK(outputs[i].numel() == size_ * inputs[i].numel(),
                "{}: {} elements of each of {} ranks do not fill an output of {}", title.name,
                inputs[i].numel(), size_, outputs[i].numel());
    inputs[i] = inputs[i].contiguous();
    targets.push_back(contiguous_or_empty(outputs[i]));
    copies = copies || !targets[i].is_same(outputs[i]);
  }
  const Call call = [&](Communicator& ranks, CallWork& work) {
    together(ranks, work, inputs.size(), [&](std::size_t i) {
      const Moved type = moved(inputs[i].scalar_type());
      return ranks.all_gather(inputs[i].const_data_ptr(), targets[i].data_ptr(),
                              inputs[i].numel() * type.units, type.dtype);
    });
  };
  if (!copies) return start(title, inputs, outputs, call);
  return start(title, inputs, outputs, call, [targets, outputs] {
    for (std::size_t i = 0; i < targets.size(); ++i)
      if (!targets[i].is_same(outputs[i])) outputs[i].copy_(targets[i]);
  });
}

WorkResult ProcessGroupShoal::_allgather_base(at::Tensor& output, at::Tensor& input,
                                              const c10d::AllgatherOptions& options) {
  return translating([&] {
    return gather_flat({"shoal:_all_gather_base", OpType::_ALLGATHER_BASE, options.timeout},
                       {output}, {input});
  });
}

WorkResult ProcessGroupShoal::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  return translating([&] {
    return gather_flat(
        {"shoal:all_gather_into_tensor_coalesced", all_gather_coalesced<OpType>(), options.timeout},
        outputs, inputs);
  });
}

WorkResult ProcessGroupShoal::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                     const c10d::GatherOptions& options) {
  return translating([&] {
    const bool is_root = rank_ == options.rootRank;
    const at::Tensor own = only("gather", inputs).contiguous();
    SHOAL_CHECK(outputs.size() == (is_root ? 1 : 0),
                "gather: the root, and only the root, gives a list of outputs");
    Tensors results = is_root ? outputs.front() : Tensors{};
    Tensors checked = results;
    checked.push_back(own);
    check_tensors("gather", checked);
    SHOAL_CHECK(!is_root || std::ssize(results) == size_, "gather: {} outputs for {} ranks",
                results.size(), size_);
    const Flat flat = flat_like(results);
    SHOAL_CHECK(!is_root || (flat.equal && flat.counts.front() == own.numel()),
                "gather: the outputs differ in size from the input's {} elements", own.numel());
    const Moved type = moved(own.scalar_type());
    return start(
        {"shoal:gather", OpType::GATHER, options.timeout}, {own}, results,
        [&](Communicator& ranks, CallWork& work) {
          work.add(ranks.gather(own.const_data_ptr(), is_root ? flat.tensor.data_ptr() : nullptr,
                                own.numel() * type.units, type.dtype,
                                static_cast<int>(options.rootRank)));
        },
        [flat, results]() mutable { scatter_parts(flat, results); });
  });
}

WorkResult ProcessGroupShoal::gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                                 const c10d::GatherOptions& options) {
  std::vector<Tensors> outputs;
  if (rank_ == options.rootRank)
    translating([&] {
      check_tensors("gather", {input, output});
      SHOAL_CHECK(output.is_contiguous() && output.numel() == size_ * input.numel(),
                  "gather: the output, of {} elements, is no contiguous tensor of {} elements of "
                  "each of {} ranks",
                  output.numel(), input.numel(), size_);
      outputs.push_back(output.detach().view({size_, input.numel()}).unbind());
    });
  Tensors inputs{input};
  return gather(outputs, inputs, options);
}

WorkResult ProcessGroupShoal::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                      const c10d::ScatterOptions& options) {
  return translating([&] {
    const bool is_root = rank_ == options.rootRank;
    const at::Tensor result = only("scatter", outputs);
    SHOAL_CHECK(inputs.size() == (is_root ? 1 : 0),
                "scatter: the root, and only the root, gives a list of inputs");
    const Tensors parts = is_root ? inputs.front() : Tensors{};
    Tensors checked = parts;
    checked.push_back(result);
    check_tensors("scatter", checked);
    SHOAL_CHECK(!is_root || std::ssize(parts) == size_, "scatter: {} inputs for {} ranks",
                parts.size(), size_);
    Flat flat = flat_like(parts);
    SHOAL_CHECK(!is_root || (flat.equal && flat.counts.front() == result.numel()),
                "scatter: the inputs differ in size from the output's {} elements", result.numel());
    gather_parts(parts, flat);
    const at::Tensor own = contiguous_or_empty(result);
    const Moved type = moved(own.scalar_type());
    return start(
        {"shoal:scatter", OpType::SCATTER, options.timeout}, parts, outputs,
        [&](Communicator& ranks, CallWork& work) {
          work.add(ranks.scatter(is_root ? flat.tensor.const_data_ptr() : nullptr, own.data_ptr(),
                                 own.numel() * type.units, type.dtype,
                                 static_cast<int>(options.rootRank)));
        },
        [flat, parts, own, result] {
          if (!own.is_same(result)) result.copy_(own);
        });
  });
}

WorkResult ProcessGroupShoal::reduce_parts(const Title& title, Tensors outputs, Tensors inputs,
                                           const std::vector<Flat>& flats,
                                           const c10d::ReduceOp& op) {
  SHOAL_CHECK(!outputs.empty(), "{} of no tensor", title.name);
  check_tensors(title.name, outputs);
  const Reduced how = reduced(outputs.front().scalar_type(), op);
  struct Part {
    at::Tensor from;  // all ranks' parts, viewed as the reduction's type
    Buffer to;
    std::vector<std::int64_t> counts;  // of the reduction's elements
    bool equal = true;
    at::Tensor all;  // bitwise: every rank's `from`
    std::int64_t offset = 0;
  };
  std::vector<Part> parts;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Flat& flat = flats[i];
    check_tensors(title.name, {outputs[i], flat.tensor});
    SHOAL_CHECK(std::ssize(flat.counts) == size_ &&
                    flat.counts[static_cast<std::size_t>(rank_)] == outputs[i].numel(),
                "{}: this rank's part of the input does not fill its output of {} elements",
                title.name, outputs[i].numel());
    Part part;
    part.from = buffer_of(flat.tensor, how).values;
    part.to = buffer_of(contiguous_or_empty(outputs[i]), how);
    const std::int64_t elements = std::max<std::int64_t>(flat.tensor.numel(), 1);
    part.counts = scaled(flat.counts, std::max<std::int64_t>(part.from.numel() / elements, 1));
    part.equal = flat.equal;
    if (how.bitwise) {
      part.all = bytes(size_ * bytes_of(part.from), part.from);
      part.offset =
          std::accumulate(part.counts.begin(), part.counts.begin() + rank_, std::int64_t{0});
    }
    parts.push_back(std::move(part));
  }
  const Call call = [&](Communicator& ranks, CallWork& work) {
    together(ranks, work, parts.size(), [&](std::size_t i) {
      const Part& part = parts[i];
      if (how.bitwise)
        return ranks.all_gather(part.from.const_data_ptr(), part.all.data_ptr(),
                                bytes_of(part.from), DType::u8);
      void* to = part.to.values.data_ptr();
      if (part.equal)
        return ranks.reduce_scatter(part.from.const_data_ptr(), to, part.counts.front(),
                                    dtype_of(part.from), how.reduction);
      return ranks.reduce_scatter_v(part.from.const_data_ptr(), to, part.counts,
                                    dtype_of(part.from), how.reduction);
    });
  };
  const auto copy_out = [how, parts, outputs, size = size_]() mutable {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      Part& part = parts[i];
      if (how.bitwise)
        combine_bits(*how.bitwise, part.all, size, bytes_of(part.from), part.offset,
                     part.to.values);
      bring_back(part.to, outputs[i]);
    }
  };
  return start(title, std::move(inputs), outputs, call, copy_out);
}

WorkResult ProcessGroupShoal::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                             const c10d::ReduceScatterOptions& options) {
  return translating([&] {
    only("reduce_scatter", outputs);
    SHOAL_CHECK(inputs.size() == 1, "reduce_scatter takes one list of inputs, but got {}",
                inputs.size());
    check_tensors("reduce_scatter", inputs.front());
    Flat flat = flat_like(inputs.front());
    gather_parts(inputs.front(), flat);
    return reduce_parts({"shoal:reduce_scatter", OpType::REDUCE_SCATTER, options.timeout}, outputs,
                        inputs.front(), {flat}, options.reduceOp);
  });
}

WorkResult ProcessGroupShoal::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                   const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

WorkResult ProcessGroupShoal::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  return translating([&] {
    SHOAL_CHECK(outputs.size() == inputs.size(), "reduce_scatter: {} inputs and {} outputs",
                inputs.size(), outputs.size());
    std::vector<Flat> flats;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      check_tensors("reduce_scatter", {inputs[i], outputs[i]});
      SHOAL_CHECK(inputs[i].numel() == size_ * outputs[i].numel(),
                  "reduce_scatter: an input of {} elements is not {} parts of {}",
                  inputs[i].numel(), size_, outputs[i].numel());
      flats.push_back(
          {inputs[i].contiguous(), true,
           std::vector<std::int64_t>(static_cast<std::size_t>(size_), outputs[i].numel()), true});
    }
    const OpType type =
        inputs.size() == 1 ? OpType::_REDUCE_SCATTER_BASE : reduce_scatter_coalesced<OpType>();
    return reduce_parts({"shoal:_reduce_scatter_base", type, options.timeout}, outputs, inputs,
                        flats, options.reduceOp);
  });
}

WorkResult ProcessGroupShoal::alltoall_base(at::Tensor& output, at::Tensor& input,
                                            std::vector<std::int64_t>& output_splits,
                                            std::vector<std::int64_t>& input_splits,
                                            const c10d::AllToAllOptions& options) {
  return translating([&] {
    check_tensors("all_to_all", {output, input});
    const Moved type = moved(input.scalar_type());
    const auto sends = scaled(split_counts(input, input_splits, size_), type.units);
    const auto receives = scaled(split_counts(output, output_splits, size_), type.units);
    const bool equal = input_splits.empty() && output_splits.empty();
    SHOAL_CHECK(
        !equal || input.numel() == output.numel(),
        "all_to_all: an input of {} elements, but an output of {}; without split sizes they "
        "must be equal",
        input.numel(), output.numel());
    const at::Tensor from = input.contiguous(), to = contiguous_or_empty(output);
    return start(
        {"shoal:all_to_all", OpType::ALLTOALL_BASE, options.timeout}, {from}, {output},
        [&](Communicator& ranks, CallWork& work) {
          if (equal)
            work.add(
                ranks.all_to_all(from.const_data_ptr(), to.data_ptr(), sends.front(), type.dtype));
          else
            work.add(ranks.all_to_all_v(from.const_data_ptr(), sends, to.data_ptr(), receives,
                                        type.dtype));
        },
        to.is_same(output) ? nullptr
                           : std::function<void()>([to, output = output] { output.copy_(to); }));
  });
}

WorkResult ProcessGroupShoal::alltoall(Tensors& outputs, Tensors& inputs,
                                       const c10d::AllToAllOptions& options) {
  return translating([&] {
    Tensors checked = outputs;
    checked.insert(checked.end(), inputs.begin(), inputs.end());
    check_tensors("all_to_all", checked);
    SHOAL_CHECK(std::ssize(outputs) == size_ && std::ssize(inputs) == size_,
                "all_to_all: {} inputs and {} outputs for {} ranks", inputs.size(), outputs.size(),
                size_);
    const Moved type = moved(inputs.front().scalar_type());
    Flat from = flat_like(inputs);
    gather_parts(inputs, from);
    const Flat to = flat_like(outputs);
    return start(
        {"shoal:all_to_all", OpType::ALLTOALL, options.timeout}, inputs, outputs,
        [&](Communicator& ranks, CallWork& work) {
          work.add(ranks.all_to_all_v(from.tensor.const_data_ptr(), scaled(from.counts, type.units),
                                      to.tensor.data_ptr(), scaled(to.counts, type.units),
                                      type.dtype));
        },
        [from, to, results = outputs]() mutable { scatter_parts(to, results); });
  });
}

}  // namespace shoal::pytorch
