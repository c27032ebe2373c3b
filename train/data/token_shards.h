// Shards of text and of tokens, for a stream that a language model learns.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/runtime/io/byte_source.h"
#include "shoal/train/data/prepare.h"
#include "shoal/train/data/sample_stream.h"
#include "shoal/train/data/token_file.h"

namespace shoal {

// Of shards of text and tokens: .txt, .jsonl, .json and .shoaltok.
const std::vector<std::string_view>& text_shard_endings();
// The shards that names stand for, in this order: files, directories (their files with these
// endings), patterns ("data/*.jsonl"), and "@FILE", which has one of those a line ('#' begins a
// comment). not_found where there are none. What `datasets` writes beside shards
// (dataset_info.json, state.json) is none, unless it is named.
std::vector<std::string> expand_shards(
    const std::vector<std::string>& names, const SourceRegistry& sources = {},
    const std::vector<std::string_view>& endings = text_shard_endings());

// worth_opening_ahead() of shards with these names.
int shards_ahead(const std::vector<std::string>& names);

struct TokenShardOptions {
  std::shared_ptr<const Tokenizer> tokenizer = {};  // may be absent where all shards are tokens
  // How text becomes tokens, and where those stay (output_directory); its inputs are not used.
  PrepareOptions prepare = {};
  std::int64_t block_size = 1024;
  bool line_by_line = false;  // samples are lines (LineDataset), else blocks (CausalLmDataset)
  std::int64_t vocab_size = 0;
};

// The samples in a shard's tokens, perhaps none.
std::shared_ptr<const Dataset> samples_of(std::shared_ptr<const TokenFile> tokens,
                                          const TokenShardOptions& options);

// A text shard is tokenized when it is opened, once: its tokens stay on disk by the hash of its
// contents, for the ranks of the host and the next epoch. A shard may have no sample. What is left
// of a shard behind its last whole block is dropped, as CausalLmDataset does.
class TokenShards final : public ShardSet {
 public:
  TokenShards(std::vector<std::string> names, TokenShardOptions options);
  std::int64_t count() const override { return static_cast<std::int64_t>(names_.size()); }
  const std::string& name(std::int64_t shard) const override;
  std::shared_ptr<const Dataset> open(std::int64_t shard) const override;
  int worth_opening_ahead() const override;

 private:
  std::vector<std::string> names_;
  TokenShardOptions options_;
};

}  // namespace shoal
