#include "shoal/train/trainer/generation.h"

#include <algorithm>
#include <deque>
#include <memory>

#include "shoal/nn/layers/decoding.h"
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

// Generates where no rank can run the whole model. An evaluation of the newest ids gives the scores
// of a row always to the same rank, which searches the row's text. The choices of all ranks travel
// in one vector, so every rank knows the sequences of its batches, which rows of the kept keys and
// values go on, and when all texts of all ranks have ended.
class SharedGeneration {
 public:
  SharedGeneration(const GenerationPlace& place, std::span<const Batch> batches,
                   const nn::GenerationOptions& options)
      : place_(place),
        options_(nn::search_options(*place.model, options)),
        start_(nn::start_id(*place.model)),
        share_(place.engine->data_share()),
        cut_(place.engine->batch_cut()),
        batches_(batches.begin(), batches.end()),
        most_batches_(place.engine->batches_at_a_time()),
        choices_(static_cast<std::size_t>(share_.count * most_batches_ * place.batch_rows *
                                          options_.num_beams)) {
    for (Batch& batch : batches_) {
      batch.labels = {};
      texts_.emplace_back(static_cast<std::size_t>(batch.rows));
    }
    microbatches_ = place.engine->cut(batches_);
    const std::int64_t capacity = std::max(options_.max_new_tokens, newest());
    for (std::size_t i = 0; i < batches_.size() * pieces(); ++i)
      microbatches_[i].input.decoding = &decodings_.emplace_back(nn::Decoding{capacity});
  }

  void run(const TakeText& take) {
    do {
      for (std::size_t i = 0; i < decodings_.size(); ++i) set_ids(i);
      place_.engine->evaluate(microbatches_, [&](std::size_t i, const Tensor& scores) {
        if (i < decodings_.size()) search(i, scores);
      });
    } while (advance());
    for (std::size_t batch = 0; batch < texts_.size(); ++batch)
      for (std::size_t row = 0; row < texts_[batch].size(); ++row)
        if (const auto& search = texts_[batch][row].search)
          take(batch, static_cast<std::int64_t>(row), search->results().front());
  }

 private:
  struct Text {
    std::vector<Ids> beams = std::vector<Ids>(1);  // the new tokens of each
    std::unique_ptr<nn::TokenSearch> search;       // null: another rank has the scores
    bool ended = false;
  };
  // Of TokenSearch::Continuation; all 0: none.
  struct Choice {
    std::int32_t row = 0, token_and_1 = 0;
  };

  std::size_t pieces() const { return static_cast<std::size_t>(cut_.pieces); }
  // How many ids an evaluation has: the newest, and with it as many earlier ones as ranks that
  // share positions need. At the beginning, ids without effect fill them up.
  std::int64_t newest() const { return place_.engine->position_parts(); }
  std::int64_t first_position() const { return std::max<std::int64_t>(step_ + 1 - newest(), 0); }
  // The text of row `row` of microbatch i's rows, those of all parts; null: one that fills up.
  Text* text_of(std::size_t i, std::int64_t row) {
    std::vector<Text>& texts = texts_[i / pieces()];
    const auto at =
        static_cast<std::size_t>(static_cast<std::int64_t>(i % pieces()) * rows_of(i) + row);
    return at < texts.size() ? &texts[at] : nullptr;
  }
  std::int64_t rows_of(std::size_t i) const {
    return cut_.parts * cut_.rows_of_part(batches_[i / pieces()].rows);
  }
  std::int64_t own_rows_of(std::size_t i) const { return rows_of(i) / cut_.parts; }

  // One choice for each beam.
  std::span<Choice> choices_of(std::size_t batch, std::size_t row) {
    const auto text = static_cast<std::size_t>(
        (share_.index * most_batches_ + static_cast<std::int64_t>(batch)) * place_.batch_rows +
        static_cast<std::int64_t>(row));
    const auto beams = static_cast<std::size_t>(options_.num_beams);
    return std::span(choices_).subspan(text * beams, beams);
  }

