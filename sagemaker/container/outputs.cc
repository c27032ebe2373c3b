#include "shoal/sagemaker/container/outputs.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/files.h"

namespace shoal::sagemaker {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostCharacters = 1024;
// Lock file of train/checkpoint, left behind by a killed run.
constexpr std::string_view kRunLock = "run.lock";

// Removes the marks of --tag-output, such as "[1,3]<stderr>:", possibly repeated.
std::string without_marks(std::string_view line) {
  while (line.starts_with('[')) {
    const auto bracket = line.find("]<std");
    if (bracket != line.find(']') || bracket == line.npos) break;
    std::string_view rest = line.substr(bracket + 5);
    if (!rest.starts_with("out>:") && !rest.starts_with("err>:")) break;
    rest.remove_prefix(5);
    line = rest.starts_with(' ') ? rest.substr(1) : rest;
  }
  return std::string(line.substr(0, 10000));
}

// Cuts at a character boundary.
std::string_view cut(std::string_view text) {
  std::size_t seen = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0U) == 0x80U) continue;
    if (++seen > kMostCharacters) return text.substr(0, i);
  }
  return text;
}

bool is_of_model(const std::string& name) {
  return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
}

}  // namespace

bool has_model_since(const std::string& output_dir, fs::file_time_type time) {
  return std::ranges::any_of(list_directory_if_there(output_dir), [&](const DirectoryEntry& entry) {
    return is_of_model(entry.name) && modification_time(entry.path) >= time;
  });
}

std::vector<std::string> export_model(const std::string& output_dir, const std::string& model) {
  std::vector<std::string> names;
  for (const DirectoryEntry& entry : list_directory_if_there(output_dir))
    if (entry.kind == FileKind::regular && !entry.name.starts_with('.') && entry.name != kRunLock)
      names.push_back(entry.name);
  if (!std::ranges::any_of(names, is_of_model))
    throw Error(ErrorCode::not_found, fmt::format("there is no finished model in {}", output_dir));
  const std::string staging = model + "/.shoal-export";
  try {
    make_directories(staging);
    for (const std::string& name : names)
      copy_file(fmt::format("{}/{}", output_dir, name), fmt::format("{}/{}", staging, name));
    sync_directory(staging);
    for (const std::string& name : names)
      rename_path(fmt::format("{}/{}", staging, name), fmt::format("{}/{}", model, name));
    remove_tree(staging);
    sync_directory(model);
  } catch (const Error& problem) {
    best_effort("remove a half-written model", [&] { remove_tree(staging); });
    throw Error(ErrorCode::io,
                fmt::format("the model cannot be written to {}: {}", model, problem.message()),
                "a larger volume_size may be needed");
  }
  return names;
}

std::string reason_of(std::string_view error, int status) {
  std::string last, ours, denied;  // denied: ssh's line, followed by mpirun's help text
  std::istringstream lines{std::string(error)};
  for (std::string line; std::getline(lines, line);) {
    line = without_marks(line);
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (line.empty() || line.starts_with("-----")) continue;
    last = line;
    if (line.find(": Permission denied (") != std::string::npos) denied = line;
    if (line.starts_with("shoal ") || line.starts_with("shoal:")) ours = line;
  }
  std::string reason = !ours.empty()     ? ours
                       : !denied.empty() ? "ssh: " + denied
                       : !last.empty()   ? last
                                         : "shoal train said nothing";
  reason += fmt::format(" (exit status {})", status);
  if (status == 137 && ours.empty())
    reason +=
        "; killed, probably for memory: use a smaller per_device_train_batch_size, "
        "gradient_checkpointing, or a larger instance";
  return reason;
}

void write_failure(const std::string& output, std::string_view reason) noexcept {
  // A failure here is only logged; the exit status already reports the job's failure.
  best_effort("tell SageMaker why the job failed", [&] {
    make_directories(output);
    const std::string path = output + "/failure";
    if (!path_exists(path)) write_file(path, cut(reason));
  });
}

}  // namespace shoal::sagemaker
