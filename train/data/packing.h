// Packs documents into shared blocks in which they do not attend to each other.
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

// The bin of each item, packed by best-fit decreasing (Johnson, 1973: at most 11/9 of the optimum
// plus 4), with the same bins as TRL's pack_dataset. Items are placed from longest to shortest, and
// in the list's order if equally long. Each goes into the fullest bin with room, else into a new
// bin. Of equally full bins, the one that reached that fill first is taken. Bins are numbered by
// their first item in the list. Items of length 0 get -1. invalid_argument: a length below 0 or
// above the capacity.
std::vector<std::int64_t> best_fit_decreasing(std::span<const std::int64_t> lengths,
                                              std::int64_t capacity);

std::string_view to_string(PackingStrategy strategy);

struct PackingOptions {
  PackingStrategy strategy = PackingStrategy::bfd;
  std::int64_t block_size = 1024;
  std::int64_t vocab_size = 0;  // 0: ids are not checked
  std::int32_t pad_id = 0;      // padding token of bfd and bfd_split
};

struct PackingReport {
  std::int64_t documents = 0, blocks = 0;
  std::int64_t sequences = 0;         // maximum per block, including padding
  std::int64_t padding = 0;           // tokens
  std::int64_t cut = 0, dropped = 0;  // documents longer than a block; tokens in no block
  std::int64_t left_out = 0;  // documents or last parts of one token, with nothing to predict
};

// Blocks of a token file. Each has block_size tokens and the same number of Sample::sequences.
// Padding is a sequence of its own, without labels. `wrapped` drops the tokens after its last full
// block.
class PackedDataset final : public Dataset {
 public:
  // Rejects a file that fills no block, and ids not below `vocab_size`.
  PackedDataset(std::shared_ptr<const TokenFile> file, const PackingOptions& options);
  std::int64_t size() const override { return report_.blocks; }
  Sample get(std::int64_t index) const override;
  const PackingReport& report() const { return report_; }
  // "packing bfd: 120 documents in 31 blocks of 1024, at most 9 in one; 2.1 % is padding; ..."
  std::string describe() const;

 private:
  // A range of tokens of one document.
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
  std::vector<Part> parts_;           // block by block; empty for `wrapped`
  std::vector<std::int64_t> blocks_;  // [blocks + 1]: index of each block's first part
};

}  // namespace shoal
