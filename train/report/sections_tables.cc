// Sections on the head of a page, comparison and evaluations.
#include <algorithm>
#include <cmath>
#include <set>

#include "shoal/train/report/measures.h"
#include "shoal/train/report/sections_common.h"

namespace shoal::report {
namespace {

constexpr std::size_t kRowsShown = 12, kMostRows = 400;

// <span class="state">Finished</span> ...
std::string state_of(const RunLog& run) {
  const auto total = static_cast<double>(run.setting("total_steps"));
  const double step = run.last_step();
  const std::string place = total > 0
                                ? fmt::format("step {} of {}", format_number(step, Unit::count),
                                              format_number(total, Unit::count))
                                : fmt::format("step {}", format_number(step, Unit::count));
  if (run.records == 0) return "<span class=\"state open\">nothing logged yet</span>";
  if (!run.finished)
    return fmt::format(
        "<span class=\"state open\">no end recorded</span> {}: still running, or ended by a signal "
        "or a failure",
        place);
  if (total > 0 && step < total)
    return fmt::format("<span class=\"state open\">stopped early</span> {}", place);
  return fmt::format("<span class=\"state\">finished</span> {}", place);
}

std::string line_of_header(const RunLog& run, std::string_view prefix) {
  const auto header = run.settings.find("header");
  if (header == run.settings.end() || !header->is_array()) return {};
  for (const auto& line : *header)
    if (line.is_string() && line.get_ref<const std::string&>().starts_with(prefix))
      return line.get<std::string>().substr(prefix.size());
  return {};
}

std::string tile(const std::string& title, const std::string& value, const std::string& below) {
  return fmt::format("<div class=\"tile\"><p>{}</p><b>{}</b><p>{}</p></div>\n", escape(title),
                     escape(value), escape(below));
}

std::string tiles(const RunLog& run) {
  const std::vector<Number> numbers = numbers_of(run);
  std::string text;
  int count = 0;
  const auto put = [&](const std::string& title, const std::string& value,
                       const std::string& below) {
    text += tile(title, value, below);
    ++count;
  };
  const auto show = [&](const char* key, const std::string& title, const std::string& below) {
    if (const Number* number = find(numbers, key))
      put(title, format_number(number->value, number->unit), below);
  };
  const auto first = [&](const char* key) {
    const Number* number = find(numbers, key);
    return number == nullptr ? std::string() : "from " + format_number(number->value, number->unit);
  };
  show("loss", "training loss", first("loss_first"));
  if (const auto row = run.evaluations.row_of_least("eval_loss"))
    show("eval_loss_best", "best evaluation loss",
         "at step " + format_number(run.evaluations.steps()[*row], Unit::count));
  int metrics = 0;
  for (const std::string& name : metric_names(run.evaluations)) {
    const bool more = better_direction(name) > 0;
    const auto row = more ? run.evaluations.row_of_most(name) : run.evaluations.row_of_least(name);
    if (!row || ++metrics > 2) continue;
    std::string title = "best " + name.substr(5);
    std::ranges::replace(title, '_', ' ');
    put(title, format_number(run.evaluations.column(name)[*row]),
        "at step " + format_number(run.evaluations.steps()[*row], Unit::count));
  }
  const auto ranks = run.setting("ranks");
  const std::string on =
      ranks == 0 ? "" : fmt::format("on {} rank{}", ranks, ranks == 1 ? "" : "s");
  show("tokens_per_second", "tokens/s", on);
  show("samples_per_second", "samples/s", on);
  show("mfu", "of the peak", "median");
  const auto batch = run.setting("global_batch_size");
  show("step_seconds", "step time",
       batch == 0 ? "median"
                  : fmt::format("median, {} samples",
                                format_number(static_cast<double>(batch), Unit::count)));
  show("memory_peak_bytes", "peak memory", "rank 0");
  show("seconds", "time", fmt::format("{} steps", format_number(run.last_step(), Unit::count)));
  if (count == 0) return text;
  // One row, or two of equal length.
  return fmt::format("<div class=\"tiles\" style=\"--tiles:{}\">\n{}</div>\n",
                     count > 7 ? (count + 1) / 2 : count, text);
}

// The change from a to b.
std::string difference(const Number& a, const Number& b) {
  const double change = b.value - a.value;
  if (change == 0) return "equal";
  const std::string sign = change > 0 ? "+" : "−";
  return sign + format_number(std::abs(change), a.unit);
}

std::string percent(const Number& a, const Number& b) {
  if (a.value == 0 || a.value == b.value || a.unit == Unit::share) return "";
  const double share = (b.value - a.value) / std::abs(a.value);
  if (share >= 10) return fmt::format("× {:.1f}", b.value / a.value);
  return fmt::format("{}{:.1f} %", share > 0 ? "+" : "−", std::abs(share) * 100);
}

std::string evaluation_table(const RunLog& run, std::size_t from, std::size_t every) {
  const Records& all = run.evaluations;
  Table table{.head = {"step", "epoch", "loss"}};
  const std::vector<std::string> metrics = metric_names(all);
  for (const std::string& name : metrics) {
    std::string title = name.substr(5);
    std::ranges::replace(title, '_', ' ');
    table.head.push_back(escape(title));
  }
  table.head.emplace_back("samples/s");
  const auto best_loss = all.row_of_least("eval_loss");
  const auto cell = [&](const std::string& name, std::size_t row,
                        std::optional<std::size_t> best) -> std::string {
    const auto column = all.column(name);
    if (column.empty()) return "";
    const auto bad = all.not_finite(name);
    if (!std::isfinite(column[row]))
      return std::ranges::binary_search(bad, row) ? "not finite" : "";
    const std::string text = format_number(column[row]);
    return best == row && all.rows() > 1 ? "<span class=\"best\">" + text + "</span>" : text;
  };
  for (std::size_t row = from; row < all.rows(); row += every) {
    std::vector<std::string> cells = {format_number(all.steps()[row], Unit::count),
                                      cell("epoch", row, {}), cell("eval_loss", row, best_loss)};
    for (const std::string& name : metrics)
      cells.push_back(cell(
          name, row, better_direction(name) > 0 ? all.row_of_most(name) : all.row_of_least(name)));
    cells.push_back(cell("eval_samples_per_second", row, {}));
    table.rows.push_back(std::move(cells));
  }
  return table.html();
}

}  // namespace

std::string head_section(Runs runs) {
  if (runs.size() == 1) {
    const RunLog& run = runs[0];
    std::string text = fmt::format(
        "<header><p class=\"mark\">Shoal · run report</p><h1>{}</h1>\n<p "
        "class=\"sub\">{}</p>\n",
        escape(run.name), state_of(run));
    const std::string model = line_of_header(run, "model: ");
    if (!model.empty()) text += fmt::format("<p class=\"sub\">{}</p>\n", escape(model));
    const std::string started = run.text_setting("started");
    if (!started.empty())
      text += fmt::format("<p class=\"sub\">started {} on {}</p>\n", escape(started),
                          escape(run.text_setting("host")));
    return text + "</header>\n" + tiles(run);
  }
  std::string text = fmt::format(
      "<header><p class=\"mark\">Shoal · run report</p><h1>{}</h1>\n</header>\n",
      runs.size() == 2 ? fmt::format("{} and {}", escape(runs[0].name), escape(runs[1].name))
                       : fmt::format("{} runs", runs.size()));
  Table table{.head = {"run", "state", "ranks", "global batch", "model"}, .all_text = true};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto known = [&](const char* name, const char* title) {
      const auto value = runs[i].setting(name);
      return fmt::format("<span class=\"label\">{}: </span>{}", title,
                         value == 0 ? std::string("not known")
                                    : format_number(static_cast<double>(value), Unit::count));
    };
    table.rows.push_back({swatch(colour_of_run(i)) + "<b>" + escape(runs[i].name) + "</b>",
                          state_of(runs[i]), known("ranks", "ranks"),
                          known("global_batch_size", "global batch"),
                          escape(line_of_header(runs[i], "model: "))});
  }
  return text + "<section class=\"card runs\">" + table.html() + "</section>\n";
}

