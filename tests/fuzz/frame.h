// Fuzz targets. Each gives one input, text or bytes that another program could have written, to one
// parser. Two programs run them: libfuzzer.cc searches for inputs (./dev fuzz), and corpus_test.cc
// replays the kept ones in every test run (docs/internals/fuzzing.md).
//
//   FUZZ(base64, "runtime/io/base64.cc") {
//     const std::string text(input.rest());
//     expect(from_base64(to_base64(text)) == text, "a round trip");
//   }
//
// A target may throw Error: the parser refuses the input. Every other exception is a finding, as
// are an Error that says "internal" or is not readable, and more time or memory than support/use.h
// allows.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::fuzz {

class Input {
 public:
  explicit Input(std::string_view bytes) : rest_(bytes) {}
  ~Input();
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  // Takes one character: '0' gives 0, '1' gives 1 and so on, modulo `choices`. 0 without one.
  int choice(int choices);
  // Takes the text up to the next line "%%", which separates parts; without one, all that is left.
  std::string_view part();
  std::string_view rest() const { return rest_; }  // all that is left

  // A file of this input, removed with it. `name` may have folders. Returns the path.
  std::string file(const std::string& name, std::string_view bytes);
  // The same for the next part; there is no file if nothing is left.
  void optional_file(const std::string& name);
  // The directory of these files.
  static const std::string& folder();

 private:
  std::string_view rest_;
  std::vector<std::string> files_;
};

struct Target {
  std::string_view name;
  std::string_view sources;  // the parser's files, separated by spaces, for coverage
  void (*run)(Input& input);
  bool lists_problems = false;  // its Errors may have several lines, one a problem
};
std::vector<Target>& targets();

struct Registered {
  explicit Registered(const Target& target) { targets().push_back(target); }
};
#define FUZZ(target, files, ...)                                               \
  static void fuzz_##target(::shoal::fuzz::Input& input);                      \
  static const ::shoal::fuzz::Registered registered_##target(                  \
      {.name = #target, .sources = files, .run = fuzz_##target, __VA_ARGS__}); \
  static void fuzz_##target([[maybe_unused]] ::shoal::fuzz::Input& input)

// Makes `what` the finding unless `holds`.
void expect(bool holds, std::string_view what);

// What is wrong with the target on these bytes; empty: nothing.
std::string finding(const Target& target, std::string_view bytes);

// The inputs of tests/fuzz/corpus/TARGET.txt: one a line, blank lines and comments (#) skipped.
// Bytes that are not printable ASCII, and '\', are written as \n, \r, \t, \\ or \xNN.
std::vector<std::string> corpus(std::string_view target);

}  // namespace shoal::fuzz
