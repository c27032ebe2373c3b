// Sections on learning, speed and memory.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "shoal/train/report/measures.h"
#include "shoal/train/report/sections_common.h"

namespace shoal::report {
namespace {

constexpr const char* kOfTraining = "no record of metrics.jsonl has it";

// A plot of one column, with a curve per run.
Plot plot_of(Runs runs, const std::string& title, const char* column, const char* what) {
  Plot plot{.title = title, .curves = {}, .missing = kOfTraining};
  for (std::size_t i = 0; i < runs.size(); ++i)
    plot.curves.push_back({.name = curve_name(runs, runs[i], runs.size() == 1 ? what : ""),
                           .colour = colour_of_run(i),
                           .smooth = true,
                           .values = column_of(runs[i].training, column),
                           .not_finite = steps_not_finite(runs[i].training, column)});
  return plot;
}

// Evaluations are few, so each value is drawn.
Curve evaluation_curve(Runs runs, std::size_t i, const std::string& column,
                       const std::string& what) {
  const bool alone = runs.size() == 1;
  return {.name = curve_name(runs, runs[i], what),
          .colour = alone ? 1 : colour_of_run(i),
          .dashed = !alone,
          .dots = true,
          .values = column_of(runs[i].evaluations, column),
          .not_finite = steps_not_finite(runs[i].evaluations, column)};
}

Plot loss_plot(Runs runs) {
  Plot plot = plot_of(runs, "Loss", "loss", "training");
  plot.y.may_be_logarithmic = true;
  plot.missing = "no record of metrics.jsonl has a finite loss";
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs.size() > 1) plot.curves[i].name += ", training";
    plot.curves.push_back(evaluation_curve(runs, i, "eval_loss", "evaluation"));
  }
  if (runs.size() > 1) return plot;
  const auto unigram = runs[0].results.find("unigram_eval_loss");
  const auto steps = runs[0].training.steps();
  if (unigram != runs[0].results.end() && unigram->is_number() && steps.size() > 1)
    plot.curves.push_back({.name = "a unigram model, evaluation",
                           .colour = kGrey,
                           .dashed = true,
                           .values = {{steps.front(), steps.back()},
                                      {unigram->get<double>(), unigram->get<double>()}}});
  return plot;
}

std::string time_table(const std::vector<Phase>& parts) {
  double whole = 0;
  for (const Phase& part : parts) whole += part.mean;
  Table table{.head = {"of a step", "mean", "share", ""}, .bars = true};
  for (const Phase& part : parts)
    table.rows.push_back({swatch(part.colour, false, true) + escape(part.name),
                          format_number(part.mean, Unit::seconds),
                          format_number(whole > 0 ? part.mean / whole : 0, Unit::share),
                          draw_bar({{part.name, part.mean, part.colour}}, whole, Unit::seconds)});
  table.rows.push_back({"the whole step", format_number(whole, Unit::seconds), "", ""});
  return table.html();
}

// Advice from a run's phase times.
std::string advice(const RunLog& run, const std::vector<Phase>& parts) {
  double whole = 0, data = 0;
  for (const Phase& part : parts) {
    whole += part.mean;
    if (part.column == "data_seconds") data = part.mean;
  }
  std::string text;
  if (whole > 0 && data > 0.05 * whole)
    text += fmt::format(
        "<p class=\"remark\">Steps wait {} of their time for the loader: more "
        "<code>--dataloader_num_workers</code>{} may help.</p>\n",
        format_number(data / whole, Unit::share),
        run.option("dataloader_num_workers").empty()
            ? ""
            : fmt::format(" (now {})", escape(run.option("dataloader_num_workers"))));
  const auto exposed = run.training.median("exposed_communication_seconds"),
             hidden = run.training.median("hidden_communication_share");
  if (exposed && hidden)
    text += fmt::format(
        "<p class=\"note\">Gradients: {} of their bytes were summed over the ranks behind backward "
        "(hidden); rank 0 then waited {} a step for the rest (exposed).</p>\n",
        format_number(*hidden, Unit::share), format_number(*exposed, Unit::seconds));
  return text;
}

void add_breakdown(Cards& cards, const RunLog& run) {
  const std::vector<Phase> parts = phases(run);
  Plot plot{.title = "Where a step's time goes",
            .y = {.unit = Unit::seconds, .from_zero = true},
            .stacked = true,
            .missing =
                "metrics.jsonl has no step_seconds and no phases; runs of this version of "
                "Shoal write them"};
  for (const Phase& part : parts)
    plot.curves.push_back({.name = part.name, .colour = part.colour, .values = part.seconds});
  if (run.training.rows() > 3)
    plot.note =
        "Rank 0; evaluation, logging and checkpoints are not in it. Data is what steps waited for "
        "the loader; without workers, what making their batches took.";
  cards.add(plot);
  if (!parts.empty()) cards.add_card("A step, on average", time_table(parts) + advice(run, parts));
}

