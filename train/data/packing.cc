#include "shoal/train/data/packing.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/progress.h"

namespace shoal {
namespace {

// Bins indexed by free space. Bins with equal space are taken in the order in which they reached
// it, as in TRL's pack_dataset. A bin is in one queue at a time.
class RoomIndex {
 public:
  explicit RoomIndex(std::int64_t capacity)
      : queues_(static_cast<std::size_t>(capacity + 1)),
        some_(static_cast<std::size_t>(capacity / 64 + 1)) {}
  void add(std::int64_t room, std::int64_t bin) {
    Queue& queue = queues_[static_cast<std::size_t>(room)];
    if (bin >= std::ssize(next_)) next_.resize(static_cast<std::size_t>(bin + 1));
    next_[static_cast<std::size_t>(bin)] = -1;
    if (queue.first < 0)
      queue.first = bin;
    else
      next_[static_cast<std::size_t>(queue.last)] = bin;
    queue.last = bin;
    some_[static_cast<std::size_t>(room / 64)] |= std::uint64_t{1} << (room % 64);
  }
  // Takes the bin with the least space of at least `wanted`; returns it and its space, or {-1, 0}
  // if there is none.
  std::pair<std::int64_t, std::int64_t> take(std::int64_t wanted) {
    std::uint64_t hidden = (std::uint64_t{1} << (wanted % 64)) - 1;
    for (auto word = static_cast<std::size_t>(wanted / 64); word < some_.size(); ++word) {
      const std::uint64_t found = some_[word] & ~hidden;
      hidden = 0;
      if (found == 0) continue;
      const auto room = static_cast<std::int64_t>(word) * 64 + std::countr_zero(found);
      Queue& queue = queues_[static_cast<std::size_t>(room)];
      const std::int64_t bin = queue.first;
      queue.first = next_[static_cast<std::size_t>(bin)];
      if (queue.first < 0) some_[word] &= ~(std::uint64_t{1} << (room % 64));
      return {bin, room};
    }
    return {-1, 0};
  }

 private:
  struct Queue {
    std::int64_t first = -1, last = -1;  // last: valid if there is a first
  };
  std::vector<Queue> queues_;        // [space]
  std::vector<std::int64_t> next_;   // [bin]: next bin in its queue; -1: none
  std::vector<std::uint64_t> some_;  // bitset over space: whether any bin has it
};

// Item indices by decreasing length; ties keep their order.
std::vector<std::int64_t> by_length(std::span<const std::int64_t> lengths, std::int64_t capacity) {
  std::vector<std::int64_t> begins(static_cast<std::size_t>(capacity) + 2);
  for (const std::int64_t length : lengths)
    ++begins[static_cast<std::size_t>(capacity - length) + 1];
  for (std::size_t i = 1; i < begins.size(); ++i) begins[i] += begins[i - 1];
  std::vector<std::int64_t> order(lengths.size());
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    std::int64_t& at = begins[static_cast<std::size_t>(capacity - lengths[i])];
    order[static_cast<std::size_t>(at++)] = static_cast<std::int64_t>(i);
  }
  return order;
}

}  // namespace

std::vector<std::int64_t> best_fit_decreasing(std::span<const std::int64_t> lengths,
                                              std::int64_t capacity) {
  SHOAL_CHECK(capacity > 0, "bins of {}", capacity);
  for (std::size_t i = 0; i < lengths.size(); ++i)
    SHOAL_CHECK(lengths[i] >= 0 && lengths[i] <= capacity, "item {} has length {}, a bin {}", i,
                lengths[i], capacity);
  std::vector<std::int64_t> bin_of(lengths.size(), -1);
  RoomIndex rooms(capacity);
  std::int64_t bins = 0;
  for (const std::int64_t item : by_length(lengths, capacity)) {
    const std::int64_t length = lengths[static_cast<std::size_t>(item)];
    if (length == 0) break;
    auto [bin, room] = rooms.take(length);
    if (bin < 0) {
      bin = bins++;
      room = capacity;
    }
    bin_of[static_cast<std::size_t>(item)] = bin;
    rooms.add(room - length, bin);
  }
  std::vector<std::int64_t> number(static_cast<std::size_t>(bins), -1);
  std::int64_t next = 0;
  for (std::int64_t& bin : bin_of) {
    if (bin < 0) continue;
    std::int64_t& own = number[static_cast<std::size_t>(bin)];
    if (own < 0) own = next++;
    bin = own;
  }
  return bin_of;
}

