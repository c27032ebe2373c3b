// Every call that `shoal` makes for its files fails once, or is the process's last (nth_call.cc).
// A test draws some of these points. SHOAL_TEST_FULL runs all of them, which takes an hour.
//
// After each point, the program has either ended with a reason, or done what it does without a
// fault. The same command without a fault then ends well and leaves the same files.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "apps/shoal_fixture.h"
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace shoal {
namespace {

namespace fs = std::filesystem;

bool is_full() { return std::getenv("SHOAL_TEST_FULL") != nullptr; }

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> training_words(const std::string& output_dir) {
  std::vector<std::string> words;
  std::istringstream text(
      "train --model_type gpt2 --config_overrides n_layer=1,n_head=2,n_embd=16,n_positions=32 "
      "--tokenizer_name {}/tok --train_file {}/train.txt --validation_file {}/validation.txt "
      "--block_size 16 --max_steps 4 --logging_steps 1 --save_steps 1 --save_total_limit 2 "
      "--per_device_train_batch_size 2 --resume_from_checkpoint true --output_dir " +
      output_dir);
  for (std::string word; text >> word;) words.push_back(word);
  return words;
}

std::vector<std::string> adapter_words() {
  return {"train",
          "--model_name_or_path",
          "{}/run",
          "--train_file",
          "{}/validation.txt",
          "--block_size",
          "16",
          "--lora_r",
          "2",
          "--max_steps",
          "1",
          "--output_dir",
          "{}/adapter"};
}

struct Command {
  std::string name;
  std::vector<std::string> words;  // "{}" stands for the folder
  std::vector<std::string> makes;  // files and directories in the folder that must come out equal
};

struct Fault {
  std::string effect;
  int variant = 0;

  std::string name() const { return effect == "error" ? fmt::format("error{}", variant) : effect; }
};

void PrintTo(const Command& command, std::ostream* out) { *out << command.name; }
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name(); }

struct Point {
  std::int64_t nth = 0;
  Fault fault;
};

// What a program with a fault did.
struct Outcome {
  ProgramResult result;
  std::string fault;  // "write 28 -": the call, its errno and its path; empty: it was not reached
  std::int64_t calls = 0;
};

class FaultLoops : public Shoal, public ::testing::WithParamInterface<std::tuple<Command, Fault>> {
 protected:
  static void SetUpTestSuite() {
    Shoal::SetUpTestSuite();
    for (const auto& words : {training_words("{}/run"), adapter_words()}) {
      const auto trained = shoal(in(data_->path(), words));
      ASSERT_EQ(trained.status, 0) << trained.err;
    }
  }
  // The words of a command, with the folder in place of "{}".
  static std::vector<std::string> in(const std::string& folder, std::vector<std::string> words) {
    for (std::string& word : words)
      if (const auto at = word.find("{}"); at != std::string::npos) word.replace(at, 2, folder);
    return words;
  }
  const Command& command() const { return std::get<0>(GetParam()); }
  std::string folder() const { return mine_ / "folder"; }

  // The folder before the command.
  void prepare() const {
    fs::remove_all(folder());
    fs::create_directories(folder() + "/tmp");
    fs::copy(data_->path(), folder(), fs::copy_options::recursive);
    // The adapter names its base model by the path.
    const std::string file = folder() + "/adapter/adapter_config.json";
    nlohmann::json adapter = nlohmann::json::parse(text_of(file));
    adapter["base_model_name_or_path"] = folder() + "/run";
    std::ofstream(file) << adapter;
  }
  Outcome run(const Point& point) const {
    const std::string log = mine_ / "log";
    fs::remove(log);
    ProgramOptions options;
    options.environment = {fmt::format("LD_PRELOAD={}", SHOAL_NTH_CALL_LIBRARY),
                           fmt::format("NTH_CALL_ROOT={}", folder()),
                           fmt::format("NTH_CALL={}", point.nth),
                           fmt::format("NTH_CALL_EFFECT={}", point.fault.effect),
                           fmt::format("NTH_CALL_VARIANT={}", point.fault.variant),
                           fmt::format("NTH_CALL_LOG={}", log),
                           fmt::format("TMPDIR={}/tmp", folder())};
    Outcome outcome;
    outcome.result = shoal(in(folder(), command().words), options);
    std::ifstream lines(log);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("calls "))
        outcome.calls = std::stoll(line.substr(6));
      else if (outcome.fault.empty())
        outcome.fault = line;
    }
    return outcome;
  }
  // The content of what the command makes, by path. A killed program may leave a file
  // "NAME.tmp-...".
  std::map<std::string, std::string> made() const {
    std::map<std::string, std::string> files;
    for (const std::string& name : command().makes) {
      const std::string path = folder() + "/" + name;
      if (fs::is_directory(path))
        for (const auto& entry : fs::recursive_directory_iterator(path)) {
          if (entry.is_regular_file() && entry.path().native().find(".tmp-") == std::string::npos)
            files[entry.path().string()] = text_of(entry.path());
        }
      else if (fs::exists(path))
        files[path] = text_of(path);
    }
    return files;
  }
  // The newest checkpoint that says it is whole; 0: none.
  std::int64_t newest_whole() const {
    std::int64_t newest = 0;
    if (!fs::is_directory(folder() + "/out")) return 0;
    for (const auto& entry : fs::directory_iterator(folder() + "/out")) {
      const std::string name = entry.path().filename();
      if (name.starts_with("checkpoint-") && fs::exists(entry.path() / "COMPLETE"))
        newest = std::max<std::int64_t>(newest, std::atoll(name.c_str() + 11));
    }
    return newest;
  }
  // What is wrong after a point; empty: nothing.
  std::string problem(const Point& point, const std::map<std::string, std::string>& expected) const;
};