void compare_breakdowns(Cards& cards, Runs runs) {
  std::vector<std::vector<Phase>> all;
  double longest = 0;
  std::vector<std::string> lacking;
  for (const RunLog& run : runs) {
    all.push_back(phases(run));
    double whole = 0;
    for (const Phase& part : all.back()) whole += part.mean;
    longest = std::max(longest, whole);
    if (all.back().empty()) lacking.push_back(run.name);
  }
  if (longest > 0) {
    Table bars{.head = {"run", "step", ""}, .bars = true};
    std::string legend = "<ul class=\"legend\">";
    std::set<std::string> named;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      std::vector<Part> parts;
      double whole = 0;
      for (const Phase& part : all[i]) {
        parts.push_back({part.name, part.mean, part.colour});
        whole += part.mean;
        if (named.insert(part.name).second)
          legend +=
              fmt::format("<li>{}{}</li>", swatch(part.colour, false, true), escape(part.name));
      }
      if (!parts.empty())
        bars.rows.push_back({escape(runs[i].name), format_number(whole, Unit::seconds),
                             draw_bar(parts, longest, Unit::seconds)});
    }
    cards.add_card("Where a step's time goes",
                   legend + "</ul>\n" + bars.html() +
                       "<p class=\"note\">Means of rank 0; hover over a part for its time.</p>\n",
                   true);
  }
  for (const std::string& name : lacking)
    cards.add_line(fmt::format("<b>{}</b> has no step_seconds and no phases in its metrics.jsonl",
                               escape(name)));
}

Plot rate_plot(Runs runs) {
  Plot plot{.title = "Throughput", .y = {.from_zero = true}, .missing = kOfTraining};
  std::set<std::string> units;
  bool pauses = false;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Throughput rate = throughput(runs[i]);
    if (rate.series.x.empty()) continue;
    units.insert(rate.unit());
    pauses |= rate.with_pauses;
    plot.curves.push_back({.name = curve_name(runs, runs[i], runs.size() == 1 ? rate.unit() : ""),
                           .colour = colour_of_run(i),
                           .smooth = true,
                           .values = std::move(rate.series)});
  }
  if (units.size() == 1) plot.unit_name = *units.begin() + ", all ranks";
  if (units.size() > 1) plot.note = "Runs differ in what they count: tokens or samples.";
  if (pauses) plot.note += "Pauses for evaluation and checkpoints are in it.";
  return plot;
}

// Adds a table of bytes by tag, unless no run has any.
void add_kinds(Cards& cards, const std::string& title, Runs runs,
               std::map<std::string, double> RunLog::* peaks, const std::string& note) {
  Table table{.head = {"kind", "at its peak", ""}, .bars = runs.size() == 1};
  if (runs.size() > 1) {
    table.head = {"kind"};
    for (const RunLog& run : runs) table.head.push_back(escape(run.name));
  }
  double largest = 0;
  std::set<std::string> tags;
  for (const RunLog& run : runs)
    for (const auto& [tag, bytes] : run.*peaks) {
      tags.insert(tag);
      largest = std::max(largest, bytes);
    }
  for (const std::string& tag : tags) {
    std::vector<std::string> row = {escape(tag)};
    for (const RunLog& run : runs) {
      const auto found = (run.*peaks).find(tag);
      const double bytes = found == (run.*peaks).end() ? 0 : found->second;
      row.push_back(format_number(bytes, Unit::bytes));
      if (runs.size() == 1) row.push_back(draw_bar({{tag, bytes, 0}}, largest, Unit::bytes));
    }
    table.rows.push_back(std::move(row));
  }
  if (!table.rows.empty())
    cards.add_card(title, table.html() + "<p class=\"note\">" + note + "</p>\n");
}

}  // namespace

std::string learning_section(Runs runs) {
  Cards cards;
  cards.add(loss_plot(runs), true);
  Plot rate = plot_of(runs, "Learning rate", "learning_rate", "learning rate");
  for (std::size_t i = 0; i < runs.size(); ++i) {
    rate.curves[i].smooth = false;
    rate.curves[i].dashed = i % 2 == 1;  // curves often coincide; dashes keep both visible
  }
  rate.y.from_zero = true;
  cards.add(rate);
  Plot norm = plot_of(runs, "Gradient norm", "grad_norm", "gradient norm");
  norm.y.may_be_logarithmic = true;
  norm.unit_name = "before clipping";
  cards.add(norm);
  std::set<std::string> metrics;
  for (const RunLog& run : runs)
    for (const std::string& name : metric_names(run.evaluations)) metrics.insert(name);
  for (const std::string& name : metrics) {
    std::string title = name.substr(5);
    std::ranges::replace(title, '_', ' ');
    title.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(title.front())));
    Plot plot{.title = title, .unit_name = "evaluation", .missing = kOfTraining};
    plot.y.may_be_logarithmic = name == "eval_perplexity";
    for (std::size_t i = 0; i < runs.size(); ++i)
      plot.curves.push_back(evaluation_curve(runs, i, name, runs.size() == 1 ? name : ""));
    for (Curve& curve : plot.curves) curve.dashed = false;
    cards.add(plot);
  }
  return cards.html("Learning");
}

