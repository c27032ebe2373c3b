#include "shoal/train/report/page.h"

#include <fmt/format.h>

#include "shoal/runtime/base/error.h"
#include "shoal/train/report/html.h"
#include "shoal/train/report/sections.h"
#include "shoal/train/report/sections_common.h"
#include "shoal/train/report/style.h"

namespace shoal::report {

std::string Cards::html(const std::string& title) const {
  std::string text;
  bool second = false;  // the next card goes into the second column
  for (std::size_t i = 0; i < cards_.size(); ++i) {
    const Card& card = cards_[i];
    const bool alone = !second && (i + 1 == cards_.size() || cards_[i + 1].wide);
    const bool wide = card.wide || alone;
    second = !wide && !second;
    text += card.content.empty()
                ? draw(card.plot, wide)
                : fmt::format("<section class=\"card{}\"><h3>{}</h3>\n{}</section>\n",
                              wide ? " both" : "", escape(card.plot.title), card.content);
  }
  return fmt::format("<h2>{}</h2>\n{}{}", escape(title),
                     text.empty() ? text : "<div class=\"grid\">\n" + text + "</div>\n", missing_);
}

std::string page(std::span<const RunLog> runs, const std::string& program) {
  SHOAL_CHECK(!runs.empty(), "a page is of at least one run");
  std::string title;
  for (const RunLog& run : runs) title += (title.empty() ? "" : ", ") + run.name;
  std::string text = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
      "name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>{} · Shoal run "
      "report</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n",
      escape(title), kStyle);
  text += head_section(runs);
  text += remarks_section(runs);
  text += comparison_section(runs);
  text += scaling_section(runs);
  text += learning_section(runs);
  text += samples_section(runs);
  text += speed_section(runs);
  text += memory_section(runs);
  text += machine_section(runs);
  text += forecast_section(runs);
  text += evaluation_section(runs);
  text += settings_section(runs);
  text += "<footer>Written by " + escape(program) + " report from metrics.jsonl of ";
  for (std::size_t i = 0; i < runs.size(); ++i)
    text += (i == 0 ? "" : ", ") + ("<code>" + escape(runs[i].directory) + "</code>");
  return text + ". Hover over a plot for its numbers.</footer>\n</main>\n</body>\n</html>\n";
}

}  // namespace shoal::report
