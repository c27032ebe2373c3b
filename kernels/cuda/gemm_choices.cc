#include "shoal/kernels/cuda/gemm_choices.h"

#include <cctype>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"

namespace shoal::kernels {
namespace {

constexpr int kFormat = 1;  // of the file; a file of another is ignored

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

// Choices of this process win over those read: what has been used stays.
void GemmChoices::read() {
  std::error_code none;
  if (!std::filesystem::exists(path_, none)) return;
  const auto ignore = [&](const std::string& why) {
    log::once(log::Level::warn, path_,
              fmt::format("products are timed anew, because {} is not used: {}", path_, why));
  };
  try {
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

std::optional<GemmChoice> GemmChoices::find(const std::string& key) const {
  const auto found = choices_.find(key);
  return found == choices_.end() ? std::nullopt : std::optional(found->second);
}

void GemmChoices::remember(const std::string& key, const GemmChoice& choice) {
  choices_.insert_or_assign(key, choice);
  if (path_.empty()) return;
  read();
  nlohmann::json file = {{"format", kFormat}, {"device", device_}, {"cublaslt", version_}};
  nlohmann::json& choices = file["choices"] = nlohmann::json::object();
  for (const auto& [each, its] : choices_) choices[each] = to_json(its);
  try {
    std::filesystem::create_directories(std::filesystem::path(path_).parent_path());
    write_file_atomically(path_, file.dump(1) + "\n");
  } catch (const std::exception& problem) {
    log::once(log::Level::warn, path_ + " write",
              fmt::format("the algorithms chosen for products are not kept: {}", problem.what()));
  }
}

}  // namespace shoal::kernels
