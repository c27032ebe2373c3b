#include "shoal/train/trainer/generation.h"

#include <algorithm>
#include <numeric>

#include "shoal/runtime/base/error.h"
#include "shoal/train/tasks/targets.h"

namespace shoal {
namespace {

using collectives::ReduceOp;

// Generates where ranks share the model. The slots of all ranks' rows lie in one vector, so that
// every rank knows when all of them have ended.
class SharedGeneration {
 public:
  SharedGeneration(const GenerationPlace& place, std::span<const Batch> batches,
                   const nn::GenerationOptions& options)
      : place_(place),
        options_(options),
        share_(place.engine->data_share()),
        batches_(batches.begin(), batches.end()),
        most_batches_(place.engine->batches_at_a_time()),
        next_(static_cast<std::size_t>(share_.count * most_batches_ * place.batch_rows)) {
    for (const Batch& batch : batches)
      rows_.emplace_back(static_cast<std::size_t>(batch.input_ids.shape()[0]));
  }

  std::vector<GeneratedRows> run() {
    // A slot without a row is empty from the start.
    for (std::size_t batch = 0; batch < rows_.size(); ++batch)
      for (std::size_t row = 0; row < rows_[batch].size() && share_.counts; ++row)
        next_[slot(batch, row)] = 1;
    agree();
    running_ = next_;
    const std::int64_t most = options_.max_new_tokens;
    for (std::int64_t step = 0; step < most && std::ranges::count(running_, 1) > 0; ++step) {
      std::ranges::fill(next_, 0);
      evaluate(step);
      agree();
      take();
    }
    return std::move(rows_);
  }

 private:
  std::size_t slot(std::size_t batch, std::size_t row) const {
    return static_cast<std::size_t>((share_.index * most_batches_ + static_cast<int>(batch)) *
                                    place_.batch_rows) +
           row;
  }
  // Each slot is set on one rank.
  void agree() {
    place_.engine->beside()
        .all_reduce(next_.data(), next_.data(), std::ssize(next_), DType::i32, ReduceOp::sum)
        ->wait();
  }

  // Sets next_ to the token behind `step` tokens.
  void evaluate(std::int64_t step) {
    const std::int64_t multiple = std::lcm(std::int64_t{8}, place_.engine->position_parts());
    const std::int64_t length = (step + multiple) / multiple * multiple;
    for (std::size_t batch = 0; batch < batches_.size(); ++batch) {
      batches_[batch].decoder_input_ids = decoder_ids(batch, length);
      batches_[batch].labels = {};
    }
    const nn::EncoderDecoder& model = *place_.model;
    const std::int64_t first = model.generation_id("forced_bos_token_id").value_or(-1),
                       last = model.generation_id("forced_eos_token_id").value_or(-1);
    const std::int64_t forced = step + 1 == options_.max_new_tokens ? last : step == 0 ? first : -1;
    place_.engine->evaluate(batches_, [&](std::size_t batch, std::int64_t first_row,
                                          const Tensor& scores) {
      const std::int64_t vocabulary = scores.shape()[2];
      for (std::int64_t i = 0; i < scores.shape()[0]; ++i) {
        const float* const own =
            scores.const_data<float>() + (i * scores.shape()[1] + step) * vocabulary;
        next_[slot(batch, static_cast<std::size_t>(first_row + i))] =
            forced >= 0 ? static_cast<std::int32_t>(forced)
                        : static_cast<std::int32_t>(std::max_element(own, own + vocabulary) - own);
      }
    });
  }

  Tensor decoder_ids(std::size_t batch, std::int64_t length) const {
    const nn::EncoderDecoderConfig& config = place_.model->config();
    const auto start = static_cast<std::int32_t>(
        place_.model->generation_id("decoder_start_token_id").value_or(config.start_id()));
    const GeneratedRows& rows = rows_[batch];
    Tensor ids =
        Tensor::empty({std::ssize(rows), length}, DType::i32, *place_.host, MemoryTag::data);
    auto* to = ids.data<std::int32_t>();
    std::fill_n(to, ids.count(), static_cast<std::int32_t>(config.pad_token_id.value_or(0)));
    for (const std::vector<std::int32_t>& row : rows) {
      *to = start;
      // After the last token a row may have as many tokens as `length`.
      std::copy_n(row.begin(), std::min(std::ssize(row), length - 1), to + 1);
      to += length;
    }
    return ids;
  }

  void take() {
    for (std::size_t batch = 0; batch < rows_.size(); ++batch)
      for (std::size_t row = 0; row < rows_[batch].size(); ++row)
        if (running_[slot(batch, row)] == 1) rows_[batch][row].push_back(next_[slot(batch, row)]);
    for (std::size_t i = 0; i < running_.size(); ++i)
      if (std::ranges::count(options_.stop_tokens, next_[i]) > 0) running_[i] = 0;
  }

  const GenerationPlace& place_;
  const nn::GenerationOptions& options_;
  const DataShare share_;
  std::vector<Batch> batches_;
  const std::int64_t most_batches_;
  std::vector<std::int32_t> next_, running_;  // by slot
  std::vector<GeneratedRows> rows_;
};

}  // namespace

std::vector<GeneratedRows> generate_texts(const GenerationPlace& place,
                                          std::span<const Batch> batches,
                                          const nn::GenerationOptions& options) {
  if (place.engine->evaluates_together()) {
    if (options.do_sample)
      throw Error(ErrorCode::unavailable,
                  "ranks that share a model generate greedily, without do_sample",
                  "generate with the whole model on each rank");
    return SharedGeneration(place, batches, options).run();
  }
  std::vector<GeneratedRows> all;
  nn::Context& context = place.engine->context();
  for (const Batch& batch : batches) {
    const Tensor mask = mask_as_lengths(batch.attention_mask, *place.host);
    all.push_back(nn::generate(context, *place.model, context.to_device(batch.input_ids),
                               mask.defined() ? context.to_device(mask) : mask, options));
  }
  return all;
}

}  // namespace shoal