std::string remarks_section(Runs runs) {
  std::string text;
  for (const RunLog& run : runs) {
    const std::string of = runs.size() == 1 ? "" : escape(run.name) + ": ";
    for (const std::string& remark : remarks_of(run))
      text += "<p class=\"remark\">" + of + escape(remark) + "</p>\n";
  }
  return text;
}

std::string comparison_section(Runs runs) {
  if (runs.size() < 2) return {};
  std::vector<std::vector<Number>> numbers;
  std::vector<Number> rows;  // one entry per key, in the order in which runs have them
  std::set<std::string> keys;
  for (const RunLog& run : runs) numbers.push_back(numbers_of(run));
  for (const auto& of_run : numbers)
    for (const Number& number : of_run)
      if (keys.insert(number.key).second) rows.push_back(number);
  const bool two = runs.size() == 2;
  Table table{.head = {""}};
  for (std::size_t i = 0; i < runs.size(); ++i)
    table.head.push_back(swatch(colour_of_run(i)) + escape(runs[i].name));
  if (two) table.head.insert(table.head.end(), {"difference", ""});
  for (const Number& row : rows) {
    std::vector<std::string> cells = {escape(row.title)};
    std::vector<const Number*> values;
    const Number* best = nullptr;
    bool differ = false;
    for (const auto& of_run : numbers) {
      const Number* value = find(of_run, row.key);
      values.push_back(value);
      if (value == nullptr) continue;
      if (best != nullptr && value->value != best->value) differ = true;
      if (best == nullptr || (value->value - best->value) * row.better > 0) best = value;
    }
    for (const Number* value : values) {
      const std::string text = value == nullptr ? "" : format_number(value->value, value->unit);
      cells.push_back(value != nullptr && value == best && differ && row.better != 0
                          ? "<span class=\"best\">" + text + "</span>"
                          : text);
    }
    if (two && values[0] != nullptr && values[1] != nullptr) {
      cells.push_back(difference(*values[0], *values[1]));
      cells.push_back(percent(*values[0], *values[1]));
    } else if (two) {
      cells.insert(cells.end(), {"", ""});
    }
    table.rows.push_back(std::move(cells));
  }
  return "<h2>Numbers</h2>\n<section class=\"card\">" + table.html() +
         "<p class=\"note\">Green and bold: the better one. Throughput and times are medians over "
         "the run, parts of a step means.</p></section>\n";
}