// A reason names the file, or says what the operating system said, or that memory is short.
bool has_reason(const ProgramResult& result, const std::string& fault, const std::string& folder) {
  std::istringstream words(fault);
  std::string call, path;
  int error = 0;
  words >> call >> error >> path;
  return result.err.find(std::strerror(error)) != std::string::npos ||
         result.err.find(folder) != std::string::npos ||
         result.err.find("memory") != std::string::npos;
}

std::string difference(const std::map<std::string, std::string>& a,
                       const std::map<std::string, std::string>& b) {
  std::vector<std::string> names;
  for (const auto* side : {&a, &b})
    for (const auto& [name, text] : *side) {
      const auto other = (side == &a ? b : a).find(name);
      if (other == (side == &a ? b : a).end() || other->second != text) names.push_back(name);
    }
  return fmt::format("{}", fmt::join(names, ", "));
}

bool has_all(const std::map<std::string, std::string>& files,
             const std::map<std::string, std::string>& expected) {
  return std::ranges::all_of(expected, [&](const auto& one) {
    const auto found = files.find(one.first);
    return found != files.end() && found->second == one.second;
  });
}

std::string FaultLoops::problem(const Point& point,
                                const std::map<std::string, std::string>& expected) const {
  prepare();
  const Outcome with = run(point);
  const ProgramResult& result = with.result;
  const std::string at =
      fmt::format("call {} ({}), {}: ", point.nth, with.fault, point.fault.name());
  const bool killed = point.fault.effect == "kill" && !with.fault.empty();
  if (killed ? result.signal != SIGKILL : result.signal != 0)
    return at + fmt::format("signal {}: {}", result.signal, result.err);
  if (!killed && result.status != 0 && !has_reason(result, with.fault, folder()))
    return at + fmt::format("status {} without a reason: '{}'", result.status, result.err);
  if (!killed && result.status == 0) {
    const auto there = made();
    if (there == expected) return {};
    if (!has_all(there, expected) ||
        result.err.find(difference(there, expected)) == std::string::npos)
      return at + fmt::format("status 0, but other files: '{}'", result.err);
    // It has said which file it could not remove. The next run removes it.
  }
  const std::int64_t whole = command().name == "train" ? newest_whole() : 0;
  const bool is_done = made() == expected;
  const Outcome again = run({0, {"error", 0}});
  // The fault came after the last file had its name, and the command overwrites nothing.
  if (is_done &&
      again.result.err.find("exists already; nothing is overwritten") != std::string::npos)
    return made() == expected ? "" : at + "the next run refuses, and yet changes files";
  if (again.result.status != 0)
    return at + fmt::format("the next run fails: '{}'\nafter '{}'", again.result.err, result.err);
  if (whole > 0 && again.result.out.find(fmt::format("at step {}", whole)) == std::string::npos)
    return at +
           fmt::format("the next run does not continue at step {}:\n{}", whole, again.result.out);
  if (const auto left = made(); left != expected)
    return at + fmt::format("the next run leaves other files: {}", difference(left, expected));
  return {};
}

