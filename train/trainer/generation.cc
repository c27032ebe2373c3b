#include "shoal/train/trainer/generation.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "shoal/nn/models/generation/search.h"
#include "shoal/runtime/base/error.h"
#include "shoal/train/tasks/targets.h"

namespace shoal {
namespace {

using collectives::ReduceOp;
using Ids = std::vector<std::int32_t>;

nn::TextNumbers numbers_of(const Batch& batch) {
  return {static_cast<std::uint32_t>(batch.ordinals.first),
          static_cast<std::uint32_t>(batch.ordinals.stride)};
}

// Generates where no rank can run the whole model. An evaluation gives the scores of a row always
// to the same rank, which searches the row's text. The choices of all ranks travel in one vector,
// so every rank knows the sequences of its batches, and when all texts of all ranks have ended.
class SharedGeneration {
 public:
  SharedGeneration(const GenerationPlace& place, std::span<const Batch> batches,
                   const nn::GenerationOptions& options)
      : place_(place),
        options_(nn::search_options(*place.model, options)),
        start_(nn::start_id(*place.model)),
        share_(place.engine->data_share()),
        batches_(batches.begin(), batches.end()),
        most_batches_(place.engine->batches_at_a_time()),
        choices_(static_cast<std::size_t>(share_.count * most_batches_ * place.batch_rows *
                                          options_.num_beams)) {
    for (Batch& batch : batches_) {
      batch.labels = {};
      std::vector<Text>& texts = texts_.emplace_back(static_cast<std::size_t>(batch.rows));
      for (Text& text : texts) text.beams.resize(static_cast<std::size_t>(options_.num_beams));
    }
  }

  void run(const TakeText& take) {
    std::int64_t step = 0;
    do {
      // At first all beams are equal.
      const std::int64_t beams = step == 0 ? 1 : options_.num_beams;
      for (std::int64_t beam = 0; beam < beams; ++beam) evaluate(step, beam);
      ++step;
    } while (advance());
    for (std::size_t batch = 0; batch < texts_.size(); ++batch)
      for (std::size_t row = 0; row < texts_[batch].size(); ++row)
        if (const auto& search = texts_[batch][row].search)
          take(batch, static_cast<std::int64_t>(row), search->results().front());
  }

 private:
  struct Text {
    std::vector<Ids> beams;                   // the new tokens of each
    std::unique_ptr<nn::TokenSearch> search;  // null: another rank has the scores
    bool ended = false;
  };
  // Of TokenSearch::Continuation; all 0: none.
  struct Choice {
    std::int32_t row = 0, token_and_1 = 0;
  };

  // One choice for each beam.
  std::span<Choice> choices_of(std::size_t batch, std::size_t row) {
    const auto text = static_cast<std::size_t>(
        (share_.index * most_batches_ + static_cast<std::int64_t>(batch)) * place_.batch_rows +
        static_cast<std::int64_t>(row));
    const auto beams = static_cast<std::size_t>(options_.num_beams);
    return std::span(choices_).subspan(text * beams, beams);
  }

  // Gives the searches the scores of the token after `step` tokens of each text's beam.
  void evaluate(std::int64_t step, std::int64_t beam) {
    for (std::size_t batch = 0; batch < batches_.size(); ++batch)
      batches_[batch].decoder_input_ids = decoder_ids(batch, step, beam);
    place_.engine->evaluate(batches_, [&](std::size_t batch, std::int64_t first_row,
                                          const Tensor& scores) {
      const std::int64_t length = scores.shape()[1], vocabulary = scores.shape()[2];
      SHOAL_ASSERT(vocabulary == place_.model->config().vocab_size);
      for (std::int64_t i = 0; i < scores.shape()[0]; ++i) {
        const std::int64_t row = first_row + i;
        Text& text = texts_[batch][static_cast<std::size_t>(row)];
        if (text.ended) continue;
        if (!text.search)
          text.search = nn::make_search(options_, {start_}, numbers_of(batches_[batch]).of(row));
        text.search->score(beam, {scores.const_data<float>() + (i * length + step) * vocabulary,
                                  static_cast<std::size_t>(vocabulary)});
      }
    });
  }

