#include "shoal/train/data/token_file.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/io/files.h"
#include "shoal/train/data/tokenizer/sha256.h"

namespace shoal {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are mapped as they are");

constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHashed = std::size_t{8} << 20;  // bytes between two progress reports
constexpr std::array<char, 8> kMagic = {'S', 'H', 'O', 'A', 'L', 'T', 'O', 'K'};
constexpr std::array<char, 8> kEndMagic = {'S', 'H', 'O', 'A', 'L', 'E', 'N', 'D'};

struct Header {
  std::array<char, 8> magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t bytes_per_id = 0;
  std::array<char, 48> zeros{};
};
static_assert(sizeof(Header) == 64);

struct Trailer {
  std::uint64_t ids = 0, documents = 0;
  std::int64_t max_id = -1;
  Sha256Digest tokenizer{}, contents{}, own{};
  std::array<char, 8> magic = kEndMagic;
};
static_assert(sizeof(Trailer) == 128 && offsetof(Trailer, own) == 88);

Sha256Digest digest_of(const Trailer& trailer) {
  return sha256({reinterpret_cast<const char*>(&trailer), offsetof(Trailer, own)});
}

std::uint64_t padded(std::uint64_t bytes) { return (bytes + 7) / 8 * 8; }

}  // namespace

struct TokenFileWriter::Impl {
  Impl(std::string path, int bytes_per_id_in, const std::string& tokenizer_hash)
      : file(std::move(path)), bytes_per_id(bytes_per_id_in) {
    SHOAL_CHECK(bytes_per_id == 2 || bytes_per_id == 4, "{}: {} bytes an id; 2 or 4 are possible",
                file.path(), bytes_per_id);
    trailer.tokenizer = digest_from_hex(tokenizer_hash);
    Header header;
    header.bytes_per_id = static_cast<std::uint32_t>(bytes_per_id);
    add(&header, sizeof header);
  }

  void add(const void* data, std::size_t bytes) {
    const auto* const begin = static_cast<const std::byte*>(data);
    buffer.insert(buffer.end(), begin, begin + bytes);
    if (buffer.size() >= kBuffer) flush();
  }
  void flush() {
    hash.add(buffer.data(), buffer.size());
    file.write(buffer);
    buffer.clear();
  }

  static constexpr std::size_t kBuffer = 1 << 20;
  AtomicFile file;
  int bytes_per_id;
  Sha256 hash;
  Trailer trailer;
  std::vector<std::uint64_t> offsets = {0};
  std::vector<std::byte> buffer;
  std::vector<std::uint16_t> narrow;
  bool committed = false;
};

TokenFileWriter::TokenFileWriter(std::string path, int bytes_per_id,
                                 const std::string& tokenizer_hash)
    : impl_(std::make_unique<Impl>(std::move(path), bytes_per_id, tokenizer_hash)) {}

TokenFileWriter::~TokenFileWriter() = default;

void TokenFileWriter::append_document(std::span<const TokenId> ids) {
  Impl& impl = *impl_;
  SHOAL_CHECK(!impl.committed, "{}: already committed", impl.file.path());
  const TokenId limit =
      impl.bytes_per_id == 2 ? TokenId{65535} : std::numeric_limits<TokenId>::max();
  for (const TokenId id : ids) {
    SHOAL_CHECK(id >= 0 && id <= limit, "{}: the id {} does not fit into {} bytes",
                impl.file.path(), id, impl.bytes_per_id);
    impl.trailer.max_id = std::max<std::int64_t>(impl.trailer.max_id, id);
  }
  if (impl.bytes_per_id == 2) {
    impl.narrow.assign(ids.begin(), ids.end());
    impl.add(impl.narrow.data(), 2 * impl.narrow.size());
  } else {
    impl.add(ids.data(), 4 * ids.size());
  }
  impl.offsets.push_back(impl.offsets.back() + ids.size());
}

std::int64_t TokenFileWriter::tokens() const {
  return static_cast<std::int64_t>(impl_->offsets.back());
}

