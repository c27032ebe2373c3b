// Shards of text or tokens for streaming language-model training.
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

// File endings of text and token shards: .txt, .jsonl, .json and .shoaltok.
const std::vector<std::string_view>& text_shard_endings();
// The names in the list FILE of "@FILE": one per line. Skips blank lines and comments.
std::vector<std::string> names_in_list(const std::string& file, const SourceRegistry& sources = {});
// Expands names to shards, in order. A name is a file, a directory (its files with these endings),
// a pattern ("data/*.jsonl"), or "@FILE", which lists one such name per line ('#' starts a
// comment). Ignores the description files that `datasets` writes (dataset_info.json, state.json)
// unless they are named. not_found if there are no shards.
std::vector<std::string> expand_shards(
    const std::vector<std::string>& names, const SourceRegistry& sources = {},
    const std::vector<std::string_view>& endings = text_shard_endings());

// worth_opening_ahead() for shards with these names.
int shards_ahead(const std::vector<std::string>& names);

struct TokenShardOptions {
  std::shared_ptr<const Tokenizer> tokenizer = {};  // may be null if all shards hold tokens
  // How to tokenize text, and where to keep the tokens (output_directory). `inputs` is not used.
  PrepareOptions prepare = {};
  std::int64_t block_size = 1024;
  bool line_by_line = false;  // true: lines (LineDataset); false: blocks (CausalLmDataset)
  std::int64_t vocab_size = 0;
};

// Samples of a shard's tokens, possibly none.
std::shared_ptr<const Dataset> samples_of(std::shared_ptr<const TokenFile> tokens,
                                          const TokenShardOptions& options);

// A text shard is tokenized once, when it is first opened. The tokens stay on disk, keyed by the
// hash of the text, for all ranks of the host and for later epochs. A shard may have no samples.
// Tokens after its last full block are dropped, as in CausalLmDataset.
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
