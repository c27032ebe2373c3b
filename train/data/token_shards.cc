#include "shoal/train/data/token_shards.h"

#include <algorithm>
#include <string_view>

#include <fmt/ranges.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/text_encoding.h"
#include "shoal/runtime/io/text_lines.h"
#include "shoal/train/data/line_dataset.h"
#include "shoal/train/data/token_file.h"

namespace shoal {
namespace {

constexpr std::string_view kTokens = ".shoaltok";
// With 4 shards in flight, reads of 100 ms per shard hide two round trips of 200 ms.
constexpr int kRemoteShardsAhead = 4;

bool has_ending(std::string_view name, const std::vector<std::string_view>& endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

bool is_description(std::string_view name) {
  const std::string_view last = name.substr(name.find_last_of('/') + 1);
  return last == "dataset_info.json" || last == "dataset_infos.json" ||
         last == "dataset_dict.json" || last == "state.json";
}

}  // namespace

std::vector<std::string> names_in_list(const std::string& file, const SourceRegistry& sources) {
  const WholeSource list = open_whole(file, sources);
  const std::string_view text(reinterpret_cast<const char*>(list.bytes.data()), list.bytes.size());
  refuse_unmarked_utf16(text, list.name);
  std::vector<std::string> names;
  std::string_view line;
  for (TextLines lines(text); lines.next(line);) {
    const std::size_t first = line.find_first_not_of(" \t");
    if (first == line.npos || line[first] == '#') continue;
    line = line.substr(first, line.find_last_not_of(" \t") + 1 - first);
    SHOAL_CHECK(line[0] != '@', "{}: a list cannot name another, {}", list.name, shortened(line));
    names.emplace_back(line);
  }
  return names;
}

const std::vector<std::string_view>& text_shard_endings() {
  static const std::vector<std::string_view> all = {".txt", ".jsonl", ".json", kTokens};
  return all;
}

std::vector<std::string> expand_shards(const std::vector<std::string>& names,
                                       const SourceRegistry& sources,
                                       const std::vector<std::string_view>& endings) {
  std::vector<std::string> shards;
  for (const std::string& name : names) {
    if (name.starts_with('@')) {
      const auto listed = expand_shards(names_in_list(name.substr(1), sources), sources, endings);
      shards.insert(shards.end(), listed.begin(), listed.end());
      continue;
    }
    const std::vector<std::string> found = sources.match(name);
    if (found.size() == 1 && found.front() == name) {
      SHOAL_CHECK(has_ending(name, endings), "{}: a shard's name ends with {}", name,
                  fmt::join(endings, ", "));
      shards.push_back(name);
      continue;
    }
    const std::size_t before = shards.size();
    std::copy_if(
        found.begin(), found.end(), std::back_inserter(shards),
        [&](const std::string& one) { return has_ending(one, endings) && !is_description(one); });
    if (shards.size() == before)
      throw_error(ErrorCode::not_found, "{}: of {} files there, none ends with {}", name,
                  found.size(), fmt::join(endings, ", "));
  }
  if (shards.empty()) throw_error(ErrorCode::not_found, "no shards are named");
  return shards;
}

TokenShards::TokenShards(std::vector<std::string> names, TokenShardOptions options)
    : names_(std::move(names)), options_(std::move(options)) {
  SHOAL_CHECK(!names_.empty(), "there are no shards");
  SHOAL_CHECK(options_.block_size > 0, "block_size is {}; it must be above 0", options_.block_size);
  SHOAL_CHECK(options_.tokenizer || !options_.line_by_line, "lines need the tokenizer's template");
  const auto text = std::find_if(names_.begin(), names_.end(),
                                 [](const std::string& name) { return !name.ends_with(kTokens); });
  if (text != names_.end() && !options_.tokenizer)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} is text, and there is no tokenizer", *text),
                "give tokenizer_name, or tokens from `shoal data prepare`");
  options_.prepare.may_be_empty = true;
  options_.prepare.validation_inputs.clear();
  options_.prepare.validation_fraction = 0;
}

const std::string& TokenShards::name(std::int64_t shard) const {
  SHOAL_CHECK(shard >= 0 && shard < count(), "shard {} of {}", shard, count());
  return names_[static_cast<std::size_t>(shard)];
}

int shards_ahead(const std::vector<std::string>& names) {
  // A remote shard of any size takes two round trips.
  const bool all_here = std::ranges::all_of(names, [](const auto& name) { return is_local(name); });
  return all_here ? 1 : kRemoteShardsAhead;
}

int TokenShards::worth_opening_ahead() const { return shards_ahead(names_); }

std::shared_ptr<const Dataset> TokenShards::open(std::int64_t shard) const {
  const std::string& from = name(shard);
  std::shared_ptr<const TokenFile> tokens;
  if (from.ends_with(kTokens)) {
    tokens = TokenFile::open(open_whole(from, options_.prepare.sources));
  } else {
    PrepareOptions prepare = options_.prepare;
    prepare.inputs = {from};
    tokens = TokenFile::open(prepare_data(*options_.tokenizer, prepare).train.path);
  }
  return samples_of(std::move(tokens), options_);
}

std::shared_ptr<const Dataset> samples_of(std::shared_ptr<const TokenFile> tokens,
                                          const TokenShardOptions& options) {
  if (options.line_by_line)
    return std::make_shared<LineDataset>(std::move(tokens), options.tokenizer->sequence_template(),
                                         options.block_size, options.vocab_size, true);
  return std::make_shared<CausalLmDataset>(std::move(tokens), options.block_size,
                                           options.vocab_size, true);
}

}  // namespace shoal
