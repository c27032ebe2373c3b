#include "job_output.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <span>
#include <vector>

#include "aws.h"
#include <fmt/format.h>
#include <sys/wait.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/runtime/io/scratch_directory.h"
#include "shoal/sagemaker/rest/s3_source.h"
#include "shoal/sagemaker/rest/training_jobs.h"

namespace shoal::app {
namespace {

constexpr std::array kRecords = {"metrics.jsonl", "trainer_state.json"};
constexpr std::array kOthers = {"run_settings.json", "all_results.json", "samples.jsonl"};
constexpr int kNotStarted = 127;  // the shell's status for a missing program

std::string quoted(const std::string& path) {
  std::string text = "'";
  for (const char c : path) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

// Extracts the JSON files of an archive. An archive that has none, or that is damaged, leaves
// nothing.
void extract(const ByteSource& archive, const std::string& into) {
  const std::string command =
      "TAR_OPTIONS= exec tar --extract --gzip --file=- --no-same-owner --no-same-permissions "
      "--wildcards --directory=" +
      quoted(into) + " '*.json' '*.jsonl' 2>/dev/null";
  std::FILE* const pipe = ::popen(command.c_str(), "we");
  SHOAL_CHECK(pipe != nullptr, "cannot start tar");
  std::vector<std::byte> block(std::size_t{8} << 20U);
  try {
    for (std::int64_t at = 0; at < archive.size();) {
      const auto bytes = std::min<std::int64_t>(std::ssize(block), archive.size() - at);
      const auto part = std::span(block).first(static_cast<std::size_t>(bytes));
      archive.read(at, part);
      if (::fwrite(part.data(), 1, part.size(), pipe) < part.size()) break;  // tar has ended
      at += bytes;
    }
  } catch (...) {
    static_cast<void>(::pclose(pipe));
    throw;
  }
  const int status = ::pclose(pipe);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotStarted)
    throw Error(ErrorCode::unavailable, "cannot start tar, which unpacks a job's output",
                "install tar and gzip");
}

// Moves the files of the run that is nearest to the archive's top. False: it holds no run.
bool take_run(const ByteSource& archive, const std::string& directory) {
  const ScratchDirectory scratch(directory, "unpack");
  extract(archive, scratch.path());
  std::string best;
  for (const DirectoryEntry& entry : list_tree(scratch.path())) {
    const auto slash = entry.path.rfind('/');
    const bool is_records =
        std::ranges::find(kRecords, entry.path.substr(slash + 1)) != kRecords.end();
    if (!is_records || entry.is_link || entry.kind != FileKind::regular) continue;
    const std::string folder = entry.path.substr(0, slash);
    if (best.empty() || std::ranges::count(folder, '/') < std::ranges::count(best, '/'))
      best = folder;
  }
  if (best.empty()) return false;
  for (const DirectoryEntry& entry : list_directory(best))
    if (entry.kind == FileKind::regular && !entry.is_link &&
        (std::ranges::find(kRecords, entry.name) != kRecords.end() ||
         std::ranges::find(kOthers, entry.name) != kOthers.end()))
      rename_path(entry.path, directory + "/" + entry.name);
  return true;
}

// Copies the files below an s3:// prefix. False: it holds no run.
bool copy_run(const sagemaker::S3Reader& reader, std::string prefix, const std::string& directory) {
  if (!prefix.ends_with('/')) prefix += '/';
  const auto copy = [&](const char* name) {
    try {
      write_file(directory + "/" + name, read_all(*reader.open(prefix + name)));
      return true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::not_found) throw;
      return false;
    }
  };
  if (std::ranges::none_of(kRecords, copy)) return false;
  for (const char* name : kOthers) copy(name);
  return true;
}

// False: there is no such archive, or it holds no run.
bool take_archive(const sagemaker::S3Reader& reader, const std::string& uri,
                  const std::string& directory) {
  try {
    return take_run(*reader.open(uri), directory);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found) throw;
    return false;
  }
}

}  // namespace

void fetch_job_run(const AwsWords& words, const std::string& job, const std::string& directory) {
  const sagemaker::Session session = session_of(words);
  const sagemaker::DescribedJob described =
      sagemaker::TrainingJobs(session.client(sagemaker::Service::sagemaker))
          .describe(job_name_in(job));
  const sagemaker::S3Reader reader(session.s3());
  make_directories(directory);
  std::string place = described.model_artifacts;
  if (place.ends_with(".tar.gz")) {
    // A script's own output, /opt/ml/output/data, is in an archive beside the model's.
    const std::string beside = place.substr(0, place.rfind('/')) + "/output.tar.gz";
    if (take_archive(reader, place, directory) || take_archive(reader, beside, directory)) return;
  } else {
    if (place.empty())
      if (const auto* checkpoints = find_field(described.answer, "CheckpointConfig"))
        place = field_or(*checkpoints, "S3Uri", std::string(), "CheckpointConfig");
    if (!place.empty() && copy_run(reader, place, directory)) return;
  }
  throw Error(ErrorCode::not_found,
              fmt::format("the job {} ({}) has left no metrics.jsonl{}", described.name,
                          described.status, place.empty() ? "" : " in " + place),
              described.has_ended()
                  ? "a run of `shoal train` or of Hugging Face's Trainer leaves it"
                  : "wait for its end, or give it checkpoint_s3_uri");
}

}  // namespace shoal::app
