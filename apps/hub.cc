#include "hub.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <system_error>
#include <vector>

#include "core_files.h"
#include "hub_download.h"
#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/progress.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/descriptor.h"
#include "shoal/runtime/io/file_lock.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/runtime/memory/mebibytes.h"
#include "shoal/sagemaker/rest/checksum.h"
#include "shoal/sagemaker/rest/encode.h"
#include "shoal/train/command/local_model.h"

namespace shoal::app {
namespace {

using sagemaker::HttpRequest;
using sagemaker::HttpResponse;
using sagemaker::Url;

struct HubFile {
  std::string name = {},
              hash = {};  // in hexadecimal: SHA-256 of a large file, else git's SHA-1 of a blob
  bool is_large = false;
  std::int64_t bytes = 0;
};

bool has_only(std::string_view text, std::string_view characters) {
  return !text.empty() && text.find_first_not_of(characters) == text.npos;
}

// True for the files that a run reads. Names with other characters, such as '/', are never wanted.
bool is_wanted(const std::string& name) {
  if (!has_only(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") ||
      name.starts_with('.'))
    return false;
  if (name.ends_with(".safetensors")) return name.starts_with("model");
  return name.ends_with(".json") || name.ends_with(".model") || name == "vocab.txt" ||
         name == "merges.txt";
}

class Hub {
 public:
  Hub(std::string name, const HubOptions& options)
      : name_(std::move(name)),
        options_(options),
        endpoint_(sagemaker::parse_url(options.endpoint, "HF_ENDPOINT")),
        transport_(sagemaker::make_curl_transport()) {
    while (endpoint_.path.ends_with('/')) endpoint_.path.pop_back();
    if (!options.token.empty() && endpoint_.scheme != "https" && !is_loopback(endpoint_))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("HF_TOKEN would go to {} unencrypted", options.endpoint),
                  "give an https:// mirror in HF_ENDPOINT, or unset HF_TOKEN");
  }

  std::string download();

 private:
  Url url_of(const std::string& path) const {
    Url url = endpoint_;
    url.path += path;
    return url;
  }
  std::vector<HubFile> list();
  void get(const HubFile& file);
  void get_bytes(const HubFile& file, const std::string& part);
  void read(Url& place, const HubFile& file, std::int64_t begin, std::span<std::byte> into);
  HttpResponse send(const HttpRequest& request);
  [[noreturn]] void fail(const HttpResponse& response, const std::string& what) const;
  void advance(std::int64_t bytes);

  std::string name_;
  HubOptions options_;
  Url endpoint_;
  std::shared_ptr<sagemaker::Transport> transport_;
  std::string revision_;                // 40 hexadecimal digits
  std::int64_t bytes_ = 0, there_ = 0;  // of all files; of these, on this machine
  Clock::time_point logged_ = Clock::now();
};

void Hub::fail(const HttpResponse& response, const std::string& what) const {
  const int status = response.status;
  if (status == 401 || status == 403 || status == 404)
    throw Error(
        ErrorCode::not_found,
        fmt::format("{} has no {} that may be read (HTTP {})", options_.endpoint, what, status),
        "check the name; for a private or gated model set HF_TOKEN");
  throw Error(ErrorCode::io, fmt::format("{}: HTTP {} for {}", options_.endpoint, status, what),
              "start the same command again: it continues");
}

// Sends the request, again after failures that may pass.
HttpResponse Hub::send(const HttpRequest& request) {
  for (int attempt = 1;; ++attempt) {
    progress::made();
    const bool is_last = attempt >= options_.retry.attempts;
    HttpResponse response;
    try {
      response = transport_->send(request);
      const bool may_pass = response.status == 429 || response.status >= 500;
      if (!may_pass || is_last) return response;
      log::warn("{} answers HTTP {}; asking again", request.url.authority(), response.status);
    } catch (const sagemaker::TransportError& error) {
      if (!error.retriable() || is_last)
        throw Error(ErrorCode::io, error.message(),
                    "check the network and HF_ENDPOINT; the same command continues");
      log::warn("{}; asking again", error.message());
    }
    options_.retry.wait(attempt + 1, response.status == 0 ? nullptr : &response);
  }
}

std::vector<HubFile> Hub::list() {
  HttpRequest request;
  request.url = url_of(fmt::format("/api/models/{}/revision/main", name_));
  request.url.query = "blobs=true";
  request.allow_plain = endpoint_.scheme != "https";
  if (!options_.token.empty())
    request.headers = {{"Authorization", "Bearer " + options_.token.reveal()}};
  const HttpResponse response = send(request);
  const std::string what = "model " + name_;
  if (response.status != 200) fail(response, what);
  const nlohmann::json answer = parse_json(response.body, what);
  revision_ = need_field<std::string>(answer, "sha", what);
  if (!has_only(revision_, "0123456789abcdef"))
    throw_error(ErrorCode::corrupt_data, "{}: the revision is '{}'", what, shortened(revision_));
  std::vector<HubFile> files;
  for (const auto& entry : need_field<std::vector<nlohmann::json>>(answer, "siblings", what)) {
    HubFile file{.name = need_field<std::string>(entry, "rfilename", what)};
    if (!is_wanted(file.name)) continue;
    const nlohmann::json* const large = find_field(entry, "lfs");
    file.is_large = large != nullptr;
    file.hash = file.is_large ? need_field<std::string>(*large, "sha256", what)
                              : need_field<std::string>(entry, "blobId", what);
    file.bytes = need_field<std::int64_t>(entry, "size", what);
    if (!has_only(file.hash, "0123456789abcdef") || file.bytes < 0)
      throw_error(ErrorCode::corrupt_data, "{}: {} has the hash '{}' and {} bytes", what, file.name,
                  shortened(file.hash), file.bytes);
    files.push_back(std::move(file));
  }
  return files;
}

// Fills `into` from the file's byte `begin`. `place`: where the last request was redirected to.
void Hub::read(Url& place, const HubFile& file, std::int64_t begin, std::span<std::byte> into) {
  const Url first = url_of(fmt::format("/{}/resolve/{}/{}", name_, revision_, file.name));
  if (place.path.empty()) place = first;
  bool is_renewed = false;
  for (int hops = 0; hops < 8; ++hops) {
    HttpRequest request;
    request.url = place;
    request.into = into;
    request.allow_plain = endpoint_.scheme != "https";
    request.headers = {{"Range", fmt::format("bytes={}-{}", begin, begin + std::ssize(into) - 1)}};
    if (!options_.token.empty() && place.scheme == endpoint_.scheme &&
        place.authority() == endpoint_.authority())
      request.headers.emplace_back("Authorization", "Bearer " + options_.token.reveal());
    const HttpResponse response = send(request);
    if (response.status >= 301 && response.status <= 308) {
      const std::string* const target = sagemaker::find_header(response.headers, "location");
      if (target == nullptr) fail(response, file.name);
      const std::string origin = fmt::format("{}://{}", place.scheme, place.authority());
      place = sagemaker::parse_url(target->starts_with('/') ? origin + *target : *target,
                                   "a redirection");
      continue;
    }
    if (response.status == 206 && response.filled == into.size()) return;
    // A server without ranges sends the whole file.
    const auto end = static_cast<std::size_t>(begin) + into.size();
    if (response.status == 200 && std::ssize(response.body) == file.bytes) {
      std::ranges::copy(std::as_bytes(std::span(response.body)
                                          .subspan(static_cast<std::size_t>(begin),
                                                   end - static_cast<std::size_t>(begin))),
                        into.begin());
      return;
    }
    const bool has_expired = response.status >= 400 && response.status < 500;
    if (!has_expired || place.text() == first.text() || is_renewed)
      fail(response, name_ + "/" + file.name);
    is_renewed = true;
    place = first;  // redirects to a new place
  }
  throw_error(ErrorCode::io, "{}: {} redirects for ever", options_.endpoint, file.name);
}

void Hub::advance(std::int64_t bytes) {
  there_ += bytes;
  progress::made();
  if (seconds_since(logged_) < 5) return;
  logged_ = Clock::now();
  log::info("{}: {:.0f} % of {}", name_,
            100 * static_cast<double>(there_) / static_cast<double>(bytes_), mebibytes(bytes_));
}

// Appends to `part` the bytes that it lacks.
void Hub::get_bytes(const HubFile& file, const std::string& part) {
  std::int64_t have = file_bytes(part).value_or(0);
  if (have > file.bytes) {
    remove_file(part);
    have = 0;
  }
  if (have > 0) log::info("{}: continues {} at {}", name_, file.name, mebibytes(have));
  advance(have);
  const Descriptor to(::open(part.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  const auto check = [&](bool done) {
    if (!done)
      throw_error(ErrorCode::io, "cannot write {}: {}", part,
                  std::generic_category().message(errno));
  };
  check(to.get() >= 0);
  std::vector<std::byte> piece;
  for (Url place{.path = ""}; have < file.bytes;) {
    piece.resize(static_cast<std::size_t>(std::min(options_.piece_bytes, file.bytes - have)));
    read(place, file, have, piece);
    for (std::span<const std::byte> rest = piece; !rest.empty();) {
      const ssize_t written = ::write(to.get(), rest.data(), rest.size());
      if (written < 0 && errno == EINTR) continue;
      check(written > 0);
      rest = rest.subspan(static_cast<std::size_t>(written));
    }
    have += std::ssize(piece);
    advance(std::ssize(piece));
  }
  check(::fsync(to.get()) == 0);
}

void Hub::get(const HubFile& file) {
  const std::string to = fmt::format("{}/snapshots/{}/{}", options_.folder, revision_, file.name);
  if (path_exists(to)) return advance(file.bytes);  // it got its name after the comparison
  const std::string part = fmt::format("{}/blobs/{}.incomplete", options_.folder, file.hash);
  get_bytes(file, part);
  const auto sum = sagemaker::make_checksum(file.is_large ? "sha256" : "sha1");
  if (sum == nullptr)
    throw_error(ErrorCode::unavailable, "OpenSSL has no SHA-1, the hash of {}", file.name);
  if (!file.is_large) {
    const std::string head = fmt::format("blob {}", file.bytes) + '\0';
    sum->add(std::as_bytes(std::span(head)));
  }
  const auto source = open_file(part);
  std::vector<std::byte> piece;
  for (std::int64_t at = 0; at < file.bytes; at += std::ssize(piece)) {
    piece.resize(static_cast<std::size_t>(std::min(std::int64_t{1} << 20, file.bytes - at)));
    source->read(at, piece);
    sum->add(piece);
  }
  if (sagemaker::hex(sum->finish()) != file.hash) {
    remove_file(part);
    throw Error(ErrorCode::corrupt_data,
                fmt::format("{}: {} does not have the hash {} that the Hub states", name_,
                            file.name, file.hash),
                "start the same command again; if it fails again, check HF_ENDPOINT and proxies");
  }
  rename_and_sync(part, to);
}

std::string Hub::download() {
  const std::vector<HubFile> files = list();
  for (const HubFile& file : files) bytes_ += file.bytes;
  make_directories(options_.folder + "/blobs");
  const std::string snapshot = fmt::format("{}/snapshots/{}", options_.folder, revision_);
  make_directories(snapshot);
  if (const std::int64_t free = free_bytes(options_.folder); free < bytes_)
    throw Error(ErrorCode::io,
                fmt::format("{} needs {}, but only {} are free in {}", name_, mebibytes(bytes_),
                            mebibytes(free), options_.folder),
                "free some, or name another cache in HF_HUB_CACHE");
  log::info("downloading {}: {} files, {} from {}", name_, files.size(), mebibytes(bytes_),
            options_.endpoint);
  for (const HubFile& file : files) get(file);
  // Last: a cache with this file has the whole model.
  make_directories(options_.folder + "/refs");
  write_file_atomically(options_.folder + "/refs/main", revision_);
  log::info("{} is in {}", name_, snapshot);
  return snapshot;
}

std::string variable_or(const char* name, const std::string& otherwise) {
  const char* const value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr || *value == '\0' ? otherwise : value;
}

}  // namespace

std::string download_model(const std::string& name, const HubOptions& options) {
  return Hub(name, options).download();
}

std::string fetch_model(const std::string& name) {
  HubOptions options;
  options.endpoint = variable_or("HF_ENDPOINT", options.endpoint);
  options.token = sagemaker::Secret(variable_or("HF_TOKEN", ""));
  options.folder = command::hub_folder(name);
  if (!options.token.empty()) forbid_core_files();
  make_directories(options.folder);
  const FileLock lock(
      options.folder + "/shoal-download.lock", [] { progress::made(); },
      "another process may download the same model at the same time");
  // An earlier holder of the lock may have downloaded it.
  if (std::string there = command::local_model(name); there != name) return there;
  return download_model(name, options);
}

}  // namespace shoal::app
