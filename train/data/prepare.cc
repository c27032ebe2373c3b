#include "shoal/train/data/prepare.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include <fmt/ranges.h>

#include "shoal/kernels/random.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/base/white_space.h"
#include "shoal/runtime/io/file_lock.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/train/data/documents.h"
#include "shoal/train/data/token_file.h"
#include "shoal/train/data/tokenizer/sha256.h"
#include "shoal/train/data/tokenizer/work.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

// Part of the key. Increase it if the same inputs would produce different files.
constexpr std::string_view kFormat = "shoal data 3";
// Bytes of text or tokens to scan between two progress reports.
constexpr std::size_t kPassBytes = std::size_t{8} << 20;

void check(const Tokenizer& tokenizer, const PrepareOptions& options) {
  SHOAL_CHECK(!options.inputs.empty(), "prepare: no input files");
  SHOAL_CHECK(!options.output_directory.empty(), "prepare: no output directory");
  SHOAL_CHECK(options.validation_fraction >= 0 && options.validation_fraction < 1,
              "prepare: validation_fraction is {}; it goes from 0 up to, but without, 1",
              options.validation_fraction);
  SHOAL_CHECK(options.validation_fraction == 0 || options.validation_inputs.empty(),
              "prepare: both validation files and a validation_fraction of {} are given",
              options.validation_fraction);
  SHOAL_CHECK(!options.append_eos || tokenizer.roles().eos,
              "prepare: append_eos is on, but the tokenizer has no eos token");
}

bool adds_special_tokens(const Tokenizer& tokenizer, const PrepareOptions& options) {
  return options.add_special_tokens && tokenizer.sequence_template().special_tokens(false) > 0;
}

// The eos token that append_eos adds after each document; none if the template already ends with
// it.
std::optional<TokenId> appended_eos(const Tokenizer& tokenizer, const PrepareOptions& options) {
  if (!options.append_eos) return std::nullopt;
  const auto& last = tokenizer.sequence_template().single.back();
  const bool ends = adds_special_tokens(tokenizer, options) &&
                    last.text == SequenceTemplate::kSpecial && last.id == tokenizer.roles().eos;
  return ends ? std::nullopt : tokenizer.roles().eos;
}

using Sources = std::vector<DocumentSource>;

Sources open_all(const std::vector<std::string>& paths, const PrepareOptions& options) {
  Sources sources;
  for (const std::string& path : paths) sources.emplace_back(path, options);
  return sources;
}

// Reports progress of long work that does not consume input.
void tell_progress(const PrepareOptions& options) {
  if (options.progress) options.progress(0, 0);
}

Sha256Digest digest_of(std::string_view text, const PrepareOptions& options) {
  Sha256 hash;
  for (std::size_t at = 0; at < text.size(); at += kPassBytes) {
    hash.add(text.substr(at, kPassBytes));
    tell_progress(options);
  }
  return hash.finish();
}

std::string key_of(const Tokenizer& tokenizer, const PrepareOptions& options, const Sources& inputs,
                   const Sources& validation) {
  Sha256 hash;
  hash.add(fmt::format("{}\n{}\n{}\n{}:{}\n{:a} {} {}\n{} {} {} {}\n", kFormat, tokenizer.hash(),
                       static_cast<int>(options.document), options.text_field.size(),
                       options.text_field, options.validation_fraction,
                       static_cast<int>(options.split), options.split_seed, options.append_eos,
                       options.repair_utf8, adds_special_tokens(tokenizer, options),
                       options.keep_line_ends));
  if (options.drops_white_space) hash.add("without white space\n");
  for (const Sources* const sources : {&inputs, &validation}) {
    hash.add(fmt::format("{} files\n", sources->size()));
    for (const DocumentSource& source : *sources) {
      hash.add(source.is_json() ? "jsonl " : "text ");
      hash.add(to_hex(digest_of(source.text(), options)));
    }
  }
  return to_hex(hash.finish()).substr(0, 32);
}

