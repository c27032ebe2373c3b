#include <algorithm>
#include <utility>
#include <vector>

#include "shoal/parallel/tensor/exchange.h"
#include "shoal/parallel/tensor/vocabulary.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

using nn::Context;
using nn::Parameter;
using nn::Value;

// The places whose ids lie in this rank's rows, and which rows these are.
struct Hits {
  Tensor places, rows;  // i32 [n]
  Tensor sources;       // i32, as the ids: the hit at each place, n where there is none; a device's
  std::int64_t count = 0;
};

Hits hits_of(Context& context, const TensorParallel& group, const Tensor& given,
             const Parameter& table) {
  const std::int64_t vocabulary = table.whole_shape()[0];
  const VocabularyRows own = vocabulary_rows(vocabulary, group.rank(), group.size());
  const Tensor ids = on_host(context, given);
  std::vector<std::int32_t> places, rows, hit_at(static_cast<std::size_t>(ids.count()), -1);
  const std::int32_t* id = ids.count() > 0 ? ids.const_data<std::int32_t>() : nullptr;
  for (std::int64_t i = 0; i < ids.count(); ++i) {
    SHOAL_CHECK(id[i] >= 0 && id[i] < vocabulary, "{}: id {} at {} is outside [0, {})",
                table.name(), id[i], i, vocabulary);
    if (id[i] < own.first || id[i] >= own.first + own.count) continue;
    hit_at[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(places.size());
    places.push_back(static_cast<std::int32_t>(i));
    rows.push_back(static_cast<std::int32_t>(id[i] - own.first));
  }
  Hits hits;
  hits.count = static_cast<std::int64_t>(places.size());
  const auto upload = [&](const std::vector<std::int32_t>& values, const Shape& shape) {
    return group.uploads->upload(context, values.data(), shape, DType::i32, MemoryTag::activations);
  };
  hits.places = upload(places, {hits.count});
  hits.rows = upload(rows, {hits.count});
  if (context.kernels().device().is_cpu()) return hits;
  std::ranges::replace(hit_at, -1, static_cast<std::int32_t>(hits.count));
  hits.sources = upload(hit_at, ids.shape());
  return hits;
}

const std::byte* row_at(const void* data, std::int64_t row, std::int64_t channels, DType dtype) {
  return static_cast<const std::byte*>(data) +
         static_cast<std::size_t>(row * channels) * size_of(dtype);
}

class EmbeddingPartFunction final : public nn::Function {
 public:
  EmbeddingPartFunction(nn::Tape& tape, Parameter& table, const Hits& hits, std::int64_t padding)
      : table_(table), places_(tape, hits.places), rows_(tape, hits.rows), padding_(padding) {}
  std::string_view name() const override { return "embedding_part"; }
  std::vector<Tensor> backward(nn::BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    Context& context = backward_context.context();
    Parameter* const parameters[] = {&table_};
    backward_context.weight_gradient(
        parameters, [&context, &table = table_, places = places_.get(name()),
                     rows = rows_.get(name()), dy = output_gradients[0], padding = padding_] {
          const std::int64_t channels = table.shape()[1];
          const Tensor hit = context.empty({places.count(), channels}, dy.dtype());
          // The gradients' rows are looked up as an embedding's would be.
          if (places.count() > 0)
            context.run("embedding.backward", {places, dy}, {hit}, [&] {
              context.kernels().embedding().embedding(places,
                                                      dy.reshaped({dy.shape().rows(), channels}),
                                                      hit.view(), false, context.stream);
            });
          nn::add_embedding_gradient(context, table, rows, hit, padding);
        });
    return {};
  }

 private:
  Parameter& table_;
  nn::SavedTensor places_, rows_;
  std::int64_t padding_;
};

// On the host: row by row into zeros.
void place_rows(Context& context, const Hits& hits, const Parameter& table, const Tensor& y) {
  context.run("embedding", {hits.rows, table.value}, {y}, [&] {
    auto& elementwise = context.kernels().elementwise();
    elementwise.fill(y.view(), 0, context.stream);
    if (hits.count == 0) return;
    const std::int64_t channels = table.shape()[1];
    const Shape row{channels};
    const View to = y.view();
    const ConstView from = table.value.const_view();
    const std::int32_t* place = hits.places.const_data<std::int32_t>();
    const std::int32_t* at = hits.rows.const_data<std::int32_t>();
    for (std::int64_t i = 0; i < hits.count; ++i) {
      auto* target = const_cast<std::byte*>(row_at(to.data, place[i], channels, to.dtype));
      elementwise.cast(
          ConstView(row_at(from.data, at[i], channels, from.dtype), row, from.dtype, from.device),
          View{target, row, to.dtype, to.device}, context.stream);
    }
  });
}

// On a device: every place takes its row from a table of the hits and a row of zeros.
void look_rows_up(Context& context, const Hits& hits, const Parameter& table, const Tensor& y) {
  const Tensor found = context.empty({hits.count + 1, table.shape()[1]}, y.dtype());
  context.run("embedding", {hits.rows, table.value, hits.sources}, {found, y}, [&] {
    auto& kernels = context.kernels();
    kernels.elementwise().fill(found.narrowed(0, hits.count, 1).view(), 0, context.stream);
    if (hits.count > 0)
      kernels.embedding().embedding(hits.rows, table.value, found.narrowed(0, 0, hits.count).view(),
                                    false, context.stream);
    kernels.embedding().embedding(hits.sources, found, y.view(), false, context.stream);
  });
}

// [B, T] -> [B, T, C], zeros where another rank has the row.
Value embedding_part(Context& context, const TensorParallel& group, const Tensor& ids,
                     Parameter& table, std::int64_t padding) {
  const std::int64_t channels = table.shape()[1];
  Parameter* const parameters[] = {&table};
  const bool records = context.records({}, parameters);
  const Hits hits = hits_of(context, group, ids, table);
  Tensor y = exchange_memory(context, group, {ids.shape()[0], ids.shape()[1], channels},
                             table.value.dtype());
  if (y.count() > 0)
    (context.kernels().device().is_cpu() ? place_rows : look_rows_up)(context, hits, table, y);
  if (!records) return Value{std::move(y)};
  nn::Tape& tape = *context.tape;
  return tape.record(std::make_unique<EmbeddingPartFunction>(tape, table, hits, padding), {},
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

Value VocabularyParallelEmbedding::forward(Context& context, const Tensor& ids) {
  SHOAL_CHECK(ids.dtype() == DType::i32 && ids.shape().rank() == 2,
              "{}: ids are {} {}, not i32 [B, T]", weight_->name(), to_string(ids.dtype()),
              to_string(ids.shape()));
  return leave(
      context, group_,
      embedding_part(context, group_, gather_samples(context, group_, on_host(context, ids)),
                     *weight_, padding_));
}

}  // namespace shoal::parallel
