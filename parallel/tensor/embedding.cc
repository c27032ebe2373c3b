#include <algorithm>
#include <utility>
#include <vector>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/layers/functional_internal.h"
#include "shoal/parallel/tensor/exchange.h"
#include "shoal/parallel/tensor/vocabulary.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

using nn::Context;
using nn::Parameter;
using nn::Value;

// i32 [ids]: the entries of `map`, i32 [V], at the ids. Computed without reading ids on the host.
Tensor looked_up(Context& context, const Tensor& ids, const Tensor& map) {
  const Tensor found = context.empty(ids.shape(), DType::i32);
  // The kernel sees the i32 values as f32 rows of one element and copies their bits.
  const auto of_bits = [](const Tensor& tensor) {
    return View{tensor.view().data, {tensor.count(), 1}, DType::f32, tensor.device()};
  };
  context.run("embedding.numbers", {ids, map}, {found}, [&] {
    context.kernels().embedding().embedding(ids, of_bits(map), of_bits(found), false,
                                            context.stream);
  });
  return found;
}

// Row i of `to` is row i * stride + numbers[i] of `from`; zeros if numbers[i] is negative.
void select(Context& context, std::string_view name, const Tensor& numbers, std::int64_t stride,
            const Tensor& from, const Tensor& to) {
  const auto rows_of = [](const Tensor& tensor) {
    return tensor.reshaped({tensor.shape().rows(), tensor.shape().columns()});
  };
  context.run(name, {numbers, from}, {to}, [&] {
    context.kernels().embedding().select_rows(
        {.numbers = numbers.reshaped({numbers.count()}), .stride = stride}, rows_of(from),
        rows_of(to).view(), 0, context.stream);
  });
}

class EmbeddingPartFunction final : public nn::Function {
 public:
  EmbeddingPartFunction(nn::Tape& tape, Parameter& table, const Tensor& ids, const OwnRows& own,
                        std::int64_t padding)
      : table_(table), ids_(tape, ids), own_(own), padding_(padding) {}
  std::string_view name() const override { return "embedding_part"; }
  std::vector<Tensor> backward(nn::BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    Context& context = backward_context.context();
    Parameter* const parameters[] = {&table_};
    backward_context.weight_gradient(parameters, [&context, &table = table_, ids = ids_.get(name()),
                                                  own = own_, dy = output_gradients[0],
                                                  padding = padding_] {
      if (ids.count() == 0 || table.shape()[0] == 0)
        return nn::add_embedding_gradient(
            context, table, ids.reshaped({ids.count()}).narrowed(0, 0, 0), dy, padding);
      const Tensor hit = context.empty(dy.shape(), dy.dtype()),
                   mine = looked_up(context, ids, own.mine);
      // Ids of other ranks map to row 0 and must add nothing to it.
      select(context, "embedding.rows", mine, 1, dy, hit);
      nn::add_embedding_gradient(context, table, looked_up(context, ids, own.rows), hit, padding);
    });
    return {};
  }

 private:
  Parameter& table_;
  nn::SavedTensor ids_;
  OwnRows own_;
  std::int64_t padding_;
};

// [B, T] -> [B, T, C], zeros for rows of other ranks. Kernels must be able to read `ids`.
Value embedding_part(Context& context, const TensorParallel& group, const Tensor& ids,
                     Parameter& table, const OwnRows& own, std::int64_t padding) {
  const std::int64_t channels = table.shape()[1];
  Parameter* const parameters[] = {&table};
  const bool records = context.records({}, parameters);
  Tensor y = exchange_memory(context, group, {ids.shape()[0], ids.shape()[1], channels},
                             table.value.dtype());
  if (y.count() > 0 && table.shape()[0] > 0) {
    const Tensor numbers = looked_up(context, ids, own.numbers);
    select(context, "embedding", numbers, 0, table.value, y);
  } else if (y.count() > 0) {
    context.run("embedding", {}, {y},
                [&] { context.kernels().elementwise().fill(y.view(), 0, context.stream); });
  }
  if (!records) return Value{std::move(y)};
  nn::Tape& tape = *context.tape;
  return tape.record(std::make_unique<EmbeddingPartFunction>(tape, table, ids, own, padding), {},
                     parameters, {std::move(y)})[0];
}

}  // namespace

VocabularyRows vocabulary_rows(std::int64_t vocabulary, int rank, int ranks) {
  const std::int64_t first = vocabulary * rank / ranks;
  return {first, vocabulary * (rank + 1) / ranks - first};
}

VocabularyParallelEmbedding::VocabularyParallelEmbedding(const TensorParallel& group,
                                                         std::int64_t vocabulary,
                                                         std::int64_t channels, float std,
                                                         std::int64_t padding)
    : group_(group) {
  const VocabularyRows own = vocabulary_rows(vocabulary, group.rank(), group.size());
  padding_ = padding < 0 ? -1 : padding - own.first;
  weight_ = add_parameter("weight", {own.count, channels}, {nn::Initializer::Kind::normal, std});
  weight_->set_part({vocabulary, channels}, {{{own.count, channels}, {0, 0}, {own.first, 0}}});
}

// Computed only once, since an id's row does not depend on the batch.
const OwnRows& VocabularyParallelEmbedding::own_rows(Context& context) {
  if (own_.numbers.defined()) return own_;
  const std::int64_t vocabulary = weight_->whole_shape()[0];
  const VocabularyRows own = vocabulary_rows(vocabulary, group_.rank(), group_.size());
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(vocabulary), -1),
      rows(numbers.size(), 0), mine(numbers.size(), -1);
  for (std::int64_t row = 0; row < own.count; ++row) {
    const auto id = static_cast<std::size_t>(own.first + row);
    numbers[id] = rows[id] = static_cast<std::int32_t>(row);
    mine[id] = 0;
  }
  HostToDevice& uploads = *group_.uploads;
  own_ = {uploads.keep(context, numbers), uploads.keep(context, rows), uploads.keep(context, mine)};
  return own_;
}

Value VocabularyParallelEmbedding::forward(Context& context, const Tensor& ids) {
  SHOAL_CHECK(ids.dtype() == DType::i32 && ids.shape().rank() == 2,
              "{}: ids are {} {}, not i32 [B, T]", weight_->name(), to_string(ids.dtype()),
              to_string(ids.shape()));
  // Check on the host, since device kernels can only report errors later.
  if (ids.device().is_cpu())
    for (std::int64_t i = 0; i < ids.count(); ++i) {
      const std::int32_t id = ids.const_data<std::int32_t>()[i];
      SHOAL_CHECK(id >= 0 && id < weight_->whole_shape()[0], "{}: id {} at {} is outside [0, {})",
                  weight_->name(), id, i, weight_->whole_shape()[0]);
    }
  const Tensor all = gather_samples(context, group_, group_.uploads->to_device(context, ids));
  return leave(context, group_,
               embedding_part(context, group_, all, *weight_, own_rows(context), padding_));
}

}  // namespace shoal::parallel
