#include "shoal/train/data/tokenizer/tokenizer.h"

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/parallel_for.h"

namespace shoal {

std::vector<Encoding> encode_batch(const Tokenizer& tokenizer,
                                   std::span<const std::string_view> texts,
                                   const EncodeOptions& options, int threads) {
  std::vector<Encoding> result(texts.size());
  constexpr std::int64_t kGrain = 8;  // texts; below that a thread costs more than it brings
  parallel_for(threads, static_cast<std::int64_t>(texts.size()), kGrain,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) {
                   const auto at = static_cast<std::size_t>(i);
                   try {
                     result[at] = tokenizer.encode(texts[at], options);
                   } catch (const Error& error) {
                     throw Error(error.code(), fmt::format("text {}: {}", i, error.message()),
                                 error.remedy());
                   }
                 }
               });
  return result;
}

}  // namespace shoal
