// Reads samples.jsonl: the texts that a run generated while it trained.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shoal::report {

inline constexpr const char* kSamplesFile = "samples.jsonl";
//   {"step": 100, "index": 0, "prompt": "...", "reference": "...", "text": "..."}; "source" instead
//   of "prompt" if the text is a summary or a translation.

// Long texts are cut, and line ends shown as a sign, so that a page stays small.
struct SampledText {
  double step = 0;
  std::string text;
};
struct SampledPrompt {
  double index = 0;
  bool is_source = false;
  std::string prompt = {}, reference = {};  // an empty reference: none
  std::vector<SampledText> texts = {};      // by step, ascending
};

// In the order of the file. Of more than kMostPrompts, the first ones; of many steps, the first,
// the last and steps at similar distances. A line replaces those before it of the same and later
// steps, which a resumed run wrote again. Ignores damaged lines.
inline constexpr std::size_t kMostPrompts = 20;
std::vector<SampledPrompt> parse_samples(std::string_view lines);

}  // namespace shoal::report
