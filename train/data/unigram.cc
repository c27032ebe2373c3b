#include "shoal/train/data/unigram.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

std::vector<std::int64_t> count_tokens(const TokenFile& file, std::int64_t vocab_size) {
  file.check_vocab(vocab_size);
  SHOAL_CHECK(file.tokens() > 0, "{} holds no tokens", file.path());
  std::vector<std::int64_t> counts(static_cast<std::size_t>(vocab_size), 0);
  std::vector<TokenId> piece(std::size_t{1} << 16);
  for (std::int64_t begin = 0; begin < file.tokens();) {
    const auto length = static_cast<std::size_t>(
        std::min(static_cast<std::int64_t>(piece.size()), file.tokens() - begin));
    file.read(begin, {piece.data(), length});
    for (std::size_t i = 0; i < length; ++i) ++counts[static_cast<std::size_t>(piece[i])];
    begin += static_cast<std::int64_t>(length);
  }
  return counts;
}

}  // namespace

double unigram_loss(const TokenFile& train, const TokenFile& validation, std::int64_t vocab_size) {
  const std::vector<std::int64_t> seen = count_tokens(train, vocab_size);
  const std::vector<std::int64_t> asked = count_tokens(validation, vocab_size);
  const double total = static_cast<double>(train.tokens() + vocab_size);
  double loss = 0;
  for (std::size_t id = 0; id < seen.size(); ++id)
    if (asked[id] > 0)
      loss -= static_cast<double>(asked[id]) * std::log(static_cast<double>(seen[id] + 1) / total);
  return loss / static_cast<double>(validation.tokens());
}

}  // namespace shoal
