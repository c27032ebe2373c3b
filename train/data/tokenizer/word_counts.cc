#include "shoal/train/data/tokenizer/word_counts.h"

#include <algorithm>
#include <vector>

#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/text_encoding.h"
#include "shoal/train/data/tokenizer/utf8.h"

namespace shoal {

void count_word(WordCounts& counts, std::string_view word) {
  const auto found = counts.find(word);
  if (found != counts.end())
    ++found->second;
  else
    counts.emplace(word, 1);
}

void count_file(const std::string& path, int threads,
                const std::function<void(WordCounts& counts, std::string_view line)>& count,
                const TrainingProgress& progress, WordCounts& counts) {
  const auto file = MappedFile::open(path);
  const std::string_view text(reinterpret_cast<const char*>(file->bytes().data()),
                              file->bytes().size());
  refuse_unmarked_utf16(text, path);
  check_utf8(text, path);
  // Split at line starts; each thread counts into its own map.
  const auto line_start = [&](std::int64_t at) {
    if (at == 0) return std::size_t{0};
    const std::size_t end = text.find('\n', static_cast<std::size_t>(at) - 1);
    return end == std::string_view::npos ? text.size() : end + 1;
  };
  constexpr std::int64_t kPiece = 1 << 20;
  const auto bytes = static_cast<std::int64_t>(text.size());
  const std::int64_t pieces = (bytes + kPiece - 1) / kPiece;
  const std::int64_t group = std::max(threads, 1);
  for (std::int64_t first = 0; first < pieces; first += group) {
    const std::int64_t some = std::min(group, pieces - first);
    std::vector<WordCounts> parts(static_cast<std::size_t>(some));
    parallel_for(threads, some, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::size_t stop = line_start(std::min((first + i + 1) * kPiece, bytes));
        for (std::size_t at = line_start((first + i) * kPiece); at < stop;) {
          const std::size_t next = line_start(static_cast<std::int64_t>(at) + 1);
          count(parts[static_cast<std::size_t>(i)], text.substr(at, next - at));
          at = next;
        }
      }
    });
    for (const WordCounts& part : parts)
      for (const auto& [word, times] : part) counts[word] += times;
    if (progress) progress("count words", std::min((first + some) * kPiece, bytes), bytes);
  }
}

}  // namespace shoal
