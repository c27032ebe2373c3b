#ifndef SHOAL_FUZZ
#define SHOAL_TEST_COUNTS_MEMORY
#endif
#include "fuzz/frame.h"

#include <algorithm>
#include <charconv>
#include <exception>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <typeinfo>

#include "support/source_tree.h"
#include "support/use.h"
#include <fmt/format.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/scratch_directory.h"

namespace shoal::fuzz {
namespace {

// Not a std::exception, so that no parser's handler takes it.
struct Broken {
  std::string what;
};

// Longest text of an Error, however long the input's names and values are. Options and job files
// have a line a problem.
constexpr std::size_t kMostText = 64'000, kMostLine = 2'000;

std::string problem_with(const Error& error, bool lists_problems) {
  const std::string_view text = error.what();
  if (error.code() == ErrorCode::internal) return fmt::format("a bug shows itself: {}", text);
  if (text.empty()) return "an Error without a text";
  // what() makes several characters of one that cannot be shown.
  const std::string raw = error.message() + error.remedy();
  if (raw.size() > kMostText) return fmt::format("an Error of {} bytes", raw.size());
  std::size_t line = 0;
  for (const char c : raw) {
    line = c == '\n' ? 0 : line + 1;
    if (line > kMostLine) return fmt::format("an Error with a line of over {} bytes", kMostLine);
  }
  for (const char c : text) {
    if (c == '\n' && !lists_problems) return fmt::format("an Error of two lines: {}", text);
    if (static_cast<unsigned char>(c) < ' ' && c != '\n' && c != '\t')
      return fmt::format("an Error with the control character {:#x}: {}", c, text);
  }
  return {};
}

std::string problem_of(const Target& target, std::string_view bytes) {
  try {
    Input input(bytes);
    target.run(input);
  } catch (const Broken& broken) {
    return broken.what;
  } catch (const Error& error) {
    return problem_with(error, target.lists_problems);
  } catch (const std::exception& other) {
    return fmt::format("{} in place of an Error: {}", typeid(other).name(), other.what());
  }
  return {};
}

char unescaped(std::string_view line, std::size_t& at) {
  if (line[at] != '\\') return line[at++];
  const char kind = at + 1 < line.size() ? line[at + 1] : '\0';
  at += 2;
  if (kind == 'n') return '\n';
  if (kind == 'r') return '\r';
  if (kind == 't') return '\t';
  if (kind == '\\') return '\\';
  unsigned char byte = 0;
  const char* const digits = line.data() + std::min(at, line.size());
  const char* const end = line.data() + std::min(at + 2, line.size());
  if (kind != 'x' || end - digits != 2 || std::from_chars(digits, end, byte, 16).ptr != end)
    throw std::runtime_error("a wrong escape in the corpus: " + std::string(line));
  at += 2;
  return static_cast<char>(byte);
}

}  // namespace

Input::~Input() {
  for (const std::string& path : files_) {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
}

int Input::choice(int choices) {
  if (rest_.empty()) return 0;
  const auto given = static_cast<unsigned char>(rest_.front() - '0');
  rest_.remove_prefix(1);
  return given % choices;
}

std::string_view Input::part() {
  constexpr std::string_view kBetween = "\n%%\n";
  const std::size_t end = std::min(rest_.find(kBetween), rest_.size());
  const std::string_view taken = rest_.substr(0, end);
  rest_.remove_prefix(std::min(end + kBetween.size(), rest_.size()));
  return taken;
}

const std::string& Input::folder() {
  static const ScratchDirectory folder(temporary_directory(), "fuzz");
  return folder.path();
}

std::string Input::file(const std::string& name, std::string_view bytes) {
  std::string path = folder() + "/" + name;
  if (const std::size_t top = name.find('/'); top != name.npos) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    files_.push_back(folder() + "/" + name.substr(0, top));
  } else {
    files_.push_back(path);
  }
  // An Error of a missing file would look like a refusal.
  expect((std::ofstream(path, std::ios::binary) << bytes).flush().good(),
         "an input's file is written");
  return path;
}

void Input::optional_file(const std::string& name) {
  if (!rest_.empty()) file(name, part());
}

std::vector<Target>& targets() {
  static std::vector<Target> all;
  return all;
}

void expect(bool holds, std::string_view what) {
  if (!holds) throw Broken{"not so: " + std::string(what)};
}

std::string finding(const Target& target, std::string_view bytes) {
  const testing::Use allowed = testing::allowed_use(bytes.size());
  std::string problem;
  const testing::Use use =
      testing::measured_use(allowed, [&] { problem = problem_of(target, bytes); });
  if (!problem.empty()) return problem;
  if (use.seconds > allowed.seconds)
    return fmt::format("{} bytes of input took {:.3f} s of CPU time; {:.3f} s are allowed",
                       bytes.size(), use.seconds, allowed.seconds);
  if (use.bytes > allowed.bytes)
    return fmt::format("{} bytes of input took {} bytes of memory; {} are allowed", bytes.size(),
                       use.bytes, allowed.bytes);
  return {};
}

std::vector<std::string> corpus(std::string_view target) {
  std::ifstream file(testing::source_path(fmt::format("tests/fuzz/corpus/{}.txt", target)));
  std::vector<std::string> inputs;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.front() == '#') continue;
    std::string& bytes = inputs.emplace_back();
    for (std::size_t at = 0; at < line.size();) bytes += unescaped(line, at);
  }
  return inputs;
}

}  // namespace shoal::fuzz