std::string speed_section(Runs runs) {
  Cards cards;
  if (runs.size() == 1) {
    add_breakdown(cards, runs[0]);
  } else {
    compare_breakdowns(cards, runs);
  }
  cards.add(rate_plot(runs));
  Plot step = plot_of(runs, "Step time", "step_seconds", "step time");
  step.y.unit = Unit::seconds;
  step.y.from_zero = true;
  if (runs.size() > 1 || (phases(runs[0]).empty() && !step.empty())) cards.add(step);
  Plot exposed = plot_of(runs, "Gradients waited for", "exposed_communication_seconds",
                         "exposed communication");
  exposed.y.unit = Unit::seconds;
  exposed.y.from_zero = true;
  if (!exposed.empty()) cards.add(exposed);
  return cards.html("Speed");
}

// The ranks' values of "NAME_rankN": a curve for each of the first few ranks of one run, or the
// largest value of each run.
Plot by_rank(Runs runs, const std::string& title, const std::string& name) {
  Plot plot{.title = title, .curves = {}, .missing = kOfTraining};
  plot.y.from_zero = true;
  const std::string prefix = name + "_rank";
  for (std::size_t i = 0; i < runs.size(); ++i) {
    std::vector<Curve> curves;
    for (const std::string& column : runs[i].training.names())
      if (column.starts_with(prefix))
        curves.push_back({.name = "rank " + column.substr(prefix.size()),
                          .colour = static_cast<int>(curves.size()) % kColours,
                          .smooth = true,
                          .values = column_of(runs[i].training, column)});
    if (curves.empty()) continue;
    if (runs.size() == 1 && curves.size() <= kColours) {
      plot.curves = std::move(curves);
      continue;
    }
    Curve most = curves.front();
    for (const Curve& curve : curves)
      for (std::size_t at = 0; at < std::min(most.values.y.size(), curve.values.y.size()); ++at)
        most.values.y[at] = std::max(most.values.y[at], curve.values.y[at]);
    most.name = curve_name(runs, runs[i], "the rank with most");
    most.colour = colour_of_run(i);
    plot.curves.push_back(std::move(most));
  }
  return plot;
}

std::string machine_section(Runs runs) {
  Cards cards;
  Plot cores = by_rank(runs, "Processor cores in use", "processor_cores");
  Plot memory = by_rank(runs, "Memory of the processes", "resident_bytes");
  Plot network = by_rank(runs, "Network of the hosts", "network_rate");
  memory.y.unit = Unit::bytes;
  network.y.unit = Unit::bytes;
  network.unit_name = "per second";
  network.note = "Sent and received by the kernel's interfaces: not the loopback, not EFA.";
  // On one host often nothing leaves the loopback.
  if (std::ranges::all_of(network.curves, [](const Curve& curve) {
        return std::ranges::all_of(curve.values.y, [](double rate) { return !(rate > 0); });
      }))
    network.curves.clear();
  bool any = false;
  for (const Plot* plot : {&cores, &memory, &network}) {
    if (!plot->empty()) cards.add(*plot);
    any = any || !plot->empty();
  }
  return any ? cards.html("Machines") : "";
}

std::string memory_section(Runs runs) {
  Cards cards;
  Plot plot = plot_of(runs, "Memory of rank 0", "memory_peak_bytes", "the most so far");
  plot.y.unit = Unit::bytes;
  plot.y.from_zero = true;
  for (Curve& curve : plot.curves) curve.smooth = false;
  if (runs.size() == 1)
    plot.curves.push_back({.name = "between steps",
                           .colour = 1,
                           .values = column_of(runs[0].training, "memory_bytes")});
  else
    plot.unit_name = "";
  plot.note = "What Shoal has allocated: parameters, states, activations, buffers.";
  cards.add(plot);
  add_kinds(cards, "What it is for", runs, &RunLog::memory_peak_by_tag,
            "Each kind at its own peak: together they may be more than the peak of all.");
  add_kinds(cards, "Pinned on the host", runs, &RunLog::pinned_memory_peak_by_tag,
            "What devices copy from and to, each kind at its own peak, with what is kept for the "
            "next step.");
  return cards.html("Memory");
}

}  // namespace shoal::report
