#include "shoal/sagemaker/rest/s3_source.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <map>

#include "shoal/runtime/base/error.h"
#include "shoal/sagemaker/rest/checksum.h"
#include "shoal/sagemaker/rest/encode.h"
#include "shoal/sagemaker/rest/fetch_pool.h"

namespace shoal::sagemaker {

struct S3Reader::Shared {
  Shared(S3 from, const S3ReadOptions& how)
      : s3(std::move(from)), options(how), pool(how.connections) {}
  S3 s3;
  S3ReadOptions options;
  FetchPool pool;
};

namespace {

// An object and the means to fetch ranges of it. Pool work holds it by shared_ptr.
struct Object {
  S3 s3;
  S3Name name;
  std::string text;  // s3:// name
  ObjectHead head;
  int attempts = 0;

  void fetch(std::int64_t offset, std::span<std::byte> into) const {
    s3.read(name, head.etag, offset, into, attempts);
  }
};

// A part that is read ahead.
struct Part {
  std::vector<std::byte> bytes;
  std::shared_future<void> done;
};

class S3Source final : public ByteSource {
 public:
  // `owner` keeps `pool` alive.
  S3Source(std::shared_ptr<const Object> object, std::shared_ptr<void> owner, FetchPool& pool,
           const S3ReadOptions& options)
      : object_(std::move(object)), owner_(std::move(owner)), pool_(pool), options_(options) {}

  std::int64_t size() const override { return object_->head.size; }
  const std::string& name() const override { return object_->text; }
  void read(std::int64_t offset, std::span<std::byte> destination) const override;

 private:
  void read_parallel(std::int64_t offset, std::span<std::byte> destination) const;
  void read_ahead(std::int64_t offset, std::span<std::byte> destination) const;
  std::shared_ptr<Part> part_at(std::int64_t number) const;  // call with the lock held

  std::shared_ptr<const Object> object_;
  std::shared_ptr<void> owner_;
  FetchPool& pool_;
  S3ReadOptions options_;

