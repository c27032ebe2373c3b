// Sections on scaling over ranks and on settings.
#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "shoal/train/report/measures.h"
#include "shoal/train/report/sections_common.h"

namespace shoal::report {
namespace {

// Options that only say where a run writes.
constexpr std::array kPlaces = {"output_dir", "logging_dir",          "trace",
                                "run_name",   "overwrite_output_dir", "data_cache_dir"};

std::map<std::string, std::string> options_of(const RunLog& run) {
  std::map<std::string, std::string> all;
  const auto options = run.settings.find("options");
  if (options != run.settings.end() && options->is_object())
    for (const auto& [section, values] : options->items())
      if (values.is_object())
        for (const auto& [name, value] : values.items())
          all[name] = value.is_string()         ? value.get<std::string>()
                      : value.is_number_float() ? fmt::format("{}", value.get<double>())
                                                : value.dump();
  return all;
}

std::string machine_table(const RunLog& run) {
  Table table{.all_text = true};
  const auto add = [&](const std::string& name, const std::string& value) {
    if (!value.empty()) table.rows.push_back({escape(name), escape(value)});
  };
  add("host", run.text_setting("host"));
  if (const auto hosts = run.setting("hosts"); hosts > 1) add("hosts", std::to_string(hosts));
  add("launched by", run.text_setting("launcher"));
  const auto machine = run.settings.find("machine");
  if (machine != run.settings.end() && machine->is_object())
    for (const auto& [name, value] : machine->items())
      if (value.is_string()) add(name, value.get<std::string>());
  add("program", run.text_setting("program"));
  return table.rows.empty() ? std::string() : table.html();
}

std::string header_lines(const RunLog& run) {
  std::string text;
  const auto header = run.settings.find("header");
  if (header != run.settings.end() && header->is_array())
    for (const auto& line : *header)
      if (line.is_string()) text += escape(line.get<std::string>()) + "\n";
  return text.empty() ? text : "<pre>" + text + "</pre>";
}

void add_options(Cards& cards, const RunLog& run) {
  const auto all = options_of(run);
  if (all.empty()) {
    cards.add_line("<b>Options</b>: not known, there is no run_settings.json");
    return;
  }
  Table given{.head = {"option", "value"}, .all_text = true}, rest = given;
  std::set<std::string> names;
  if (const auto list = run.settings.find("given"); list != run.settings.end() && list->is_array())
    for (const auto& name : *list)
      if (name.is_string()) names.insert(name.get<std::string>());
  for (const auto& [name, value] : all)
    (names.contains(name) ? given : rest)
        .rows.push_back({"<code>" + escape(name) + "</code>", escape(value)});
  cards.add_card("Options that were given",
                 (given.rows.empty() ? std::string("<p class=\"note\">none</p>") : given.html()) +
                     fmt::format("<details><summary>{} others, at their defaults</summary>\n{}"
                                 "</details>\n",
                                 rest.rows.size(), rest.html()));
}

void add_differences(Cards& cards, Runs runs) {
  std::vector<std::map<std::string, std::string>> all;
  std::set<std::string> names;
  for (const RunLog& run : runs) {
    all.push_back(options_of(run));
    for (const char* fact : {"ranks", "hosts", "global_batch_size", "parameters"})
      if (const auto value = run.setting(fact); value != 0)
        all.back()[std::string("(") + fact + ")"] = std::to_string(value);
    for (const char* fact : {"host", "program"})
      if (const std::string value = run.text_setting(fact); !value.empty())
        all.back()[std::string("(") + fact + ")"] = value;
    for (const auto& [name, value] : all.back())
      if (std::ranges::find(kPlaces, name) == kPlaces.end()) names.insert(name);
  }
  Table table{.head = {"option"}, .all_text = true};
  for (const RunLog& run : runs) table.head.push_back(escape(run.name));
  std::size_t equal = 0;
  for (const std::string& name : names) {
    std::set<std::string> values;
    std::vector<std::string> cells = {"<code>" + escape(name) + "</code>"};
    for (const auto& of_run : all) {
      const auto found = of_run.find(name);
      const std::string value = found == of_run.end() ? "not known" : found->second;
      values.insert(value);
      cells.push_back(escape(value));
    }
    if (values.size() > 1)
      table.rows.push_back(std::move(cells));
    else
      ++equal;
  }
  if (names.empty())
    cards.add_line("<b>Options</b>: not known, no run has a run_settings.json");
  else
    cards.add_card("What differs",
                   (table.rows.empty() ? std::string() : table.html()) +
                       fmt::format("<p class=\"note\">{} options and facts are equal; where runs "
                                   "write is left out.</p>\n",
                                   equal),
                   true);
}

// "Strong scaling: ...", derived from the global batches of the measured runs.
std::string kind_of_scaling(Runs runs) {
  std::set<std::int64_t> batches, a_rank;
  for (const RunLog& run : runs) {
    const auto ranks = run.setting("ranks"), batch = run.setting("global_batch_size");
    if (ranks == 0 || batch == 0) return {};
    batches.insert(batch);
    a_rank.insert(batch % ranks == 0 ? batch / ranks : -batch);
  }
  if (batches.size() == 1)
    return fmt::format("Strong scaling: every run has a global batch of {} samples.",
                       *batches.begin());
  if (a_rank.size() == 1)
    return fmt::format("Weak scaling: every run has {} samples a rank in a step.", *a_rank.begin());
  return "The runs' global batches differ, and not as their ranks do: their steps are not the same "
         "work.";
}

}  // namespace

std::string scaling_section(Runs runs) {
  std::vector<Measured> measured;
  std::set<std::string> units;
  for (const RunLog& run : runs) {
    const Throughput rate = throughput(run);
    if (const auto typical = median(rate.series.y)) {
      measured.push_back({run.setting("ranks"), *typical});
      units.insert(rate.unit());
    }
  }
  const std::vector<ScalingPoint> points = scaling(measured);
  if (points.empty() || units.size() != 1) return {};
  const std::string& unit = *units.begin();
  const auto base = points.front();
  Plot efficiency{.title = "Scaling efficiency",
                  .y = {.unit = Unit::share, .from_zero = true},
                  .x_name = "ranks"};
  Plot rates{.title = "Throughput", .unit_name = unit, .y = {.from_zero = true}, .x_name = "ranks"};
  Curve ideal{.name = "ideal", .colour = kGrey, .dashed = true},
      reached{.name = "reached", .dots = true};
  Curve ideal_rate = ideal, rate = reached;
  Table table{.head = {"ranks", unit, fmt::format("T(N)/T({})", base.ranks), "efficiency", "runs"}};
  for (const ScalingPoint& point : points) {
    const auto ranks = static_cast<double>(point.ranks);
    for (Plot* plot : {&efficiency, &rates}) plot->x_at.push_back(ranks);
    for (Curve* curve : {&ideal, &reached, &ideal_rate, &rate}) curve->values.x.push_back(ranks);
    ideal.values.y.push_back(1);
    reached.values.y.push_back(point.efficiency);
    ideal_rate.values.y.push_back(base.throughput * ranks / static_cast<double>(base.ranks));
    rate.values.y.push_back(point.throughput);
    table.rows.push_back({std::to_string(point.ranks), format_number(point.throughput),
                          fmt::format("{:.2f}", point.throughput / base.throughput),
                          format_number(point.efficiency, Unit::share),
                          std::to_string(point.runs)});
  }
  efficiency.curves = {ideal, reached};
  rates.curves = {ideal_rate, rate};
  efficiency.unit_name = base.ranks == 1 ? "%, T(N) / (N · T(1))"
                                         : fmt::format("%, {0} · T(N) / (N · T({0}))", base.ranks);
  Cards cards;
  cards.add(efficiency);
  cards.add(rates);
  const std::string kind = kind_of_scaling(runs);
  cards.add_card(
      "In numbers",
      table.html() +
          fmt::format("<p class=\"note\">T(N): the median throughput on N ranks. {}</p>\n", kind),
      true);
  return cards.html("Scaling over ranks");
}

std::string settings_section(Runs runs) {
  Cards cards;
  if (runs.size() == 1) {
    add_options(cards, runs[0]);
    std::string machine = machine_table(runs[0]);
    if (machine.empty())
      cards.add_line("<b>Machine</b>: not known, there is no run_settings.json");
    else
      cards.add_card("Machine", machine);
    const std::string header = header_lines(runs[0]);
    if (!header.empty()) cards.add_card("Head of the log", header, true);
    return cards.html("Settings and machine");
  }
  add_differences(cards, runs);
  for (const RunLog& run : runs) {
    const std::string text = header_lines(run) + machine_table(run);
    if (!text.empty())
      cards.add_card(run.name, "<details><summary>Head of the log, machine</summary>\n" + text +
                                   "</details>\n");
  }
  return cards.html("Settings and machines");
}

}  // namespace shoal::report