// The split from an earlier run, if it exists and is intact.
std::optional<PreparedSplit> find_prepared(const std::string& path, const Tokenizer& tokenizer,
                                           const PrepareOptions& options, bool warns) {
  if (!path_exists(path)) return std::nullopt;
  try {
    const auto file = TokenFile::open(path);
    if (file->tokenizer_hash() != tokenizer.hash()) return std::nullopt;
    // Cheaper than computing the key, which hashes the text.
    file->verify(options.threads, [&] { tell_progress(options); });
    return PreparedSplit{path, file->documents(), file->tokens()};
  } catch (const Error& damage) {
    // These errors do not show damage: the file system failed, or progress() cancelled the reading.
    if (damage.code() == ErrorCode::io || damage.code() == ErrorCode::peer_lost ||
        damage.code() == ErrorCode::timeout)
      throw;
    if (warns) log::warn("{}; it is prepared again", damage.message());
    return std::nullopt;
  }
}

std::string_view without_line_end(std::string_view line) {
  if (line.ends_with('\n')) line.remove_suffix(1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

// Tokenizes chunks of documents in parallel and passes on the ids in order.
class Tokenization {
 public:
  // `total`: bytes of all sources.
  Tokenization(const Tokenizer& tokenizer, const PrepareOptions& options, std::int64_t total)
      : tokenizer_(tokenizer),
        options_(options),
        cuts_lines_(!options.keep_line_ends && options.document == PrepareOptions::Document::line),
        eos_(appended_eos(tokenizer, options)),
        total_(total),
        work_(total) {}

  // Calls sink(ids) for each document of `sources`, in order.
  void run(const Sources& sources, const std::function<void(std::span<const TokenId>)>& sink) {
    for (const DocumentSource& source : sources) {
      const std::int64_t before = done_;
      source.for_each([&](std::string_view raw, std::int64_t line) {
        pending_.push_back({raw, line});
        pending_bytes_ += static_cast<std::int64_t>(raw.size());
        if (pending_bytes_ >= kBatch) flush(source, sink);
      });
      flush(source, sink);
      done_ = before + source.bytes();  // includes the bytes between records
      tell(0);
    }
  }

 private:
  static constexpr std::int64_t kBatch = 8 << 20;    // bytes to tokenize between writes
  static constexpr std::int64_t kChunk = 128 << 10;  // approximate bytes of one thread's work item
  struct Pending {
    std::string_view raw;
    std::int64_t line;
  };
  struct Chunk {
    std::size_t begin, end;  // range in pending_
    std::vector<TokenId> ids;
    std::vector<std::size_t> ends;  // end of each document in ids
  };

  void append(std::string_view text, std::vector<TokenId>& ids) const {
    if (options_.drops_white_space && without_spaces_behind(text, is_python_space).empty()) return;
    tokenizer_.append_ids(text, ids, options_.add_special_tokens);
  }

  void tokenize(const DocumentSource& source, Chunk& chunk) const {
    for (std::size_t i = chunk.begin; i < chunk.end; ++i) {
      const Pending& document = pending_[i];
      const std::string_view raw = cuts_lines_ ? without_line_end(document.raw) : document.raw;
      if (source.needs_text_of())
        append(source.text_of(raw, document.line), chunk.ids);
      else
        append(raw, chunk.ids);
      if (eos_) chunk.ids.push_back(*eos_);
      chunk.ends.push_back(chunk.ids.size());
    }
  }

  void flush(const DocumentSource& source,
             const std::function<void(std::span<const TokenId>)>& sink) {
    std::vector<Chunk> chunks;
    std::int64_t bytes = kChunk;
    for (std::size_t i = 0; i < pending_.size(); ++i) {
      if (bytes >= kChunk) {
        chunks.push_back({i, i, {}, {}});
        bytes = 0;
      }
      bytes += static_cast<std::int64_t>(pending_[i].raw.size());
      chunks.back().end = i + 1;
    }
    std::atomic<std::int64_t> tokenized{0};
    parallel_for(options_.threads, static_cast<std::int64_t>(chunks.size()), 1,
                 [&](std::int64_t begin, std::int64_t end) {
                   const CorpusWork::Scope scope(work_);
                   for (std::int64_t i = begin; i < end && !cancelled_; ++i) {
                     tokenize(source, chunks[static_cast<std::size_t>(i)]);
                     tokenized += bytes_of(chunks[static_cast<std::size_t>(i)]);
                     if (begin == 0) tell(tokenized);  // in the calling thread
                   }
                 });
    work_.check();
    for (const Chunk& chunk : chunks) {
      std::size_t start = 0;
      for (const std::size_t end : chunk.ends) {
        sink(std::span(chunk.ids).subspan(start, end - start));
        start = end;
      }
    }
    done_ += pending_bytes_;
    pending_.clear();
    pending_bytes_ = 0;
    tell(0);
  }

  // `bytes`: done in this batch, in addition to done_. If progress() throws, the other threads
  // stop.
  void tell(std::int64_t bytes) {
    if (!options_.progress) return;
    try {
      options_.progress(std::min(done_ + bytes, total_), total_);
    } catch (...) {
      cancelled_ = true;
      throw;
    }
  }
  std::int64_t bytes_of(const Chunk& chunk) const {
    std::int64_t bytes = 0;
    for (std::size_t i = chunk.begin; i < chunk.end; ++i) bytes += std::ssize(pending_[i].raw);
    return bytes;
  }

  const Tokenizer& tokenizer_;
  const PrepareOptions& options_;
  bool cuts_lines_;
  std::optional<TokenId> eos_;
  std::vector<Pending> pending_;
  std::int64_t pending_bytes_ = 0, done_ = 0, total_;
  CorpusWork work_;
  std::atomic<bool> cancelled_{false};
};

// Decides which of `documents` go to validation.
class SplitRule {
 public:
  SplitRule(const PrepareOptions& options, std::int64_t documents)
      : options_(options), documents_(documents) {
    if (options.validation_fraction == 0) return;
    held_out_ = std::max<std::int64_t>(
        1, std::llround(options.validation_fraction * static_cast<double>(documents)));
    SHOAL_CHECK(held_out_ < documents,
                "prepare: a validation_fraction of {} of {} documents leaves none to train on",
                options.validation_fraction, documents);
  }
  bool is_validation(std::int64_t ordinal) const {
    if (held_out_ == 0) return false;
    switch (options_.split) {
      case PrepareOptions::Split::first:
        return ordinal < held_out_;
      case PrepareOptions::Split::last:
        return ordinal >= documents_ - held_out_;
      case PrepareOptions::Split::scattered:
        break;
    }
    const auto words = kernels::philox(
        options_.split_seed,
        {static_cast<std::uint32_t>(ordinal), static_cast<std::uint32_t>(ordinal >> 32), 0, 0});
    return static_cast<double>(words[0]) < options_.validation_fraction * 0x1p32;
  }

 private:
  const PrepareOptions& options_;
  std::int64_t documents_, held_out_ = 0;
};

std::int64_t bytes_of(const Sources& sources) {
  std::int64_t bytes = 0;
  for (const DocumentSource& source : sources) bytes += source.bytes();
  return bytes;
}

std::int64_t documents_of(const Sources& sources, const PrepareOptions& options) {
  std::int64_t documents = 0;
  std::size_t bytes = 0;
  for (const DocumentSource& source : sources)
    source.for_each([&](std::string_view raw, std::int64_t) {
      ++documents;
      bytes += raw.size();
      if (bytes < kPassBytes) return;
      bytes = 0;
      tell_progress(options);
    });
  return documents;
}

// `inputs`: the files of the documents, for messages.
PreparedSplit finish(TokenFileWriter& writer, const std::string& path, std::int64_t documents,
                     const char* name, const std::vector<std::string>& inputs, bool may_be_empty) {
  if (writer.tokens() == 0 && !may_be_empty)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("prepare: the {} data have no tokens ({} documents of {})", name,
                            documents, fmt::join(inputs, ", ")),
                "look whether the input files are empty");
  writer.commit();
  return {path, documents, writer.tokens()};
}

void write_splits(const Tokenizer& tokenizer, const PrepareOptions& options, const Sources& inputs,
                  const Sources& validation_inputs, PreparedData& result) {
  const int bytes_per_id = tokenizer.max_id() <= 65535 ? 2 : 4;
  const bool has_validation = !result.validation.path.empty();
  TokenFileWriter train(result.train.path, bytes_per_id, tokenizer.hash());
  std::optional<TokenFileWriter> validation;
  if (has_validation) validation.emplace(result.validation.path, bytes_per_id, tokenizer.hash());

  std::int64_t ordinal = 0, held_out = 0;
  const SplitRule rule(options,
                       options.validation_fraction > 0 ? documents_of(inputs, options) : 0);
  Tokenization tokenization(tokenizer, options, bytes_of(inputs) + bytes_of(validation_inputs));
  tokenization.run(inputs, [&](std::span<const TokenId> ids) {
    if (rule.is_validation(ordinal++)) {
      validation->append_document(ids);
      ++held_out;
    } else {
      train.append_document(ids);
    }
  });
  const std::int64_t trained = ordinal - held_out;
  tokenization.run(validation_inputs, [&](std::span<const TokenId> ids) {
    validation->append_document(ids);
    ++held_out;
  });
  // Write the validation file first: a process that finds train-KEY then finds both.
  if (has_validation)
    result.validation =
        finish(*validation, result.validation.path, held_out, "validation",
               validation_inputs.empty() ? options.inputs : options.validation_inputs,
               options.may_be_empty);
  result.train =
      finish(train, result.train.path, trained, "training", options.inputs, options.may_be_empty);
}

}  // namespace

