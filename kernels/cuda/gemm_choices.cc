#include "shoal/kernels/cuda/gemm_choices.h"

#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <unistd.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"

namespace shoal::kernels {
namespace {

constexpr int kFormat = 1;  // of the file; files of other formats are ignored

nlohmann::json to_json(const GemmChoice& choice) {
  if (!choice.fused) return {{"fused", false}, {"microseconds", choice.microseconds}};
  return {{"fused", true},
          {"microseconds", choice.microseconds},
          {"workspace", choice.workspace},
          {"algorithm", choice.algorithm}};
}

GemmChoice from_json(const nlohmann::json& json) {
  GemmChoice choice;
  choice.fused = json.at("fused").get<bool>();
  choice.microseconds = json.at("microseconds").get<double>();
  if (!choice.fused) return choice;
  choice.workspace = json.at("workspace").get<std::uint64_t>();
  const auto& words = json.at("algorithm");
  if (words.size() != choice.algorithm.size())
    throw_error(ErrorCode::corrupt_data, "an algorithm of {} words", words.size());
  for (std::size_t i = 0; i < words.size(); ++i)
    choice.algorithm[i] = words[i].get<std::uint64_t>();
  return choice;
}

// Holds an exclusive lock on the file against other processes and other threads. The file is never
// removed; otherwise two processes could lock different files of the same name.
class FileLock {
 public:
  explicit FileLock(const std::string& path)
      : descriptor_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    int result = -1;
    if (descriptor_ >= 0) do {
        result = ::flock(descriptor_, LOCK_EX);
      } while (result != 0 && errno == EINTR);
    if (result != 0)
      log::once(log::Level::warn, path,
                fmt::format("{} cannot be locked ({}): ranks may choose different algorithms for "
                            "products",
                            path, std::strerror(errno)));
  }
  ~FileLock() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_;
};

}  // namespace

GemmChoices::GemmChoices(const std::string& directory, std::string device,
                         std::uint64_t library_version)
    : device_(std::move(device)), version_(library_version) {
  if (directory.empty()) return;
  std::string name = device_;
  for (char& c : name)
    c = std::isalnum(static_cast<unsigned char>(c))
            ? static_cast<char>(std::tolower(static_cast<unsigned char>(c)))
            : '_';
  path_ = (std::filesystem::path(directory) / fmt::format("products-{}-{}.json", name, version_))
              .string();
  read();
}

// This process's choices take precedence over those in the file, so that a choice in use does not
// change.
void GemmChoices::read() {
  const auto ignore = [&](const std::string& why) {
    log::once(log::Level::warn, path_,
              fmt::format("products are timed anew, because {} is not used: {}", path_, why));
  };
  try {
    if (!path_exists(path_)) return;
    const nlohmann::json file = read_json_file(path_);
    if (file.at("format") != kFormat || file.at("device") != device_ ||
        file.at("cublaslt") != version_)
      return ignore("it is of another device, library or format");
    std::map<std::string, GemmChoice> found;
    for (const auto& [key, choice] : file.at("choices").items())
      found.emplace(key, from_json(choice));
    choices_.merge(found);
  } catch (const std::exception& problem) {
    ignore(problem.what());
  }
}

std::optional<GemmChoice> GemmChoices::find(const std::string& key) {
  auto found = choices_.find(key);
  if (found == choices_.end() && on_disk()) {
    read();
    found = choices_.find(key);
  }
  return found == choices_.end() ? std::nullopt : std::optional(found->second);
}

GemmChoice GemmChoices::agree(const std::string& key, const GemmChoice& choice) {
  if (!on_disk()) return choices_.try_emplace(key, choice).first->second;
  best_effort("keep the algorithms chosen for products",
              [&] { make_directories(std::filesystem::path(path_).parent_path()); });
  const FileLock lock(path_ + ".lock");
  if (const auto known = find(key)) return *known;
  choices_.emplace(key, choice);
  write();
  return choice;
}

std::optional<GemmChoice> GemmChoices::find_or_time(
    const std::string& key, const std::function<std::optional<GemmChoice>()>& time) {
  if (const auto known = find(key)) return known;
  const std::optional<GemmChoice> timed = time();
  if (!timed) return find(key);
  return agree(key, *timed);
}

void GemmChoices::write() const {
  nlohmann::json file = {{"format", kFormat}, {"device", device_}, {"cublaslt", version_}};
  nlohmann::json& choices = file["choices"] = nlohmann::json::object();
  for (const auto& [each, its] : choices_) choices[each] = to_json(its);
  try {
    write_file_atomically(path_, file.dump(1) + "\n");
  } catch (const std::exception& problem) {
    log::once(log::Level::warn, path_ + " write",
              fmt::format("the algorithms chosen for products are not kept, and ranks may choose "
                          "different ones: {}",
                          problem.what()));
  }
}

}  // namespace shoal::kernels