std::string_view to_string(PackingStrategy strategy) {
  switch (strategy) {
    case PackingStrategy::bfd:
      return "bfd";
    case PackingStrategy::bfd_split:
      return "bfd_split";
    case PackingStrategy::wrapped:
      return "wrapped";
  }
  return "";
}

PackedDataset::PackedDataset(std::shared_ptr<const TokenFile> file, const PackingOptions& options)
    : file_(std::move(file)), options_(options) {
  SHOAL_CHECK(options.block_size > 1 && options.block_size < std::int64_t{1} << 31,
              "block_size is {}; it must be above 1", options.block_size);
  SHOAL_CHECK(
      options.pad_id >= 0 && (options.vocab_size == 0 || options.pad_id < options.vocab_size),
      "blocks are filled with id {}, but the vocabulary has {}", options.pad_id,
      options.vocab_size);
  if (options.vocab_size > 0) file_->check_vocab(options.vocab_size);
  report_.documents = file_->documents();
  if (options.strategy == PackingStrategy::wrapped)
    measure_wrapped();
  else
    pack();
  if (report_.blocks == 0)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} has {} documents of {} tokens, which fill no block of {}",
                            file_->path(), file_->documents(), file_->tokens(), options.block_size),
                "give more text or a smaller block_size");
}

void PackedDataset::pack() {
  const std::int64_t block = options_.block_size;
  std::vector<Part> all;
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < file_->documents(); ++i) {
    progress::made_of(sizeof(TextSpan));
    const TextSpan document = file_->document(i);
    const auto begin = static_cast<std::int64_t>(document.begin),
               end = static_cast<std::int64_t>(document.end);
    if (end - begin > block) ++report_.cut;
    for (std::int64_t at = begin; at < end; at += block) {
      const std::int64_t length = std::min(block, end - at);
      if (at > begin && options_.strategy == PackingStrategy::bfd) {
        report_.dropped += end - at;
        break;
      }
      if (length < 2) {
        ++report_.left_out;
        ++report_.dropped;
        continue;
      }
      all.push_back({at, static_cast<std::int32_t>(length)});
      lengths.push_back(length);
    }
  }
  const std::vector<std::int64_t> block_of = best_fit_decreasing(lengths, block);
  // Group the parts by block.
  for (const std::int64_t own : block_of) report_.blocks = std::max(report_.blocks, own + 1);
  blocks_.resize(static_cast<std::size_t>(report_.blocks) + 1);
  for (const std::int64_t own : block_of) ++blocks_[static_cast<std::size_t>(own) + 1];
  for (std::size_t i = 1; i < blocks_.size(); ++i) blocks_[i] += blocks_[i - 1];
  parts_.resize(all.size());
  std::vector<std::int64_t> next(blocks_.begin(), blocks_.end() - 1),
      room(static_cast<std::size_t>(report_.blocks), block);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto own = static_cast<std::size_t>(block_of[i]);
    parts_[static_cast<std::size_t>(next[own]++)] = all[i];
    room[own] -= all[i].length;
  }
  for (std::size_t i = 0; i < room.size(); ++i) {
    report_.padding += room[i];
    report_.sequences =
        std::max(report_.sequences, blocks_[i + 1] - blocks_[i] + (room[i] > 0 ? 1 : 0));
  }
}

