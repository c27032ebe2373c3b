// The section on texts that runs generated while they trained.
#include <algorithm>
#include <cmath>
#include <set>

#include "shoal/runtime/base/shortened.h"
#include "shoal/train/report/samples.h"
#include "shoal/train/report/sections_common.h"

namespace shoal::report {
namespace {

constexpr std::size_t kPromptsShown = 8, kPromptsCompared = 4, kTextsShown = 8;
constexpr std::size_t kTitleBytes = 90;

std::string said(const std::string& text) { return text.empty() ? "<i>nothing</i>" : escape(text); }

// All texts if they are few. Else the first and the last, and those nearest to equal distances of
// steps.
std::set<std::size_t> chosen(const std::vector<SampledText>& texts) {
  std::set<std::size_t> rows;
  for (std::size_t i = 0; i < texts.size() && texts.size() <= kTextsShown; ++i) rows.insert(i);
  if (!rows.empty()) return rows;
  const double first = texts.front().step, last = texts.back().step;
  for (std::size_t i = 0; i < kTextsShown; ++i) {
    const double wanted =
        first + (last - first) * static_cast<double>(i) / static_cast<double>(kTextsShown - 1);
    const auto nearest = std::ranges::min_element(
        texts, {}, [&](const SampledText& text) { return std::abs(text.step - wanted); });
    rows.insert(static_cast<std::size_t>(nearest - texts.begin()));
  }
  return rows;
}

std::string texts_over_time(const SampledPrompt& prompt, bool is_title) {
  Table table{.head = {"step", prompt.is_source ? "text" : "continuation"}, .all_text = true};
  const std::set<std::size_t> rows = chosen(prompt.texts);
  for (const std::size_t row : rows)
    table.rows.push_back(
        {format_number(prompt.texts[row].step, Unit::count), said(prompt.texts[row].text)});
  if (!prompt.reference.empty()) table.rows.push_back({"reference", escape(prompt.reference)});
  std::string text;
  if (!is_title) text += "<p class=\"sub\">" + said(prompt.prompt) + "</p>";
  text += "<div class=\"texts\">" + table.html() + "</div>";
  if (rows.size() < prompt.texts.size())
    text += fmt::format("<p class=\"note\">{} steps; <code>{}</code> has all of them.</p>\n",
                        rows.size(), kSamplesFile);
  return text;
}

void add_prompts(Cards& cards, const RunLog& run) {
  for (std::size_t i = 0; i < std::min(run.samples.size(), kPromptsShown); ++i) {
    const SampledPrompt& prompt = run.samples[i];
    const bool is_title =
        !prompt.is_source && !prompt.prompt.empty() && prompt.prompt.size() <= kTitleBytes;
    cards.add_card(is_title ? prompt.prompt
                            : fmt::format("{} {}", prompt.is_source ? "Text" : "Prompt", i + 1),
                   texts_over_time(prompt, is_title), true);
  }
}

// Each prompt's newest text.
void add_newest(Cards& cards, const RunLog& run) {
  Table table{.head = {"prompt", "step", "text"}, .all_text = true};
  for (std::size_t i = 0; i < std::min(run.samples.size(), kPromptsCompared); ++i) {
    const SampledPrompt& prompt = run.samples[i];
    table.rows.push_back({said(shortened(prompt.prompt, 2 * kTitleBytes)),
                          format_number(prompt.texts.back().step, Unit::count),
                          said(prompt.texts.back().text)});
  }
  cards.add_card(run.name, table.html(), true);
}

}  // namespace

std::string samples_section(Runs runs) {
  Cards cards;
  bool any = false;
  for (const RunLog& run : runs) {
    if (run.samples.empty()) continue;
    any = true;
    if (runs.size() == 1)
      add_prompts(cards, run);
    else
      add_newest(cards, run);
  }
  return any ? cards.html("Generated texts") : std::string();
}

}  // namespace shoal::report