  mutable std::mutex mutex_;
  mutable std::int64_t next_offset_ = 0;  // end of the last read
  mutable std::map<std::int64_t, std::shared_ptr<Part>> parts_;
};

void S3Source::read(std::int64_t offset, std::span<std::byte> destination) const {
  if (offset < 0 || offset > size() || std::ssize(destination) > size() - offset)
    throw_error(ErrorCode::corrupt_data, "{}: {} bytes at {} lie beyond its {} bytes", name(),
                destination.size(), offset, size());
  if (destination.empty()) return;
  const bool whole = std::ssize(destination) == size();
  bool follows = false;
  {
    const std::lock_guard lock(mutex_);
    follows = offset == next_offset_;
    next_offset_ = offset + std::ssize(destination);
  }
  if (whole || std::ssize(destination) >= options_.part_bytes)
    read_parallel(offset, destination);
  else if (follows)
    read_ahead(offset, destination);
  else
    object_->fetch(offset, destination);
}

// Fetches parts directly into the destination. Adds parts to the checksum in order, while later
// parts arrive.
void S3Source::read_parallel(std::int64_t offset, std::span<std::byte> destination) const {
  const bool whole = std::ssize(destination) == size();
  const ObjectHead& head = object_->head;
  const auto sum = whole && options_.verify && !head.checksum.empty()
                       ? make_checksum(head.checksum_name)
                       : nullptr;
  const auto step = static_cast<std::size_t>(options_.part_bytes);
  std::vector<std::future<void>> parts;
  for (std::size_t at = 0; at < destination.size(); at += step) {
    const auto piece = destination.subspan(at, std::min(step, destination.size() - at));
    parts.push_back(
        pool_.run([object = object_, piece, from = offset + static_cast<std::int64_t>(at)] {
          object->fetch(from, piece);
        }));
  }
  std::exception_ptr failure;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    try {
      parts[i].get();  // wait for all, even after a failure: they write to `destination`
      if (sum && !failure)
        sum->add(destination.subspan(i * step, std::min(step, destination.size() - i * step)));
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
  if (!sum) return;
  const std::string found = sum->finish();
  if (found != head.checksum)
    throw_error(ErrorCode::corrupt_data, "{}: its {} is {}, but of the {} bytes read it is {}",
                name(), head.checksum_name, hex(head.checksum), size(), hex(found));
}

std::shared_ptr<Part> S3Source::part_at(std::int64_t number) const {
  const std::int64_t from = number * options_.part_bytes;
  if (from >= size()) return nullptr;
  auto& part = parts_[number];
  if (part) return part;
  part = std::make_shared<Part>();
  part->bytes.resize(static_cast<std::size_t>(std::min(options_.part_bytes, size() - from)));
  part->done =
      pool_.run([object = object_, fetched = part, from] { object->fetch(from, fetched->bytes); })
          .share();
  return part;
}

void S3Source::read_ahead(std::int64_t offset, std::span<std::byte> destination) const {
  while (!destination.empty()) {
    const std::int64_t number = offset / options_.part_bytes;
    std::shared_ptr<Part> part;
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(parts_, [&](const auto& held) {
        return held.first < number || held.first > number + options_.read_ahead;
      });
      part = part_at(number);
      for (std::int64_t i = 1; i <= options_.read_ahead; ++i) part_at(number + i);
    }
    try {
      part->done.get();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (const auto held = parts_.find(number); held != parts_.end() && held->second == part)
        parts_.erase(held);  // the next read retries
      throw;
    }
    const auto inside = static_cast<std::size_t>(offset - number * options_.part_bytes);
    const std::size_t count = std::min(destination.size(), part->bytes.size() - inside);
    std::memcpy(destination.data(), part->bytes.data() + inside, count);
    destination = destination.subspan(count);
    offset += static_cast<std::int64_t>(count);
  }
}

}  // namespace

S3Reader::S3Reader(S3 s3, S3ReadOptions options) {
  SHOAL_CHECK(options.connections >= 1 && options.part_bytes >= 1 && options.read_ahead >= 0 &&
                  options.attempts >= 1,
              "reading S3 with {} connections, parts of {} bytes, {} ahead, {} attempts",
              options.connections, options.part_bytes, options.read_ahead, options.attempts);
  shared_ = std::make_shared<Shared>(std::move(s3), options);
}
S3Reader::~S3Reader() = default;

std::shared_ptr<ByteSource> S3Reader::open(const std::string& uri) const {
  const S3Name name = parse_s3_name(uri);
  SHOAL_CHECK(!name.key.empty(), "{} names a bucket, not an object", uri);
  auto object = std::make_shared<const Object>(shared_->s3, name, name.text(),
                                               shared_->s3.head(name, shared_->options.attempts),
                                               shared_->options.attempts);
  return std::make_shared<S3Source>(std::move(object), shared_, shared_->pool, shared_->options);
}

std::vector<std::string> S3Reader::list(const std::string& prefix) const {
  const S3Name from = parse_s3_name(prefix);
  std::vector<std::string> names;
  for (const ListedObject& object : shared_->s3.list(from, shared_->options.attempts))
    if (!object.key.ends_with('/')) names.push_back(S3Name{from.bucket, object.key}.text());
  return names;
}

void register_s3(SourceRegistry& registry, std::function<std::shared_ptr<const S3Reader>()> make) {
  struct Lazy {
    std::mutex mutex;
    std::function<std::shared_ptr<const S3Reader>()> make;
    std::shared_ptr<const S3Reader> reader;
    const S3Reader& get() {
      const std::lock_guard lock(mutex);
      if (!reader) reader = make();
      return *reader;
    }
  };
  auto lazy = std::make_shared<Lazy>();
  lazy->make = std::move(make);
  registry.add(
      "s3", [lazy](const std::string& uri) { return lazy->get().open(uri); },
      [lazy](const std::string& prefix) { return lazy->get().list(prefix); });
}

}  // namespace shoal::sagemaker
