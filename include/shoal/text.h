// A text file as blocks of tokens.
//
//   const shoal::Text text(job, "corpus.txt", "out/tokenizer", {.block_size = 256});
//   shoal::Batches batches(model, text.blocks(), {.size = 8});
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "shoal/run.h"
#include "shoal/train/data/dataset.h"

namespace shoal {

class Tokenizer;

// Options of Text.
struct TextOptions {
  std::int64_t block_size = 128;  // tokens per row
  // The cache directory of prepared tokens; empty: `file`.tokens next to the text.
  std::string cache_directory = {};
};

// Tokenizes a .txt, .json or .jsonl file once and maps the result. Documents are joined end to end,
// as in transformers' run_clm; a remainder shorter than a block is dropped.
class Text {
 public:
  // `tokenizer`: a directory with a Hugging Face tokenizer. Collective, blocks. Throws not_found,
  // invalid_argument, io.
  Text(Job& job, const std::string& file, const std::string& tokenizer,
       const TextOptions& options = {});

  // Rows of block_size tokens, for Batches. The file stays mapped while the result lives.
  std::shared_ptr<const Dataset> blocks() const { return blocks_; }
  std::shared_ptr<const Tokenizer> tokenizer() const { return tokenizer_; }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const Dataset> blocks_;
};

}  // namespace shoal
