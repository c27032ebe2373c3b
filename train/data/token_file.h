// .shoaltok: token ids that are prepared once and memory-mapped by every rank of a node.
//
// Layout, little-endian, version 1; written sequentially:
//   header, 64 bytes: magic "SHOALTOK", version u32, bytes per id u32 (2 or 4), zeros
//   the ids, padded with zeros to a multiple of 8 bytes
//   document offsets u64[documents + 1], in ids: the first 0, the last the number of ids
//   trailer, 128 bytes: ids u64, documents u64, highest id i64 (-1: no ids), tokenizer hash (32
//   bytes), SHA-256 of all before the trailer, SHA-256 of the trailer so far, magic "SHOALEND"
// Opening checks magics, the trailer's own checksum, sizes and offsets; verify() reads every byte.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "shoal/runtime/io/byte_source.h"
#include "shoal/train/data/dataset.h"
#include "shoal/train/data/tokenizer/tokenizer.h"

namespace shoal {

// Writes a token file. Data go to a temporary file beside `path`; commit() syncs it and renames it
// to `path`. Without commit() no file remains. Not thread-safe. Errors: io, with path and reason.
class TokenFileWriter {
 public:
  // `bytes_per_id`: 2 (ids up to 65,535) or 4. `tokenizer_hash`: 64 hex digits.
  TokenFileWriter(std::string path, int bytes_per_id, const std::string& tokenizer_hash);
  ~TokenFileWriter();
  void append_document(std::span<const TokenId> ids);  // rejects an id that does not fit
  std::int64_t tokens() const;
  void commit();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A memory-mapped token file; cheap to share, thread-safe. open() throws corrupt_data, with a
// one-line message, if the file is truncated, of another version, or not a token file.
class TokenFile {
 public:
  static std::shared_ptr<const TokenFile> open(const std::string& path);
  static std::shared_ptr<const TokenFile> open(WholeSource source);
  ~TokenFile();

  const std::string& path() const;
  std::int64_t tokens() const;
  std::int64_t documents() const;
  TokenId max_id() const;  // -1: the file is empty
  int bytes_per_id() const;
  std::string tokenizer_hash() const;                           // 64 hex digits
  TextSpan document(std::int64_t index) const;                  // token range of a document
  void read(std::int64_t begin, std::span<TokenId> out) const;  // ids [begin, begin + out.size())

  // invalid_argument, naming the highest id, if it is not below `vocab_size`. Uses the trailer
  // only.
  void check_vocab(std::int64_t vocab_size) const;
  // Reads every byte to check checksum and highest id; corrupt_data on a mismatch. `threads`
  // threads read the ids.
  void verify(int threads = 1, const std::function<void()>& progress = {}) const;

 private:
  struct Impl;
  explicit TokenFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Blocks of a token stream, as in run_clm's group_texts. Documents are concatenated; block i holds
// tokens [i * block_size, (i + 1) * block_size), and the remainder is dropped. Labels are the
// inputs.
class CausalLmDataset final : public Dataset {
 public:
  // Rejects a file of less than one block (unless `may_be_empty`), and ids not below `vocab_size`
  // (0: unchecked).
  CausalLmDataset(std::shared_ptr<const TokenFile> file, std::int64_t block_size,
                  std::int64_t vocab_size, bool may_be_empty = false);
  std::int64_t size() const override { return blocks_; }
  Sample get(std::int64_t index) const override;
  std::int64_t block_size() const { return block_size_; }

 private:
  std::shared_ptr<const TokenFile> file_;
  std::int64_t block_size_, blocks_;
};

}  // namespace shoal
