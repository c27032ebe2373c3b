// The training data of a Trainer: its loader, and the input of each step.
#include <algorithm>
#include <utility>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/train/trainer/trainer_impl.h"

namespace shoal {

std::unique_ptr<Loader> Trainer::Impl::make_stream_loader(const LoaderOptions& options) {
  SHOAL_CHECK(parts.train_dataset == nullptr, "there are both a training set and a stream of one");
  if (args.sampling() != Sampling::random)
    throw Error(ErrorCode::invalid_argument,
                "a stream's samples cannot be drawn by length or in their order by "
                "train_sampling_strategy",
                "leave it at random; shuffle_buffer_size 0 reads a stream in its order");
  if (args.max_steps <= 0)
    throw Error(ErrorCode::invalid_argument,
                "a stream has no length that epochs could be counted by",
                "give max_steps: how many updates the run has");
  auto samples = std::make_unique<SampleStream>(
      parts.train_shards, StreamOptions{.ranks = share.count,
                                        .rank = share.index,
                                        .seed = static_cast<std::uint64_t>(args.order_seed()),
                                        .buffer = parts.shuffle_buffer,
                                        .shard_by_rank = parts.shard_by_rank});
  return std::make_unique<Loader>(std::move(samples), parts.collator, parts.host(), options);
}

// Each rank makes its share of the samples once, to count their tokens.
std::shared_ptr<const std::vector<std::int32_t>> Trainer::Impl::lengths_of_samples() {
  const Dataset& all = *parts.train_dataset;
  const int rank = parts.communicator->rank();
  std::vector<std::int64_t> counted(static_cast<std::size_t>(all.size()), 0);
  const std::int64_t own = (all.size() - rank + ranks() - 1) / ranks();
  constexpr std::int64_t kBetweenSigns = 4096;
  at_own_pace([&] {
    for (std::int64_t first = 0; first < own; first += kBetweenSigns) {
      parallel_for(parts.threads, std::min(kBetweenSigns, own - first), 16,
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = first + begin; i < first + end; ++i) {
                       const std::int64_t index = rank + i * ranks();
                       counted[static_cast<std::size_t>(index)] =
                           std::ssize(all.get(index).input_ids);
                     }
                   });
      progress::made();
    }
  });
  sum(counted.data(), all.size());
  auto lengths = std::make_shared<std::vector<std::int32_t>>();
  lengths->reserve(counted.size());
  for (const std::int64_t length : counted) lengths->push_back(static_cast<std::int32_t>(length));
  return lengths;
}

std::unique_ptr<Loader> Trainer::Impl::make_train_loader() {
  const LoaderOptions options{.batch_size = args.per_device_train_batch_size * share.devices,
                              .num_workers = static_cast<int>(args.dataloader_num_workers),
                              .prefetch_factor = static_cast<int>(args.dataloader_prefetch_factor),
                              .drop_last_batch = args.dataloader_drop_last};
  if (streams()) return make_stream_loader(options);
  SHOAL_CHECK(parts.train_dataset != nullptr, "there is no training set; give train_file");
  const std::int64_t samples = parts.train_dataset->size();
  SHOAL_CHECK(samples > 0, "the training set is empty");
  if (args.dataloader_drop_last && samples < together())
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("the training set has {} samples, fewer than one batch of {} x {} = {}, and "
                    "dataloader_drop_last leaves nothing",
                    samples, args.per_device_train_batch_size, share.text(), together()),
        "use a smaller batch or block_size, or more text");
  DistributedSamplerOptions order{.ranks = share.count,
                                  .rank = share.index,
                                  .seed = static_cast<std::uint64_t>(args.order_seed()),
                                  .shuffle = args.sampling() != Sampling::sequential,
                                  .drop_last = args.dataloader_drop_last};
  if (args.sampling() == Sampling::group_by_length) {
    order.lengths = lengths_of_samples();
    order.grouped_batch = together() * args.gradient_accumulation_steps;
  }
  auto sampler = std::make_unique<DistributedSampler>(samples, order);
  return std::make_unique<Loader>(parts.train_dataset, parts.collator, std::move(sampler),
                                  parts.host(), options);
}

void Trainer::Impl::seek_loader() {
  if (streams()) {
    if (loader->stream_state().position != stream.position) loader->seek_stream(stream);
    return;
  }
  if (state.data_position >= plan->batches_per_epoch * together()) {
    state.data_position = 0;
    ++state.data_epoch;
  }
  if (loader->state() != SamplerState{state.data_epoch, state.data_position})
    loader->seek({state.data_epoch, state.data_position});
}

Trainer::Impl::StepInput Trainer::Impl::next_input() {
  const TraceSpan span(parts.tracer, "step", "data");
  // Times only the loader. Counting targets and the agreement between ranks do not count as waiting
  // for data.
  const auto loading = [this] { return PhaseSpan(engine->clock(), StepPhase::data); };
  StepInput input;
  {
    const PhaseSpan phase = loading();
    seek_loader();
  }
  const StreamState stream_place = stream;
  const SamplerState place{state.data_epoch, state.data_position};
  input.first_ordinal = state.data_position;
  const auto wanted = static_cast<std::size_t>(args.gradient_accumulation_steps);
  while (input.batches.size() < wanted) {
    auto batch = [&] {
      const PhaseSpan phase = loading();
      return loader->next();
    }();
    if (!batch) break;
    if (share.counts) {
      input.targets += parts.task->count_targets(*batch);
      input.tokens += batch->input_ids.count();
    }
    input.batches.push_back(std::move(*batch));
  }
  SHOAL_ASSERT(!input.batches.empty());
  state.data_position += static_cast<std::int64_t>(input.batches.size()) * together();
  if (streams()) {  // data_epoch stays 0: ordinals count from the run's first sample
    stream = loader->stream_state();
    // If each rank has its own shards, ranks end epochs at different steps. Rank 0's epochs count.
    input.epoch_end = is_main() && stream.epoch > stream_place.epoch;
  } else if (state.data_position >= plan->batches_per_epoch * together()) {
    input.epoch_end = true;
    state.data_position = 0;
    ++state.data_epoch;
  }
  // One sum per step tells all ranks the number of targets that the loss is divided by, whether any
  // rank must stop, and whether every part of a checkpoint is written.
  const bool stops = parts.stop_signal != nullptr && *parts.stop_signal != 0;
  const bool late = is_main() && args.max_train_minutes &&
                    seconds_since(train_began) > *args.max_train_minutes * 60;
  const bool written = unfinished && *unfinished->written;
  std::int64_t agreed[] = {input.targets, input.tokens, stops,
                           late,          written,      streams() && input.epoch_end};
  {
    const PhaseSpan agreeing(engine->clock(), StepPhase::communication);
    sum(agreed, 6);
  }
  input.targets = agreed[0];
  input.tokens = agreed[1];
  input.stop = agreed[2] != 0;
  input.out_of_time = agreed[3] != 0;
  if (streams()) input.epoch_end = agreed[5] != 0;
  if (agreed[4] == ranks()) complete();
  if (input.stop) {  // the resumed run uses these batches
    state.data_epoch = place.epoch;
    state.data_position = place.position;
    stream = stream_place;
  }
  return input;
}

}  // namespace shoal
