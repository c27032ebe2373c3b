// Documents that share a block without seeing each other: which of them go together, and the
// samples that this makes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/train/data/dataset.h"
#include "shoal/train/data/packing_strategy.h"
#include "shoal/train/data/token_file.h"

namespace shoal {

// The bin of each item, where items of these lengths go into bins of `capacity`: the longest first
// (of equals the earlier), each into the fullest bin that has room for it (of equals the one that
// has been so full for longest), else into a new one (best-fit decreasing; Johnson, 1973: at most
// 11/9 of the fewest bins, and 4 more): the bins of TRL's pack_dataset. They are numbered from 0 as
// their first items come in the list. An item of length 0 is in none: -1. A
// length below 0 or above the capacity is invalid_argument.
std::vector<std::int64_t> best_fit_decreasing(std::span<const std::int64_t> lengths,
                                              std::int64_t capacity);

std::string_view to_string(PackingStrategy strategy);

struct PackingOptions {
  PackingStrategy strategy = PackingStrategy::bfd;
  std::int64_t block_size = 1024;
  std::int64_t vocab_size = 0;  // 0: ids are not checked
  std::int32_t pad_id = 0;      // fills blocks of bfd and bfd_split
};

struct PackingReport {
  std::int64_t documents = 0, blocks = 0;
  std::int64_t sequences = 0;         // most in a block, the padding among them
  std::int64_t padding = 0;           // tokens
  std::int64_t cut = 0, dropped = 0;  // documents longer than a block; tokens that are in no block
  std::int64_t left_out = 0;          // documents, or last parts, of one token: nothing to predict
};

// Blocks of a token file, all of block_size tokens and as many Sample::sequences; padding is a
// sequence of its own without labels. What remains behind `wrapped`'s last block is dropped.
class PackedDataset final : public Dataset {
 public:
  // Refuses a file that fills no block, and ids beyond `vocab_size`.
  PackedDataset(std::shared_ptr<const TokenFile> file, const PackingOptions& options);
  std::int64_t size() const override { return report_.blocks; }
  Sample get(std::int64_t index) const override;
  const PackingReport& report() const { return report_; }
  // "packing bfd: 120 documents in 31 blocks of 1024, at most 9 in one; 2.1 % is padding; ..."
  std::string describe() const;

 private:
  // Tokens of one document.
  struct Part {
    std::int64_t begin = 0;
    std::int32_t length = 0;
  };
  void pack();  // bfd, bfd_split
  void measure_wrapped();
  std::int64_t document_at(std::int64_t token) const;
  // The parts of a block, in the order of the file.
  std::vector<Part> parts_of(std::int64_t block) const;

  std::shared_ptr<const TokenFile> file_;
  PackingOptions options_;
  PackingReport report_;
  std::vector<Part> parts_;           // of block after block; empty: wrapped
  std::vector<std::int64_t> blocks_;  // [blocks + 1]: where a block's parts begin
};

}  // namespace shoal
