#include "shoal/train/data/pipe_shards.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/named_pipe.h"
#include "shoal/train/data/csv.h"

namespace shoal {
namespace {

constexpr std::size_t kReadBytes = std::size_t{1} << 20U;

class NoSamples final : public Dataset {
 public:
  std::int64_t size() const override { return 0; }
  Sample get(std::int64_t index) const override {
    throw_error(ErrorCode::invalid_argument, "sample {} of a piece that was passed over", index);
  }
};

// Advances `at` past the next record end and returns it; npos if the text has none. A final "\r"
// may be half of "\r\n", so it needs more text. `rows`: CSV state; null: the records are lines.
std::size_t record_end(std::string_view text, std::size_t& at, CsvReader* rows) {
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '\r' && at + 1 == text.size()) break;
    if (c == '\r' && text[at + 1] == '\n') continue;
    if (rows != nullptr ? rows->take(c) == CsvReader::Meaning::line_end : c == '\n' || c == '\r')
      return ++at;
  }
  return std::string_view::npos;
}

// `text` without the rows that equal `header`.
std::string without(std::string_view header, std::string_view text) {
  std::string kept;
  kept.reserve(text.size());
  CsvReader rows;
  for (std::size_t begin = 0, at = 0; begin < text.size();) {
    const std::size_t end = std::min(record_end(text, at, &rows), text.size());
    if (const std::string_view row = text.substr(begin, end - begin); row != header) kept += row;
    begin = end;
  }
  return kept;
}

}  // namespace

// Cuts one pipe after the other into pieces.
class PipeShards::Reader {
 public:
  Reader(const PipeOptions& options, const std::atomic<bool>& stop)
      : options_(options), stop_(stop) {}

  // The next piece, or nothing at the end of an epoch.
  std::optional<std::string> next() {
    if (std::exchange(ended_, false)) return std::nullopt;
    if (!pipe_)
      pipe_.emplace(fmt::format("{}_{}", options_.prefix, epoch_), stop_, options_.wait_seconds);
    std::optional<std::size_t> end;
    while (!(end = find_end())) {
      const std::size_t had = pending_.size();
      pending_.resize(had + kReadBytes);
      std::size_t got = 0;
      try {
        got = pipe_->read(std::as_writable_bytes(std::span(pending_).subspan(had)));
      } catch (...) {
        pending_.resize(had);
        throw;
      }
      pending_.resize(had + got);
      if (got == 0) return last();
    }
    return cut(*end);
  }

 private:
  // Position after the first record that ends at or beyond piece_bytes.
  std::optional<std::size_t> find_end() {
    for (;;) {
      const std::size_t end = record_end(pending_, scanned_, options_.has_rows ? &rows_ : nullptr);
      if (end == std::string::npos) return std::nullopt;
      if (options_.has_rows && header_.empty()) header_ = pending_.substr(0, end);
      if (static_cast<std::int64_t>(end) >= options_.piece_bytes) return end;
    }
  }
  std::string cut(std::size_t end) {
    std::string piece = pending_.substr(0, end);
    pending_.erase(0, end);
    scanned_ = 0;
    rows_ = {};
    return header_.empty() ? piece : header_ + without(header_, piece);
  }
  std::optional<std::string> last() {
    pipe_.reset();
    ++epoch_;
    std::optional<std::string> piece;
    if (!pending_.empty()) piece = cut(pending_.size());
    header_.clear();
    ended_ = piece.has_value();
    return piece;
  }

  const PipeOptions& options_;
  const std::atomic<bool>& stop_;
  std::optional<NamedPipe> pipe_;
  std::int64_t epoch_ = 0;
  std::string pending_, header_;
  std::size_t scanned_ = 0;
  CsvReader rows_;
  bool ended_ = false;
};

PipeShards::PipeShards(PipeOptions options, Opening opening)
    : name_(options.prefix + options.ending),
      options_(std::move(options)),
      opening_(std::move(opening)),
      reader_(std::make_unique<Reader>(options_, stop_)) {
  SHOAL_CHECK(options_.piece_bytes > 0, "pipe: pieces of {} bytes", options_.piece_bytes);
}
PipeShards::~PipeShards() = default;

const std::string& PipeShards::name(std::int64_t /*shard*/) const { return name_; }

std::shared_ptr<const Dataset> PipeShards::open(std::int64_t serial) const {
  SHOAL_CHECK(serial == next_, "{} is read once, in its order: piece {} after {} were read", name_,
              serial, next_);
  std::optional<std::string> text = reader_->next();
  ++next_;
  const std::int64_t piece = piece_++;
  if (!text) {
    passed_over_ = piece_ = 0;
    return nullptr;
  }
  if (piece < passed_over_) return std::make_shared<NoSamples>();
  return opening_(std::move(*text),
                  fmt::format("{}-piece-{}{}", options_.prefix, piece, options_.ending));
}

void PipeShards::pass_over(std::int64_t pieces) const {
  SHOAL_ASSERT(next_ == 0);
  passed_over_ = pieces;
}

void PipeShards::interrupt() const { stop_ = true; }

}  // namespace shoal