  // Gives microbatch i its newest ids: those of each beam of this rank's rows.
  void set_ids(std::size_t i) {
    const std::int64_t rows = own_rows_of(i), first = first_position();
    Tensor ids =
        Tensor::empty({rows * width_, newest()}, DType::i32, *place_.host, MemoryTag::data);
    auto* to = ids.data<std::int32_t>();
    const auto filling = static_cast<std::int32_t>(place_.model->config().pad_token_id.value_or(0));
    const Ids none;
    for (std::int64_t row = 0; row < rows; ++row) {
      const Text* const text = text_of(i, cut_.part * rows + row);
      for (std::int64_t beam = 0; beam < width_; ++beam) {
        const Ids& known = text ? text->beams[beam_of(*text, beam)] : none;
        for (std::int64_t at = first; at < first + newest(); ++at)
          *to++ = at == 0                   ? start_
                  : at <= std::ssize(known) ? known[static_cast<std::size_t>(at - 1)]
                                            : filling;
      }
    }
    nn::ChainInput& input = microbatches_[i].input;
    input.decoder_ids = ids;
    if (step_ > 0) input.ids = std::move(ids);
    decodings_[i].position = first;
    decodings_[i].encoded = step_ > 0;
  }

  // A text that ended at the first token has one beam.
  static std::size_t beam_of(const Text& text, std::int64_t beam) {
    return std::min(static_cast<std::size_t>(beam), text.beams.size() - 1);
  }

  // Gives the searches the scores [rows, ids, V] of microbatch i.
  void search(std::size_t i, const Tensor& scores) {
    const std::int64_t rows = own_rows_of(i), vocabulary = scores.shape()[2];
    SHOAL_ASSERT(scores.shape() == Shape({rows * width_, newest(), vocabulary}) &&
                 vocabulary == place_.model->config().vocab_size);
    const auto* from = scores.const_data<float>() + (step_ - first_position()) * vocabulary;
    for (std::int64_t row = 0; row < rows; ++row, from += width_ * newest() * vocabulary) {
      Text* const text = text_of(i, cut_.part * rows + row);
      if (!text || text->ended) continue;
      if (!text->search) {
        const Batch& batch = batches_[i / pieces()];
        text->search = nn::make_search(options_, {start_},
                                       numbers_of(batch).of(text - texts_[i / pieces()].data()));
      }
      for (std::int64_t beam = 0; beam < width_; ++beam)
        text->search->score(
            beam, {from + beam * newest() * vocabulary, static_cast<std::size_t>(vocabulary)});
    }
  }

  // Appends the chosen tokens. Returns false after the end of all texts of all ranks.
  bool advance() {
    std::ranges::fill(choices_, Choice{});
    for_each_text([this](Text& text, std::span<Choice> choices) {
      if (!text.search) return;
      // All beams begin with the only one.
      for (std::size_t beam = 0; const auto& next : text.search->advance())
        choices[beam++] = {width_ == 1 ? 0 : static_cast<std::int32_t>(next.row), next.token + 1};
    });
    // Each choice is set on one rank.
    static_assert(sizeof(Choice) == 2 * sizeof(std::int32_t));
    place_.engine->beside()
        .all_reduce(choices_.data(), choices_.data(), 2 * std::ssize(choices_), DType::i32,
                    ReduceOp::sum)
        ->wait();
    if (std::ranges::all_of(choices_, [](const Choice& one) { return one.token_and_1 == 0; }))
      return false;
    for (std::size_t i = 0; i < decodings_.size(); ++i) select_beams(i);
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
    width_ = options_.num_beams;
    ++step_;
    return true;
  }

  // Keeps what the chosen beams of microbatch i go on from.
  void select_beams(std::size_t i) {
    std::vector<std::int64_t> rows, texts;
    bool moved = width_ != options_.num_beams;
    for (std::int64_t row = 0; row < rows_of(i); ++row) {
      const Text* const text = text_of(i, row);
      texts.push_back(row);
      for (std::int64_t beam = 0; beam < options_.num_beams; ++beam) {
        std::int64_t from = std::min(beam, width_ - 1);
        if (text && !text->ended) {
          const auto at = static_cast<std::size_t>(text - texts_[i / pieces()].data());
          from = choices_of(i / pieces(), at)[static_cast<std::size_t>(beam)].row;
        }
        moved = moved || from != beam;
        rows.push_back(row * width_ + from);
      }
    }
    if (moved) decodings_[i].select(place_.engine->context(), rows, texts);
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
  const BatchCut cut_;
  std::vector<Batch> batches_;
  const std::int64_t most_batches_;
  std::vector<Choice> choices_;           // of all ranks' texts
  std::vector<std::vector<Text>> texts_;  // of this rank's batches
  std::vector<parallel::Microbatch> microbatches_;
  std::deque<nn::Decoding> decodings_;  // of the microbatches of batches_
  std::int64_t step_ = 0;               // tokens of each text that has not ended
  std::int64_t width_ = 1;              // beams of each text: at first all are equal
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
