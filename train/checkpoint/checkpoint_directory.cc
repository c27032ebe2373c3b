#include "shoal/train/checkpoint/checkpoint_directory.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/train/checkpoint/trainer_state.h"
#include "shoal/train/checkpoint/transformers_checkpoint.h"

namespace shoal {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kFormat = "shoal-checkpoint-1";
constexpr std::string_view kPrefix = "checkpoint-";
constexpr std::string_view kTemporaryPrefix = "tmp-checkpoint-";
constexpr std::string_view kReplaced = ".replaced";

// The new checkpoint is in place: a failure here only costs disk space until the next start.
void remove_replaced(const std::string& path) {
  best_effort("remove the checkpoint that was replaced", [&] { remove_tree(path); });
}

// Paths relative to `directory`, sorted, without the marker.
std::vector<std::string> files_below(const std::string& directory) {
  std::vector<std::string> names;
  for (const DirectoryEntry& entry : list_tree(directory))
    if (entry.kind == FileKind::regular && entry.name != kCompleteMarker)
      names.push_back(entry.name);
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

// True if such an error proves that a checkpoint is damaged. After other errors (io, out_of_memory,
// ...) the next attempt may succeed.
bool says_damaged(ErrorCode code) {
  return code == ErrorCode::corrupt_data || code == ErrorCode::invalid_argument ||
         code == ErrorCode::not_found;
}

struct ListedFile {
  std::string name, sha256;
  std::int64_t bytes = 0;
};

struct Marker {
  std::int64_t step = 0;
  std::vector<ListedFile> files;
};

// Throws invalid_argument if the file is not a marker that this build can read.
Marker read_marker(const std::string& path) {
  const nlohmann::json content = read_json_file(path);
  const std::string its = fmt::format("its {} marker", kCompleteMarker);
  const std::string its_entry = its + "'s entry of a file";
  const JsonFields fields(content, its);
  std::string format;
  fields.text("format", format);
  SHOAL_CHECK(format == kFormat, "its format is '{}'; this build reads '{}'", shortened(format),
              kFormat);
  Marker marker{.step = -1, .files = {}};
  fields.integer("step", marker.step);
  if (marker.step < 0) fields.fail("has no step");
  const nlohmann::json* files = fields.find("files");
  if (files == nullptr || !files->is_array() || files->empty()) fields.fail("lists no files");
  for (const nlohmann::json& entry : *files) {
    const JsonFields of_file(entry, its_entry);
    ListedFile file{.name = {}, .sha256 = {}, .bytes = -1};
    of_file.text("name", file.name);
    of_file.integer("bytes", file.bytes);
    of_file.text("sha256", file.sha256);
    if (file.name.empty() || file.bytes < 0 || file.sha256.empty())
      of_file.wrong("files", entry, "a name, bytes and sha256");
    if (file.name.find("..") != std::string::npos || file.name.starts_with('/'))
      of_file.fail(fmt::format("names a file outside, '{}'", shortened(file.name)));
    marker.files.push_back(std::move(file));
  }
  return marker;
}

void check_size(const std::string& directory, const ListedFile& file) {
  const std::optional<std::int64_t> size = file_bytes(directory + "/" + file.name);
  SHOAL_CHECK(size, "{} is missing", shortened(file.name));
  SHOAL_CHECK(*size == file.bytes, "{} has {} bytes instead of {}", shortened(file.name), *size,
              file.bytes);
}

// The step of a run's checkpoint is stored in three places, which must agree.
void check_step(const std::string& directory, const Marker& marker, bool reads_state) {
  if (std::ranges::find(marker.files, kTrainerStateFile, &ListedFile::name) == marker.files.end())
    return;  // no run can resume from such a checkpoint
  const auto named =
      step_of(fs::path(directory + "/").lexically_normal().parent_path().filename().string());
  SHOAL_CHECK(!named || *named == marker.step, "its {} marker is of step {}", kCompleteMarker,
              marker.step);
  if (!reads_state) return;
  const std::int64_t step = read_trainer_state(directory).global_step;
  SHOAL_CHECK(step == marker.step, "its {} is of step {}, its {} marker of step {}",
              kTrainerStateFile, step, kCompleteMarker, marker.step);
}

// For each file of the marker, whether the share includes it. Deals files from the largest down,
// each to the reader with the fewest bytes.
std::vector<bool> dealt(const std::vector<ListedFile>& files, const ChecksumShare& share) {
  std::vector<std::pair<std::int64_t, std::size_t>> by_size;
  for (const ListedFile& file : files) by_size.emplace_back(file.bytes, by_size.size());
  std::ranges::stable_sort(by_size, std::ranges::greater(),
                           &std::pair<std::int64_t, std::size_t>::first);
  std::vector<std::int64_t> load(static_cast<std::size_t>(share.readers));
  std::vector<bool> mine(by_size.size());
  for (const auto& [bytes, file] : by_size) {
    const auto least = std::ranges::min_element(load);
    *least += bytes;
    mine[file] = least - load.begin() == share.index;
  }
  return mine;
}

void check_sums(const std::string& directory, const std::vector<ListedFile>& files,
                const ChecksumShare& share) {
  const std::vector<bool> mine = dealt(files, share);
  for (std::size_t i = 0; i < mine.size(); ++i)
    if (mine[i])
      SHOAL_CHECK(to_hex(sha256_of_file(directory + "/" + files[i].name)) == files[i].sha256,
                  "{} does not match its checksum", shortened(files[i].name));
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
  // If output_dir is a file, the later creation of the directory reports that.
  if (!is_directory(output_dir)) return found;
  const auto is_named_so = [](std::string_view name) { return step_of(name).has_value(); };
  for (DirectoryEntry& entry : list_directory_if_there(output_dir, is_named_so))
    // An entry that is absent now was removed after the listing.
    if (entry.kind != FileKind::absent || entry.is_link)
      found.push_back({*step_of(entry.name), std::move(entry.path)});
  std::sort(found.begin(), found.end(), [](const CheckpointInfo& a, const CheckpointInfo& b) {
    return a.step != b.step ? a.step < b.step : a.path < b.path;
  });
  return found;
}

std::optional<std::string> checkpoint_problem(const std::string& path, bool checksums,
                                              const ChecksumShare& share) {
  const std::string marker = path + "/" + std::string(kCompleteMarker);
  const FileKind kind = file_kind(path);
  if (kind == FileKind::absent)
    if (const auto target = link_target(path))
      return fmt::format("it is a link to {}, which is not there", *target);
  if (kind != FileKind::directory) return "it is not a directory";
  if (is_transformers_checkpoint(path)) return why_not_resumed(path);
  if (!path_exists(marker))
    return fmt::format("it has no {} marker: writing it was interrupted", kCompleteMarker);
  try {
    const Marker content = read_marker(marker);
    for (const ListedFile& file : content.files) check_size(path, file);
    if (checksums) check_sums(path, content.files, share);
    check_step(path, content, checksums);
  } catch (const Error& problem) {
    if (!says_damaged(problem.code())) throw;
    return problem.what();
  }
  return std::nullopt;
}

Error none_is_whole(const std::string& output_dir, const std::vector<DamagedCheckpoint>& damaged,
                    std::string remedy) {
  std::string each;
  for (const DamagedCheckpoint& one : damaged)
    each += fmt::format("{}{}: {}", each.empty() ? "" : "; ",
                        fs::path(one.path).filename().string(), one.reason);
  return {ErrorCode::corrupt_data,
          fmt::format("{} has checkpoints and none is whole ({})", output_dir, each),
          std::move(remedy)};
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
  auto all = list_checkpoints(output_dir);
  std::erase_if(all, [](const CheckpointInfo& info) { return !is_directory(info.path); });
  auto excess = static_cast<std::int64_t>(all.size()) - std::max<std::int64_t>(limit, 1);
  for (const auto& info : all) {
    if (excess <= 0) break;
    const bool kept = std::any_of(keep.begin(), keep.end(), [&](const std::string& path) {
      return fs::path(path).filename() == fs::path(info.path).filename();
    });
    if (kept || &info == &all.back()) continue;
    // The marker is removed first, so that an interrupted removal leaves an invalid checkpoint. A
    // failed removal only costs disk space and does not end the run.
    best_effort("remove an old checkpoint", [&] {
      remove_file(info.path + "/" + std::string(kCompleteMarker));
      remove_tree(info.path);
      removed.push_back(info.path);
    });
    --excess;
  }
  return removed;
}

namespace {

std::vector<std::string> names_of_unfinished(const std::string& output_dir) {
  return names_in_if_there(
      output_dir, [](std::string_view name) { return name.starts_with(kTemporaryPrefix); });
}

}  // namespace

void remove_unfinished_checkpoints(const std::string& output_dir) {
  for (const std::string& name : names_of_unfinished(output_dir))
    best_effort("remove an unfinished checkpoint", [&] { remove_tree(output_dir + "/" + name); });
}

void restore_replaced_checkpoints(const std::string& output_dir) {
  for (const std::string& name : names_of_unfinished(output_dir)) {
    if (!name.ends_with(kReplaced)) continue;
    const std::string rest = name.substr(std::string_view("tmp-").size());  // checkpoint-N.RANK...
    const auto step = step_of(std::string_view(rest).substr(0, rest.find('.')));
    const std::string aside = output_dir + "/" + name;
    if (!step || checkpoint_problem(aside, false)) continue;
    const std::string path = checkpoint_path(output_dir, *step);
    if (!checkpoint_problem(path, false)) continue;  // the newer one is complete
    remove_tree(path);
    rename_and_sync(aside, path);
  }
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
  remove_tree(temporary_);
  make_directories(temporary_, fmt::format("choose another {} or its permissions", what));
}

CheckpointTransaction::~CheckpointTransaction() {
  if (!committed_)
    best_effort("remove an unfinished checkpoint", [this] { remove_tree(temporary_); });
}

std::string CheckpointTransaction::commit(std::span<const SealedFile> sealed,
                                          std::span<const SealedFile> elsewhere) {
  nlohmann::ordered_json marker;
  marker["format"] = kFormat;
  marker["step"] = step_;
  marker["files"] = nlohmann::ordered_json::array();
  const std::vector<std::string> names = files_below(temporary_);
  for (const SealedFile& file : sealed)
    if (!std::ranges::binary_search(names, file.name))
      throw_error(ErrorCode::corrupt_data, "{}/{}, which its rank has written, is not there",
                  temporary_, file.name);
  for (const std::string& name : names) {
    const auto known = std::ranges::find(sealed, name, &SealedFile::name);
    const SealedFile file = known != sealed.end() ? *known : seal_file(temporary_, name);
    const std::int64_t bytes = file_bytes(temporary_ + "/" + name).value_or(0);
    if (bytes != file.bytes)
      throw_error(ErrorCode::corrupt_data, "{}/{} has {} bytes, and {} for the rank that wrote it",
                  temporary_, name, bytes, file.bytes);
    marker["files"].push_back({{"name", name}, {"bytes", bytes}, {"sha256", to_hex(file.sha256)}});
  }
  for (const SealedFile& file : elsewhere)
    marker["files"].push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"sha256", to_hex(file.sha256)}});
  write_file_atomically(temporary_ + "/" + std::string(kCompleteMarker), marker.dump(1) + "\n");
  remove_replaced(take_place());
  return final_;
}

std::string CheckpointTransaction::commit_part() {
  remove_replaced(take_place());
  return final_;
}

// A directory of this step may exist: an incomplete one, or one of a run that is being repeated. It
// is moved aside first, so that the final name never holds a mixture.
std::string CheckpointTransaction::take_place() {
  sync_directory(temporary_);
  std::string replaced = temporary_ + std::string(kReplaced);
  const bool replaces = path_exists(final_) || link_target(final_);
  if (replaces) {
    remove_tree(replaced);
    rename_and_sync(final_, replaced);
  }
  try {
    rename_and_sync(temporary_, final_);
  } catch (...) {
    if (replaces)
      best_effort("put the older checkpoint back", [&] { rename_path(replaced, final_); });
    throw;
  }
  committed_ = true;
  return replaced;
}

}  // namespace shoal
