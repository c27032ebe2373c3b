#include "shoal/sagemaker/container/outputs.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <map>
#include <utility>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/files.h"

namespace shoal::sagemaker {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostCharacters = 1024;
// Lock file of train/checkpoint, left behind by a killed run.
constexpr std::string_view kRunLock = "run.lock";

struct Line {
  std::string rank;  // as --tag-output marks it: "1,3"; empty without a mark
  std::string text;  // without the mark and trailing spaces
};

// If `text` begins with a mark of --tag-output, such as "[1,3]<stderr>:", returns its rank ("1,3");
// otherwise an empty text.
std::string_view rank_of_mark(std::string_view text) {
  const auto end = text.find_first_not_of("0123456789,", 1);
  if (!text.starts_with('[') || end == text.npos || end == 1) return {};
  const std::string_view rest = text.substr(end);
  return rest.starts_with("]<stderr>:") || rest.starts_with("]<stdout>:") ? text.substr(1, end - 1)
                                                                          : std::string_view();
}

// The lines with content, without the dashed lines that mpirun prints around its messages. mpirun
// marks each piece that a rank writes, so a line may come in pieces, with another rank's between
// them.
std::vector<Line> lines_of(std::string_view error) {
  std::vector<Line> all;
  std::map<std::string, std::string> begun;  // for each rank, its line so far
  const auto finish = [&](const std::string& rank) {
    std::string text = std::exchange(begun[rank], {});
    while (!text.empty() && (text.back() == '\r' || text.back() == ' ')) text.pop_back();
    text.erase(0, text.rfind('\r') + 1);  // a progress bar writes over its line
    if (text.empty() || text.starts_with("-----")) return;
    all.push_back({rank, text.substr(0, 10000)});
  };
  std::string rank;
  while (!error.empty()) {
    if (const std::string_view marked = rank_of_mark(error); !marked.empty()) {
      rank = marked;
      error.remove_prefix(marked.size() + std::string_view("[]<stderr>:").size());
    } else if (error.front() == '\n') {
      finish(rank);
      rank.clear();
      error.remove_prefix(1);
    } else {
      const auto size = std::min(error.size(), error.find_first_of("[\n", 1));
      begun[rank] += error.substr(0, size);
      error.remove_prefix(size);
    }
  }
  for (const auto& one : std::map(begun)) finish(one.first);
  return all;
}

std::string memory_hint(int status) {
  if (status != 128 + SIGKILL) return {};
  return "; killed, probably for memory: use a smaller per_device_train_batch_size, "
         "gradient_checkpointing, or a larger instance";
}

constexpr std::string_view kOwnMark = "train: ";

// On the same line, a progress bar may precede this text.
constexpr std::string_view kTraceback = "Traceback (most recent call last):";

// PyTorch writes "[rank1]: " before the lines of a traceback.
std::string without_torchs_mark(const std::string& text) {
  const auto end = text.find("]: ");
  return text.starts_with("[rank") && end != text.npos ? text.substr(end + 3) : text;
}

// The mark of the rank that mpirun says failed first ("Process name: [[37204,1],3]"), otherwise of
// the first one whose last traceback begins; empty if no line has a mark.
std::string failed_rank(const std::vector<Line>& lines) {
  constexpr std::string_view kName = "Process name: [[";
  std::vector<std::pair<std::string, std::size_t>> last;  // rank, where its last traceback begins
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string& text = lines[i].text;
    if (const auto name = text.find(kName); name != text.npos && lines[i].rank.empty()) {
      const auto job = text.find(',', name), rank = text.find("],", name);
      if (job < rank && rank != text.npos)
        return fmt::format("{},{}", text.substr(job + 1, rank - job - 1),
                           text.substr(rank + 2, text.find(']', rank + 2) - rank - 2));
    }
    if (!text.ends_with(kTraceback)) continue;
    const auto seen =
        std::ranges::find(last, lines[i].rank, [](const auto& one) { return one.first; });
    if (seen == last.end())
      last.emplace_back(lines[i].rank, i);
    else
      seen->second = i;
  }
  const auto first = std::ranges::min_element(last, {}, [](const auto& one) { return one.second; });
  return first == last.end() ? std::string() : first->first;
}

// The exception, preceded by as many of the traceback's last frames as fit into `most` bytes.
// `begin`: the first frame.
std::string end_of_traceback(const std::vector<std::string>& texts, std::size_t begin,
                             std::size_t most) {
  std::size_t exception = begin;
  while (exception < texts.size() && texts[exception].starts_with(' ')) ++exception;
  std::string text;
  for (std::size_t i = exception; i < texts.size(); ++i) {
    if (i > exception && text.size() + texts[i].size() >= most) break;
    text += (i > exception ? "\n" : "") + texts[i];
  }
  std::string frames, frame;
  for (std::size_t i = exception; i-- > begin;) {
    const std::string& line = texts[i];
    if (line.find_first_not_of(" ^~") == line.npos) continue;  // only marks a part of a code line
    frame.insert(0, "\n" + line);
    if (text.size() + frame.size() + frames.size() > most) break;
    if (!line.starts_with("  File ")) continue;
    frames.insert(0, frame);
    frame.clear();
  }
  return text + frames;
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
  for (const Line& line : lines_of(error)) {
    last = line.text;
    if (!line.rank.empty() && last.starts_with(' ')) last.erase(0, 1);
    if (last.find(": Permission denied (") != std::string::npos) denied = last;
    if (last.starts_with("shoal ") || last.starts_with("shoal:")) ours = last;
  }
  std::string reason = !ours.empty()     ? ours
                       : !denied.empty() ? "ssh: " + denied
                       : !last.empty()   ? last
                                         : "shoal train said nothing";
  reason += fmt::format(" (exit status {})", status);
  if (ours.empty()) reason += memory_hint(status);
  return reason;
}

std::string reason_of_script(const std::string& script, std::string_view error, int status) {
  const std::vector<Line> lines = lines_of(error);
  const std::string rank = failed_rank(lines);
  std::vector<std::string> texts;  // that rank's lines
  std::size_t begin = 0;           // index of the line after the last traceback's head; 0: none
  std::string ours;                // what `train rank` wrote
  for (const Line& line : lines) {
    if (line.rank != rank) continue;
    texts.push_back(without_torchs_mark(line.text));
    if (texts.back().ends_with(kTraceback)) begin = texts.size();
    if (line.text.starts_with(kOwnMark)) ours = line.text.substr(kOwnMark.size());
  }
  std::string head = script;
  if (const auto comma = rank.find(','); comma != rank.npos)
    head += fmt::format(", rank {}", rank.substr(comma + 1));
  head += fmt::format(" (exit status {}): ", status);
  if (begin > 0) return head + end_of_traceback(texts, begin, kMostCharacters - head.size());
  if (!ours.empty()) return head + ours + memory_hint(status);
  if (rank.empty() && !lines.empty()) return script + ": " + reason_of(error, status);
  return head + (texts.empty() ? "it said nothing" : texts.back()) + memory_hint(status);
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