  // The ids before the token, padded to a length that ranks which share positions can divide. The
  // length grows in steps of 8 where the decoder has the positions, so that few shapes are
  // prepared.
  Tensor decoder_ids(std::size_t batch, std::int64_t step, std::int64_t beam) const {
    const std::int64_t parts = place_.engine->position_parts();
    const auto rounded_up = [step](std::int64_t unit) { return (step + unit) / unit * unit; };
    std::int64_t length = rounded_up(std::lcm(std::int64_t{8}, parts));
    if (length > place_.positions) length = rounded_up(parts);
    const std::vector<Text>& texts = texts_[batch];
    Tensor ids =
        Tensor::empty({std::ssize(texts), length}, DType::i32, *place_.host, MemoryTag::data);
    auto* to = ids.data<std::int32_t>();
    std::fill_n(to, ids.count(),
                static_cast<std::int32_t>(place_.model->config().pad_token_id.value_or(0)));
    for (const Text& text : texts) {
      *to = start_;
      std::ranges::copy(text.beams[static_cast<std::size_t>(beam)], to + 1);
      to += length;
    }
    return ids;
  }

  // Appends the chosen tokens. Returns false after the end of all texts of all ranks.
  bool advance() {
    std::ranges::fill(choices_, Choice{});
    for_each_text([](Text& text, std::span<Choice> choices) {
      if (!text.search) return;
      for (std::size_t beam = 0; const auto& next : text.search->advance())
        choices[beam++] = {static_cast<std::int32_t>(next.row), next.token + 1};
    });
    // Each choice is set on one rank.
    static_assert(sizeof(Choice) == 2 * sizeof(std::int32_t));
    place_.engine->beside()
        .all_reduce(choices_.data(), choices_.data(), 2 * std::ssize(choices_), DType::i32,
                    ReduceOp::sum)
        ->wait();
    for_each_text([](Text& text, std::span<Choice> choices) {
      text.ended = choices.front().token_and_1 == 0;
      if (text.ended) return;
      std::vector<Ids> beams;
      for (const Choice& choice : choices) {
        beams.push_back(text.beams[static_cast<std::size_t>(choice.row)]);
        beams.back().push_back(choice.token_and_1 - 1);
      }
      text.beams = std::move(beams);
    });
    return std::ranges::any_of(choices_, [](const Choice& one) { return one.token_and_1 != 0; });
  }

  // Texts that have not ended.
  template <typename Work>
  void for_each_text(const Work& work) {
    for (std::size_t batch = 0; batch < texts_.size(); ++batch)
      for (std::size_t row = 0; row < texts_[batch].size(); ++row)
        if (Text& text = texts_[batch][row]; !text.ended) work(text, choices_of(batch, row));
  }

  const GenerationPlace& place_;
  const nn::GenerationOptions options_;
  const std::int32_t start_;
  const DataShare share_;
  std::vector<Batch> batches_;
  const std::int64_t most_batches_;
  std::vector<Choice> choices_;           // of all ranks' texts
  std::vector<std::vector<Text>> texts_;  // of this rank's batches
};

}  // namespace

void generate_texts(const GenerationPlace& place, std::span<const Batch> batches,
                    const nn::GenerationOptions& options, const TakeText& take) {
  SHOAL_CHECK(options.num_return_sequences == 1 && options.max_new_tokens > 0,
              "{} texts of a sample, of at most {} tokens: evaluation generates one text of each "
              "sample, of at least one token",
              options.num_return_sequences, options.max_new_tokens);
  if (!place.engine->runs_whole_model()) return SharedGeneration(place, batches, options).run(take);
  nn::Context& context = place.engine->context();
  for (std::size_t batch = 0; batch < batches.size(); ++batch) {
    const Batch& rows = batches[batch];
    const Tensor mask = mask_as_lengths(rows.attention_mask, *place.host);
    const std::vector<Ids> texts =
        nn::generate(context, *place.model, context.to_device(rows.input_ids),
                     mask.defined() ? context.to_device(mask) : mask, options, numbers_of(rows));
    for (std::size_t row = 0; row < texts.size() && place.engine->data_share().counts; ++row)
      take(batch, static_cast<std::int64_t>(row), texts[row]);
  }
}

}  // namespace shoal