void PackedDataset::measure_wrapped() {
  const std::int64_t block = options_.block_size;
  report_.blocks = file_->tokens() / block;
  report_.dropped = file_->tokens() % block;
  std::int64_t current = -1, sequences = 0;
  for (std::int64_t i = 0; i < file_->documents(); ++i) {
    progress::made_of(sizeof(TextSpan));
    const TextSpan document = file_->document(i);
    const auto begin = static_cast<std::int64_t>(document.begin),
               end = static_cast<std::int64_t>(document.end);
    if (begin == end) continue;
    const std::int64_t first = begin / block, last = (end - 1) / block;
    if (last > first) ++report_.cut;
    if (first >= report_.blocks) break;
    sequences = first == current ? sequences + 1 : 1;
    report_.sequences = std::max(report_.sequences, sequences);
    if (last > first) sequences = 1;
    current = last;
  }
}

std::int64_t PackedDataset::document_at(std::int64_t token) const {
  // Bounds of the first document that ends after `token`.
  std::int64_t low = 0, high = file_->documents();
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (static_cast<std::int64_t>(file_->document(middle).end) > token)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

std::vector<PackedDataset::Part> PackedDataset::parts_of(std::int64_t block) const {
  if (options_.strategy != PackingStrategy::wrapped)
    return {parts_.begin() + blocks_[static_cast<std::size_t>(block)],
            parts_.begin() + blocks_[static_cast<std::size_t>(block) + 1]};
  const std::int64_t begin = block * options_.block_size, end = begin + options_.block_size;
  std::vector<Part> parts;
  std::int64_t at = begin;
  for (std::int64_t i = document_at(begin); at < end; ++i) {
    const std::int64_t stop = std::min(static_cast<std::int64_t>(file_->document(i).end), end);
    if (stop > at) parts.push_back({at, static_cast<std::int32_t>(stop - at)});
    at = stop;
  }
  return parts;
}

Sample PackedDataset::get(std::int64_t index) const {
  SHOAL_CHECK(index >= 0 && index < size(), "block {} of {}", index, size());
  const auto block = static_cast<std::size_t>(options_.block_size);
  Sample sample;
  sample.input_ids.assign(block, options_.pad_id);
  sample.labels.assign(block, kIgnoreLabel);
  std::size_t at = 0;
  for (const Part& part : parts_of(index)) {
    sample.sequences.push_back(static_cast<std::int32_t>(at));
    const std::span<TokenId> ids(sample.input_ids.data() + at,
                                 static_cast<std::size_t>(part.length));
    file_->read(part.begin, ids);
    std::copy(ids.begin() + 1, ids.end(), sample.labels.data() + at + 1);
    at += ids.size();
  }
  if (at < block) sample.sequences.push_back(static_cast<std::int32_t>(at));
  sample.sequences.resize(static_cast<std::size_t>(report_.sequences),
                          static_cast<std::int32_t>(block));
  return sample;
}

std::string PackedDataset::describe() const {
  const PackingReport& r = report_;
  const auto share = [](std::int64_t part, std::int64_t whole) {
    return 100.0 * static_cast<double>(part) /
           static_cast<double>(std::max<std::int64_t>(whole, 1));
  };
  std::string text = fmt::format(
      "packing {}: {} documents in {} blocks of {}, at most {} sequences in one",
      to_string(options_.strategy), r.documents, r.blocks, options_.block_size, r.sequences);
  if (r.padding > 0)
    text += fmt::format("; {:.1f} % is padding", share(r.padding, r.blocks * options_.block_size));
  if (r.cut > 0)
    text += options_.strategy == PackingStrategy::bfd
                ? fmt::format("; {} longer than a block lose their rest", r.cut)
                : fmt::format("; {} are cut into sequences of their own", r.cut);
  if (r.left_out > 0) text += fmt::format("; {} of one token are left out", r.left_out);
  if (r.dropped > 0)
    text += fmt::format("; {} tokens ({:.1f} %) are in no block", r.dropped,
                        share(r.dropped, file_->tokens()));
  return text;
}

}  // namespace shoal