TEST_P(FaultLoops, LeaveAReasonAndNothingHalfDone) {
  const Fault& fault = std::get<1>(GetParam());
  prepare();
  const Outcome reference = run({0, fault});
  ASSERT_EQ(reference.result.status, 0) << reference.result.err;
  ASSERT_GT(reference.calls, 0) << "the library that counts calls was not loaded";
  const auto expected = made();
  ASSERT_FALSE(expected.empty());

  constexpr std::int64_t kPointsOfASample = 2;
  const std::int64_t most = is_full() ? reference.calls : kPointsOfASample;
  const std::int64_t points = std::min(most, reference.calls);
  std::vector<std::string> problems;
  for (std::int64_t i = 0; i < points; ++i) {
    // The middle of the i-th of equal parts.
    const std::int64_t nth = 1 + (2 * i + 1) * reference.calls / (2 * points);
    const std::string wrong = problem({std::min(nth, reference.calls), fault}, expected);
    if (!wrong.empty()) problems.push_back(wrong);
  }
  RecordProperty("points", static_cast<int>(points));
  EXPECT_TRUE(problems.empty()) << problems.size() << " of " << points << " points:\n"
                                << fmt::format("{}", fmt::join(problems, "\n"));
}

std::vector<Command> commands() {
  return {{"train",
           training_words("{}/out"),
           {"out/model.safetensors", "out/config.json", "out/checkpoint-4/COMPLETE"}},
          {"tokenizer",
           {"tokenizer", "train", "--vocab-size", "280", "--threads", "1", "-o", "{}/new",
            "{}/validation.txt"},
           {"new"}},
          {"prepare",
           {"data", "prepare", "-t", "{}/tok", "-o", "{}/tokens", "--threads", "1",
            "{}/validation.txt"},
           {"tokens"}},
          {"convert",
           {"checkpoint", "convert", "{}/run", "{}/converted", "--weights-only"},
           {"converted"}},
          {"merge", {"checkpoint", "convert", "{}/adapter", "{}/merged", "--merge"}, {"merged"}},
          {"report", {"report", "{}/run", "--output", "{}/page.html"}, {"page.html"}},
          {"evaluate", {"evaluate", "-m", "{}/run", "{}/validation.txt"}, {"run"}}};
}

std::vector<Fault> faults() {
  return {{"error", 0}, {"error", 1}, {"error", 2}, {"kill", 0}, {"full", 0}, {"memory", 0}};
}

INSTANTIATE_TEST_SUITE_P(Commands, FaultLoops,
                         ::testing::Combine(::testing::ValuesIn(commands()),
                                            ::testing::ValuesIn(faults())),
                         [](const auto& test) {
                           return std::get<0>(test.param).name + "_" +
                                  std::get<1>(test.param).name();
                         });

}  // namespace
}  // namespace shoal