std::string forecast_section(Runs runs) {
  Cards cards;
  bool any = false;
  for (const RunLog& run : runs) {
    const std::vector<ForecastPart> parts = forecast_of(run);
    if (parts.empty()) continue;
    any = true;
    Table table{.head = {"", "predicted", "measured", "error"}};
    for (const ForecastPart& part : parts) {
      std::string name = part.name;
      std::ranges::replace(name, '_', ' ');
      table.rows.push_back({part.whole ? "<b>" + escape(name) + "</b>" : escape(name),
                            format_part(part, part.predicted), format_part(part, part.measured),
                            part.measured > 0 ? fmt::format("{:+.1f} %", 100 * part.error()) : ""});
    }
    std::string text = table.html();
    for (const std::string& miss : forecast_misses(parts))
      text += "<p class=\"note\">" + escape(miss) + "</p>";
    cards.add_card(runs.size() == 1 ? "A step of rank 0" : run.name, text, true);
  }
  return any ? cards.html("Predicted and measured") : std::string();
}

std::string evaluation_section(Runs runs) {
  Cards cards;
  for (const RunLog& run : runs) {
    const std::size_t rows = run.evaluations.rows();
    if (rows == 0) {
      cards.add_line(
          fmt::format("<b>{}</b>: nothing was evaluated "
                      "(<code>--eval_strategy steps</code> does during training)",
                      escape(runs.size() == 1 ? "Evaluations" : run.name)));
      continue;
    }
    std::string text = evaluation_table(run, rows - std::min(rows, kRowsShown), 1);
    if (rows > kRowsShown) {
      const std::size_t every = (rows + kMostRows - 1) / kMostRows;
      text = "<p class=\"note\">The last " + std::to_string(kRowsShown) + " of " +
             format_number(static_cast<double>(rows), Unit::count) + ".</p>" + text +
             fmt::format("<details><summary>{}</summary>\n{}</details>\n",
                         every == 1 ? "All of them" : fmt::format("Every {}th", every),
                         evaluation_table(run, 0, every));
    }
    cards.add_card(runs.size() == 1 ? "Each evaluation" : run.name, text, true);
  }
  return cards.html("Evaluations");
}

}  // namespace shoal::report
