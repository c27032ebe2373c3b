// auto_find_batch_size, and remedies for insufficient memory.
//
// Hugging Face runs training until memory runs out, then starts again with nine tenths of the batch
// (accelerate's find_executable_batch_size). That does not work with ranks: the rank without memory
// stops in the middle of a step, and the others wait in an all_reduce, whose communicator is
// unusable after the abort.
//
// So each rank tries the memory of one step before training: forward and backward of the largest
// possible batch, without communication, while it also holds the copy for a checkpoint. Then the
// ranks tell each other whether it fitted. A try changes no state, so a run has the same bits as
// one that was given the found batch size.
#include <algorithm>
#include <new>
#include <utility>

#include "shoal/runtime/base/error.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
#include "shoal/train/trainer/trainer_impl.h"

namespace shoal {
namespace {

std::int64_t nine_tenths(std::int64_t batch) { return batch * 9 / 10; }

}  // namespace

// Returns, on every rank, the text of the lowest rank that has one. Collective.
std::optional<std::string> Trainer::Impl::first_said(const std::optional<std::string>& own) {
  const int rank = parts.communicator->rank();
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(ranks()), 0);
  if (own) lengths[static_cast<std::size_t>(rank)] = std::ssize(*own);
  sum(lengths.data(), ranks());
  const auto first = std::ranges::find_if(lengths, [](auto length) { return length > 0; });
  if (first == lengths.end()) return std::nullopt;
  std::vector<std::int64_t> letters(static_cast<std::size_t>(*first), 0);
  if (first - lengths.begin() == rank) std::ranges::copy(*own, letters.begin());
  sum(letters.data(), *first);
  std::string text;
  for (const std::int64_t letter : letters) text += static_cast<char>(letter);
  return text;
}

// A sample that makes the largest possible batch: as long as the longest, with a target at each
// position if positions have targets (heads compute scores only at targets).
Sample Trainer::Impl::longest_sample() {
  const auto lengths = lengths_of_samples();
  Sample sample = parts.train_dataset->get(std::ranges::max_element(*lengths) - lengths->begin());
  if (sample.labels.size() == sample.input_ids.size())
    std::ranges::replace(sample.labels, kIgnoreLabel, 0);
  return sample;
}

// Allocates `bytes` and a sixteenth more. The reserve covers memory that one try does not use:
// scratch memory of updates, and a higher random number of masked words (masked-lm). Allocates in
// pieces that a pool does not round up.
std::vector<Buffer> Trainer::Impl::more_than(std::int64_t bytes) const {
  constexpr std::int64_t kPiece = std::int64_t{1} << 24;
  std::vector<Buffer> room;
  for (std::int64_t left = bytes + bytes / 16; left > 0; left -= kPiece)
    room.emplace_back(*parts.memory, static_cast<std::size_t>(std::min(left, kPiece)),
                      MemoryTag::activations);
  return room;
}

std::optional<std::string> Trainer::Impl::try_batch(const Sample& longest, std::int64_t size) {
  try {
    const std::int64_t own = (parts.train_dataset->size() + share.count - 1) / share.count;
    const std::vector<Sample> rows(static_cast<std::size_t>(std::min(size * share.devices, own)),
                                   longest);
    const Batch batch = parts.collator->collate(rows, parts.host());
    Engine::Write copy;
    if (args.save_strategy != Interval::no) copy = engine->snapshot(!args.save_only_model);
    parts.memory->reset_peaks();
    const std::int64_t before = parts.memory->total().current;
    engine->try_step(batch);
    const std::vector<Buffer> room = more_than(parts.memory->total().peak - before);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::out_of_memory) throw;
    return error.message();
  } catch (const std::bad_alloc&) {
    return "out of memory";
  }
  return std::nullopt;
}

// Like Hugging Face: a resumed run uses its checkpoint's batch size.
std::int64_t Trainer::Impl::first_batch_size() {
  std::int64_t size = 0;
  if (const std::string directory = will_continue(); !directory.empty()) try {
      size = read_trainer_state(directory).train_batch_size;
    } catch (const Error&) {
      size = 0;  // resume() reports the problem
    }
  sum(&size, 1);
  return size > 0 ? size : args.per_device_train_batch_size;
}

void Trainer::Impl::find_batch_size() {
  if (streams())
    throw Error(ErrorCode::invalid_argument,
                "auto_find_batch_size tries the longest sample, and a stream shows its longest "
                "sample only at its end",
                "set per_device_train_batch_size");
  const std::int64_t asked = args.per_device_train_batch_size;
  const Sample longest = longest_sample();
  std::int64_t size = first_batch_size();
  while (const auto problem = first_said(try_batch(longest, size))) {
    const std::int64_t next = nine_tenths(size);
    if (next == 0) {
      args.per_device_train_batch_size = size;
      refuse({ErrorCode::out_of_memory,
              fmt::format("auto_find_batch_size: not even per_device_train_batch_size 1 fits: {}",
                          *problem),
              what_helps(MemoryUse::step)});
    }
    say(fmt::format("auto_find_batch_size: {} samples a device do not fit ({}); trying {}", size,
                    problem->substr(0, problem->find("; held are ")), next));
    size = next;
  }
  parts.memory->reset_peaks();  // reported peaks are those of training
  if (parts.pinned_memory != nullptr) parts.pinned_memory->reset_peaks();
  if (size == asked) return;
  say(fmt::format("auto_find_batch_size: per_device_train_batch_size is {} instead of {}", size,
                  asked));
  state.train_batch_size = args.per_device_train_batch_size = size;
  loader = make_train_loader();
}

std::string Trainer::Impl::what_helps(MemoryUse use) const {
  std::string limit;
  if (args.memory_limit_mb)
    limit = fmt::format("a memory_limit_mb above {:g}, ", *args.memory_limit_mb);
  else if (ranks() > 1 && parts.kernels->device().is_cpu())
    limit = "a memory_limit_mb above this rank's even share, if others need less, ";
  const char* const ranks_help =
      "or more ranks with mp_parameters' sharded_data_parallel_degree or pipeline_parallel_degree";
  switch (use) {
    case MemoryUse::step: {
      std::string text = "use " + limit;
      if (const std::int64_t batch = args.per_device_train_batch_size; batch > 1)
        text += fmt::format(
            "a per_device_train_batch_size below {} with more gradient_accumulation_steps, ",
            batch);
      if (!args.auto_find_batch_size && args.mp_parameters.empty())
        text += "auto_find_batch_size, ";
      if (!args.gradient_checkpointing) text += "gradient_checkpointing, ";
      if (!args.activation_offloading) text += "activation_offloading, ";
      return text + "a smaller block_size or model, " + ranks_help;
    }
    case MemoryUse::evaluation:
      return fmt::format("use {}a per_device_eval_batch_size below {}, {}", limit,
                         args.per_device_eval_batch_size, ranks_help);
    case MemoryUse::checkpoint:
      return fmt::format(
          "a checkpoint is copied, and written behind the next steps; use {}a "
          "per_device_train_batch_size below {}, save_only_model, {}",
          limit, args.per_device_train_batch_size, ranks_help);
  }
  return {};
}

}  // namespace shoal