PreparedData prepare_data(const Tokenizer& tokenizer, const PrepareOptions& options) {
  const auto start = Clock::now();
  check(tokenizer, options);
  const Sources inputs = open_all(options.inputs, options);
  const Sources validation = open_all(options.validation_inputs, options);
  PreparedData result;
  result.key = key_of(tokenizer, options, inputs, validation);
  const auto path_of = [&](const char* split) {
    return (fs::path(options.output_directory) / fmt::format("{}-{}.shoaltok", split, result.key))
        .string();
  };
  const bool has_validation = !validation.empty() || options.validation_fraction > 0;
  result.train.path = path_of("train");
  if (has_validation) result.validation.path = path_of("validation");

  const auto found = [&](bool warns) {
    const auto train = find_prepared(result.train.path, tokenizer, options, warns);
    const auto held_out = train && has_validation
                              ? find_prepared(result.validation.path, tokenizer, options, warns)
                              : std::optional<PreparedSplit>(PreparedSplit{});
    if (!train || !held_out) return false;
    result.train = *train;
    result.validation = *held_out;
    result.reused = true;
    result.seconds = seconds_since(start);
    return true;
  };
  const std::string lock_path =
      (fs::path(options.output_directory) / (result.key + ".lock")).string();
  if (!options.overwrite_cache && found(true)) {
    FileLock::remove_if_free(lock_path);
    return result;
  }
  make_directories(options.output_directory);
  // Going on without the lock is safe: processes that prepare the same text write the same tokens,
  // and each writes atomically.
  const FileLock lock(lock_path, options.waiting,
                      "another run may prepare the same text at the same time");
  if (!options.overwrite_cache && found(false)) return result;  // an earlier holder made it
  write_splits(tokenizer, options, inputs, validation, result);
  result.seconds = seconds_since(start);
  return result;
}

}  // namespace shoal
