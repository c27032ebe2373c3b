// auto_find_batch_size, and what is said where memory does not suffice.
//
// Hugging Face runs training itself until memory runs out, and begins anew with nine tenths of the
// batch (accelerate's find_executable_batch_size). With ranks that is no way: the one without
// memory stops in the middle of a step, and the others wait inside an all_reduce, whose
// communicator is of no use once it was given up. So one step's memory is tried before training:
// forward and backward of the largest batch there can be, without a word between ranks, and with
// the copy that a checkpoint is written from beside it. Then all ranks tell each other whether it
// fitted. A try changes nothing that training begins with, so a run ends with the bits of one that
// was given the batch size that was found.
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

// What one rank says, all are told: the lowest's that says something.
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

// A batch of nothing else is as large as one can be: every row is as long as the longest, and each
// of its positions has a target where some have (heads compute scores where there are targets).
Sample Trainer::Impl::longest_sample() {
  const auto lengths = lengths_of_samples();
  Sample sample = parts.train_dataset->get(std::ranges::max_element(*lengths) - lengths->begin());
  if (sample.labels.size() == sample.input_ids.size())
    std::ranges::replace(sample.labels, kIgnoreLabel, 0);
  return sample;
}

// What a step took, and a sixteenth: what one try cannot see is the scratch of updates, and how
// many words are hidden by chance (masked-lm). In pieces that a pool does not round up.
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

// As Hugging Face: a run that is continued has its checkpoint's.
std::int64_t Trainer::Impl::first_batch_size() {
  std::int64_t size = 0;
  if (const std::string directory = will_continue(); !directory.empty()) try {
      size = read_trainer_state(directory).train_batch_size;
    } catch (const Error&) {
      size = 0;  // resume() says what is wrong with it
    }
  sum(&size, 1);
  return size > 0 ? size : args.per_device_train_batch_size;
}

void Trainer::Impl::find_batch_size() {
  if (streams())
    throw Error(ErrorCode::invalid_argument,
                "auto_find_batch_size tries the longest sample, and which one of a stream that is "
                "nobody knows before its end",
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
  parts.memory->reset_peaks();  // what is reported is training's
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
