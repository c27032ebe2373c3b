#include "shoal/train/report/samples.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "shoal/runtime/io/json.h"

namespace shoal::report {
namespace {

constexpr std::size_t kMostBytes = 600;  // of a text
constexpr std::size_t kMostTexts = 128;  // of a prompt; at least 3

// At most kMostBytes, cut between characters.
std::string shown(const nlohmann::json& record, const char* name) {
  const auto field = record.find(name);
  if (field == record.end() || !field->is_string()) return {};
  const auto& whole = field->get_ref<const std::string&>();
  std::size_t end = std::min(whole.size(), kMostBytes);
  const auto continues = [](char byte) { return (static_cast<unsigned char>(byte) >> 6U) == 2U; };
  while (end > 0 && end < whole.size() && continues(whole[end])) --end;
  std::string text;
  for (const char c : std::string_view(whole).substr(0, end))
    if (c == '\n')
      text += "↵ ";
    else
      text += c;
  return end < whole.size() ? text + "…" : text;
}

void add(SampledPrompt& prompt, SampledText text) {
  std::vector<SampledText>& texts = prompt.texts;
  while (!texts.empty() && texts.back().step >= text.step) texts.pop_back();
  texts.push_back(std::move(text));
  if (texts.size() <= kMostTexts) return;
  std::size_t least = 1;  // the text whose neighbours are nearest to each other
  const auto gap = [&](std::size_t i) { return texts[i + 1].step - texts[i - 1].step; };
  for (std::size_t i = 2; i + 1 < texts.size(); ++i)
    if (gap(i) < gap(least)) least = i;
  texts.erase(texts.begin() + static_cast<std::ptrdiff_t>(least));
}

void take(const nlohmann::json& record, std::vector<SampledPrompt>& all) {
  const auto step = record.find("step"), index = record.find("index");
  if (step == record.end() || !step->is_number() || !record.contains("text")) return;
  const double place = index != record.end() && index->is_number() ? index->get<double>() : 0;
  const bool is_source = record.contains("source");
  std::string prompt = shown(record, is_source ? "source" : "prompt");
  auto found = std::ranges::find_if(all, [&](const SampledPrompt& one) {
    return one.index == place && one.is_source == is_source && one.prompt == prompt;
  });
  if (found == all.end()) {
    if (all.size() == kMostPrompts) return;
    all.push_back({.index = place, .is_source = is_source, .prompt = std::move(prompt)});
    found = all.end() - 1;
  }
  found->reference = shown(record, "reference");
  add(*found, {step->get<double>(), shown(record, "text")});
}

}  // namespace

std::vector<SampledPrompt> parse_samples(std::string_view lines) {
  std::vector<SampledPrompt> all;
  while (!lines.empty()) {
    const std::size_t end = std::min(lines.find('\n'), lines.size());
    const nlohmann::json record = json_if_valid(lines.substr(0, end)).value_or(nullptr);
    if (record.is_object()) take(record, all);
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
  return all;
}

}  // namespace shoal::report