void TokenFileWriter::commit() {
  Impl& impl = *impl_;
  SHOAL_CHECK(!impl.committed, "{}: already committed", impl.file.path());
  const std::uint64_t bytes = impl.offsets.back() * static_cast<std::uint64_t>(impl.bytes_per_id);
  constexpr std::array<char, 8> kZeros{};
  impl.add(kZeros.data(), padded(bytes) - bytes);
  impl.add(impl.offsets.data(), impl.offsets.size() * sizeof(std::uint64_t));
  impl.flush();
  Trailer& trailer = impl.trailer;
  trailer.ids = impl.offsets.back();
  trailer.documents = impl.offsets.size() - 1;
  trailer.contents = impl.hash.finish();
  trailer.own = digest_of(trailer);
  impl.file.write(std::as_bytes(std::span(&trailer, 1)));
  impl.file.commit();
  impl.committed = true;
}

struct TokenFile::Impl {
  WholeSource source;
  Trailer trailer;
  int bytes_per_id = 0;
  const std::byte* ids = nullptr;
  std::span<const std::uint64_t> offsets;
};

TokenFile::TokenFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TokenFile::~TokenFile() = default;

std::shared_ptr<const TokenFile> TokenFile::open(const std::string& path) {
  return open(open_whole(path));
}

std::shared_ptr<const TokenFile> TokenFile::open(WholeSource source) {
  auto impl = std::make_unique<Impl>();
  impl->source = std::move(source);
  const std::string& path = impl->source.name;
  const std::span<const std::byte> bytes = impl->source.bytes;
  const auto corrupt = [&](const std::string& what) {
    throw Error(ErrorCode::corrupt_data, fmt::format("{}: {}", path, what),
                "prepare the data again");
  };
  Header header;
  if (bytes.size() < sizeof header || std::memcmp(bytes.data(), kMagic.data(), 8) != 0)
    corrupt("not a token file");
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.version != kVersion)
    corrupt(fmt::format("token file version {}; this build reads {}", header.version, kVersion));
  Trailer& trailer = impl->trailer;
  if (bytes.size() < sizeof header + sizeof trailer + 8)
    corrupt(fmt::format("truncated: {} bytes", bytes.size()));
  std::memcpy(&trailer, bytes.data() + bytes.size() - sizeof trailer, sizeof trailer);
  if (trailer.magic != kEndMagic)
    corrupt(
        fmt::format("truncated or overwritten: no trailer at the end of {} bytes", bytes.size()));
  if (trailer.own != digest_of(trailer)) corrupt("the trailer's checksum is wrong");
  if (header.bytes_per_id != 2 && header.bytes_per_id != 4)
    corrupt(fmt::format("{} bytes an id; 2 or 4 are possible", header.bytes_per_id));
  impl->bytes_per_id = static_cast<int>(header.bytes_per_id);

  // The trailer's checksum is valid, so its numbers are as written. Below 2^60 ids the products do
  // not overflow.
  const std::uint64_t most = std::uint64_t{1} << 60;
  const std::uint64_t offsets_at = sizeof header + padded(trailer.ids * header.bytes_per_id);
  if (trailer.ids > most || trailer.documents > most ||
      offsets_at + 8 * (trailer.documents + 1) + sizeof trailer != bytes.size())
    corrupt(fmt::format("{} bytes do not hold {} ids of {} bytes in {} documents", bytes.size(),
                        trailer.ids, header.bytes_per_id, trailer.documents));
  impl->ids = bytes.data() + sizeof header;
  impl->offsets = {reinterpret_cast<const std::uint64_t*>(bytes.data() + offsets_at),
                   trailer.documents + 1};
  if (impl->offsets.front() != 0 || impl->offsets.back() != trailer.ids ||
      !std::is_sorted(impl->offsets.begin(), impl->offsets.end()))
    corrupt("the document offsets do not rise from 0 to the number of ids");
  return std::shared_ptr<const TokenFile>(new TokenFile(std::move(impl)));
}

const std::string& TokenFile::path() const { return impl_->source.name; }
std::int64_t TokenFile::tokens() const { return static_cast<std::int64_t>(impl_->trailer.ids); }
std::int64_t TokenFile::documents() const {
  return static_cast<std::int64_t>(impl_->trailer.documents);
}
TokenId TokenFile::max_id() const { return static_cast<TokenId>(impl_->trailer.max_id); }
int TokenFile::bytes_per_id() const { return impl_->bytes_per_id; }
std::string TokenFile::tokenizer_hash() const { return to_hex(impl_->trailer.tokenizer); }

