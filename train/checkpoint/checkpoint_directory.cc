#include "shoal/train/checkpoint/checkpoint_directory.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <openssl/evp.h>
#include <unistd.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"

namespace shoal {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kFormat = "shoal-checkpoint-1";
constexpr std::string_view kPrefix = "checkpoint-";
constexpr std::string_view kTemporaryPrefix = "tmp-checkpoint-";

class FileDescriptor {
 public:
  FileDescriptor(const std::string& path, int flags) : value_(::open(path.c_str(), flags)) {
    if (value_ < 0) throw_error(ErrorCode::io, "cannot open {}: {}", path, std::strerror(errno));
  }
  ~FileDescriptor() { ::close(value_); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return value_; }

 private:
  int value_;
};

std::string sha256_of_file(const std::string& path) {
  const FileDescriptor file(path, O_RDONLY | O_CLOEXEC);
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> digest(EVP_MD_CTX_new(),
                                                                       &EVP_MD_CTX_free);
  SHOAL_ASSERT(digest && EVP_DigestInit_ex(digest.get(), EVP_sha256(), nullptr) == 1);
  std::vector<unsigned char> block(std::size_t{1} << 20);
  for (;;) {
    const ssize_t got = ::read(file.get(), block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_error(ErrorCode::io, "cannot read {}: {}", path, std::strerror(errno));
    if (got == 0) break;
    EVP_DigestUpdate(digest.get(), block.data(), static_cast<std::size_t>(got));
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
  unsigned int length = 0;
  EVP_DigestFinal_ex(digest.get(), bytes.data(), &length);
  std::string hex;
  for (unsigned int i = 0; i < length; ++i) hex += fmt::format("{:02x}", bytes[i]);
  return hex;
}

// Paths relative to `directory`, sorted; the marker left out.
std::vector<std::string> files_below(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    std::string name = fs::relative(entry.path(), directory).generic_string();
    if (name != kCompleteMarker) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (name.empty() || error != std::errc() || end != name.data() + name.size() || step < 0)
    return std::nullopt;
  return step;
}

void remove_tree(const std::string& path) noexcept {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

void check_listed_file(const std::string& directory, const nlohmann::json& entry, bool checksums) {
  const auto name = entry.at("name").get<std::string>();
  const auto bytes = entry.at("bytes").get<std::int64_t>();
  SHOAL_CHECK(name.find("..") == std::string::npos && !name.starts_with('/'),
              "the marker names a file outside, '{}'", name);
  const std::string path = directory + "/" + name;
  std::error_code error;
  const auto size = fs::file_size(path, error);
  SHOAL_CHECK(!error, "{} is missing", name);
  SHOAL_CHECK(static_cast<std::int64_t>(size) == bytes, "{} has {} bytes instead of {}", name, size,
              bytes);
  if (checksums)
    SHOAL_CHECK(sha256_of_file(path) == entry.at("sha256").get<std::string>(),
                "{} does not match its checksum", name);
}

}  // namespace

std::string checkpoint_path(const std::string& output_dir, std::int64_t step) {
  return fmt::format("{}/{}{}", output_dir, kPrefix, step);
}

std::string unfinished_checkpoint_path(const std::string& output_dir, std::int64_t step, int rank) {
  return fmt::format("{}/{}{}.{}", output_dir, kTemporaryPrefix, step, rank);
}

std::vector<CheckpointInfo> list_checkpoints(const std::string& output_dir) {
  std::vector<CheckpointInfo> found;
  std::error_code error;
  for (fs::directory_iterator it(output_dir, error), end; !error && it != end;
       it.increment(error)) {
    const auto step = step_of(it->path().filename().string());
    std::error_code not_a_directory;
    if (step && it->is_directory(not_a_directory)) found.push_back({*step, it->path().string()});
  }
  std::sort(found.begin(), found.end(), [](const CheckpointInfo& a, const CheckpointInfo& b) {
    return a.step != b.step ? a.step < b.step : a.path < b.path;
  });
  return found;
}

std::optional<std::string> checkpoint_problem(const std::string& path, bool checksums) {
  const std::string marker = path + "/" + std::string(kCompleteMarker);
  std::error_code error;
  if (!fs::is_directory(path, error)) return "it is not a directory";
  if (!fs::exists(marker, error))
    return fmt::format("it has no {} marker: writing it was interrupted", kCompleteMarker);
  try {
    const nlohmann::json content = read_json_file(marker);
    const auto format = content.at("format").get<std::string>();
    if (format != kFormat)
      return fmt::format("its format is '{}'; this build reads '{}'", format, kFormat);
    for (const auto& entry : content.at("files")) check_listed_file(path, entry, checksums);
  } catch (const Error& problem) {
    return problem.what();
  } catch (const nlohmann::json::exception& problem) {
    return fmt::format("its {} marker cannot be read: {}", kCompleteMarker, problem.what());
  }
  return std::nullopt;
}

std::optional<CheckpointInfo> newest_checkpoint(
    const std::string& output_dir,
    const std::function<void(const std::string&, const std::string&)>& skipped) {
  auto all = list_checkpoints(output_dir);
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    const auto problem = checkpoint_problem(it->path, true);
    if (!problem) return *it;
    if (skipped) skipped(it->path, *problem);
  }
  return std::nullopt;
}

std::vector<std::string> rotate_checkpoints(const std::string& output_dir, std::int64_t limit,
                                            const std::vector<std::string>& keep) {
  std::vector<std::string> removed;
  const auto all = list_checkpoints(output_dir);
  auto excess = static_cast<std::int64_t>(all.size()) - std::max<std::int64_t>(limit, 1);
  for (const auto& info : all) {
    if (excess <= 0) break;
    const bool kept = std::any_of(keep.begin(), keep.end(), [&](const std::string& path) {
      return fs::path(path).filename() == fs::path(info.path).filename();
    });
    if (kept || &info == &all.back()) continue;
    // The marker goes first: a removal that is cut short leaves something that does not count.
    std::error_code ignored;
    fs::remove(info.path + "/" + std::string(kCompleteMarker), ignored);
    remove_tree(info.path);
    removed.push_back(info.path);
    --excess;
  }
  return removed;
}

void remove_unfinished_checkpoints(const std::string& output_dir) {
  std::vector<std::string> unfinished;
  std::error_code error;
  for (fs::directory_iterator it(output_dir, error), end; !error && it != end; it.increment(error))
    if (it->path().filename().string().starts_with(kTemporaryPrefix))
      unfinished.push_back(it->path().string());
  for (const auto& path : unfinished) remove_tree(path);
}

CheckpointTransaction::CheckpointTransaction(const std::string& output_dir, std::int64_t step,
                                             int rank)
    : temporary_(unfinished_checkpoint_path(output_dir, step, rank)),
      final_(checkpoint_path(output_dir, step)),
      step_(step) {
  make_temporary("--output_dir");
}

CheckpointTransaction::CheckpointTransaction(const std::string& path, std::int64_t step)
    : final_(fs::absolute(path).lexically_normal()), step_(step) {
  if (final_.ends_with('/')) final_.pop_back();
  const fs::path named(final_);
  temporary_ = named.parent_path() / (std::string(kTemporaryPrefix) + named.filename().string());
  make_temporary("directory");
}

void CheckpointTransaction::make_temporary(std::string_view what) {
  std::error_code error;
  fs::remove_all(temporary_, error);
  fs::create_directories(temporary_, error);
  if (error)
    throw Error(ErrorCode::io,
                fmt::format("cannot make the directory {}: {}", temporary_, error.message()),
                fmt::format("choose another {} or its permissions", what));
}

CheckpointTransaction::~CheckpointTransaction() {
  if (!committed_) remove_tree(temporary_);
}

std::string CheckpointTransaction::commit() {
  nlohmann::ordered_json marker;
  marker["format"] = kFormat;
  marker["step"] = step_;
  marker["files"] = nlohmann::ordered_json::array();
  for (const std::string& name : files_below(temporary_)) {
    const std::string path = temporary_ + "/" + name;
    {
      const FileDescriptor file(path, O_RDONLY | O_CLOEXEC);
      if (::fsync(file.get()) != 0)
        throw_error(ErrorCode::io, "cannot sync {}: {}", path, std::strerror(errno));
    }
    marker["files"].push_back({{"name", name},
                               {"bytes", static_cast<std::int64_t>(fs::file_size(path))},
                               {"sha256", sha256_of_file(path)}});
  }
  sync_directory(temporary_);
  // A directory of this step may stand there: an incomplete one, or that of a run which is being
  // repeated. It is moved aside, so that at no moment a mixture has the name.
  const std::string replaced = temporary_ + ".replaced";
  std::error_code error;
  if (fs::exists(final_, error)) {
    remove_tree(replaced);
    rename_and_sync(final_, replaced);
  }
  rename_and_sync(temporary_, final_);
  committed_ = true;
  try {
    write_file_atomically(final_ + "/" + std::string(kCompleteMarker), marker.dump(1) + "\n");
    sync_directory(final_);
  } catch (...) {
    // Without its marker it does not count; the older one of this step comes back if there was one.
    remove_tree(final_);
    if (fs::exists(replaced, error)) fs::rename(replaced, final_, error);
    throw;
  }
  remove_tree(replaced);
  return final_;
}

}  // namespace shoal