TextSpan TokenFile::document(std::int64_t index) const {
  SHOAL_CHECK(index >= 0 && index < documents(), "{}: document {} of {}", path(), index,
              documents());
  const auto at = static_cast<std::size_t>(index);
  return {static_cast<std::int64_t>(impl_->offsets[at]),
          static_cast<std::int64_t>(impl_->offsets[at + 1])};
}

void TokenFile::read(std::int64_t begin, std::span<TokenId> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  SHOAL_CHECK(begin >= 0 && begin <= tokens() && count <= tokens() - begin,
              "{}: {} ids from {} on, of {}", path(), count, begin, tokens());
  if (out.empty()) return;
  if (impl_->bytes_per_id == 4) {
    std::memcpy(out.data(), impl_->ids + 4 * begin, out.size_bytes());
  } else {
    const auto* const ids = reinterpret_cast<const std::uint16_t*>(impl_->ids) + begin;
    std::copy(ids, ids + count, out.begin());
  }
}

void TokenFile::check_vocab(std::int64_t vocab_size) const {
  if (impl_->trailer.max_id >= vocab_size)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: the id {} is beyond the model's vocabulary of {}", path(),
                            impl_->trailer.max_id, vocab_size),
                "prepare the data with the model's own tokenizer, or enlarge the vocabulary");
}

void TokenFile::verify(int threads, const std::function<void()>& progress) const {
  const std::span<const std::byte> bytes = impl_->source.bytes;
  const auto corrupt = [&](const std::string& what) {
    throw Error(ErrorCode::corrupt_data, fmt::format("{}: {}", path(), what),
                "prepare the data again");
  };
  Sha256 hash;
  const std::span<const std::byte> covered = bytes.first(bytes.size() - sizeof(Trailer));
  for (std::size_t at = 0; at < covered.size(); at += kHashed) {
    const auto part = covered.subspan(at, std::min(kHashed, covered.size() - at));
    hash.add(part.data(), part.size());
    if (progress) progress();
  }
  const Sha256Digest contents = hash.finish();
  if (contents != impl_->trailer.contents) corrupt("the contents' checksum is wrong");
  std::atomic<std::int64_t> highest{-1};
  std::atomic<bool> cancelled{false};
  constexpr std::int64_t kGrain = 1 << 16;
  parallel_for(threads, tokens(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::vector<TokenId> part(static_cast<std::size_t>(kGrain));
    std::int64_t mine = -1;
    for (std::int64_t at = begin; at < end && !cancelled; at += kGrain) {
      if (begin == 0 && progress) try {  // in the calling thread
          progress();
        } catch (...) {
          cancelled = true;
          throw;
        }
      const std::span<TokenId> ids(part.data(),
                                   static_cast<std::size_t>(std::min(kGrain, end - at)));
      read(at, ids);
      for (const TokenId id : ids) mine = std::max<std::int64_t>(mine, id);
      if (*std::min_element(ids.begin(), ids.end()) < 0) corrupt("a negative id");
    }
    std::int64_t seen = highest.load();
    while (seen < mine && !highest.compare_exchange_weak(seen, mine)) {
    }
  });
  if (highest.load() != impl_->trailer.max_id)
    corrupt(fmt::format("the highest id is {}, but the trailer says {}", highest.load(),
                        impl_->trailer.max_id));
}

CausalLmDataset::CausalLmDataset(std::shared_ptr<const TokenFile> file, std::int64_t block_size,
                                 std::int64_t vocab_size, bool may_be_empty)
    : file_(std::move(file)), block_size_(block_size) {
  SHOAL_CHECK(block_size > 0, "block_size is {}; it must be above 0", block_size);
  if (vocab_size > 0) file_->check_vocab(vocab_size);
  blocks_ = file_->tokens() / block_size;
  if (blocks_ == 0 && !may_be_empty)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: {} tokens are less than one block of {}", file_->path(),
                            file_->tokens(), block_size),
                "give more text or a smaller block_size");
}

Sample CausalLmDataset::get(std::int64_t index) const {
  SHOAL_CHECK(index >= 0 && index < blocks_, "{}: block {} of {}", file_->path(), index, blocks_);
  Sample sample;
  sample.input_ids.resize(static_cast<std::size_t>(block_size_));
  file_->read(index * block_size_, sample.input_ids);
  return sample;
}

}  // namespace shoal
