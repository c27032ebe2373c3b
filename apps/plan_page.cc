#include "plan_page.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "shoal/runtime/base/error.h"
#include "shoal/train/report/html.h"
#include "shoal/train/report/plot.h"
#include "shoal/train/report/style.h"

namespace shoal::app {
namespace {

using parallel::Candidate;
using parallel::Machine;
using parallel::RankPrediction;
using parallel::SearchResult;
using report::Unit;

constexpr int kMostNodes = 4096;         // of the curves
constexpr int kMostRows = 32;            // that a timeline shows
constexpr std::size_t kMostBars = 8000;  // the same

int replicas(const Candidate& one) {
  return one.run.ranks / (one.plan.mesh.tensor * one.plan.mesh.pipeline);
}

double memory_of(const RankPrediction& rank) {
  return rank.state.parameters + rank.state.gradients + rank.state.optimizer + rank.activations;
}

std::vector<report::Part> tags_of(const RankPrediction& rank) {
  return {{"parameters", rank.state.parameters, 0},
          {"gradients", rank.state.gradients, 1},
          {"optimizer", rank.state.optimizer, 2},
          {"activations", rank.activations, 3}};
}

const Candidate& leanest(const SearchResult& result) {
  return *std::ranges::min_element(result.fastest, {},
                                   [](const Candidate& one) { return one.prediction.memory; });
}

// "beside the fastest, 16 x 1 x 1: 1.09 of its time and 1.00 of its memory; most of ...".
std::string beside(const Candidate& one, const Candidate& other, const char* which) {
  if (&one == &other) return fmt::format("it is the {} of these layouts\n", which);
  const auto named = parallel::named_parts(one.prediction.parts),
             others = parallel::named_parts(other.prediction.parts);
  std::size_t most = 0;
  const auto difference = [&](std::size_t i) { return named[i].second - others[i].second; };
  for (std::size_t i = 1; i < named.size(); ++i)
    if (std::abs(difference(i)) > std::abs(difference(most))) most = i;
  return fmt::format(
      "beside the {}, {}: {:.2f} of its time and {:.2f} of its memory; most of the difference is "
      "{}, {:+.1f} ms\n",
      which, layout_name(other), one.prediction.seconds / other.prediction.seconds,
      one.prediction.memory / other.prediction.memory, named[most].first, 1e3 * difference(most));
}

// As many kinds as there are colours.
std::vector<report::Part> shown_parts(const parallel::StepParts& p) {
  return {{"products", p.products, 0},
          {"attention", p.attention, 1},
          {"element-wise passes, loss", p.passes + p.loss, 2},
          {"sums over tensor-parallel ranks", p.tensor_exchanges, 3},
          {"recomputation", p.recomputation, 4},
          {"the pipeline's bubble", p.bubble, 5},
          {"sums of gradients", p.gradients, 6},
          {"optimizer, launches and the rest", p.optimizer + p.launches + p.fixed, report::kGrey}};
}

report::Table layouts_table(const PlanPage& page) {
  report::Table table;
  table.head = {"data x pipeline x tensor", "step", "tokens/s", "MFU", "GB a rank", "parts"};
  table.bars = true;
  double longest = 0;
  for (const Candidate& one : page.result.fastest)
    longest = std::max(longest, one.prediction.seconds);
  for (const Candidate& one : page.result.fastest) {
    const parallel::Prediction& p = one.prediction;
    table.rows.push_back(
        {report::escape(layout_name(one)), report::format_number(p.seconds, Unit::seconds),
         report::format_number(p.tokens_per_second, Unit::count),
         report::format_number(p.mfu, Unit::share), fmt::format("{:.1f}", p.memory / kGigabyte),
         report::draw_bar(shown_parts(p.parts), longest, Unit::seconds)});
  }
  return table;
}

report::Table memory_table(const Candidate& one, double room) {
  report::Table table;
  table.head = {"pipeline rank", "of the device", "bytes by tag"};
  table.bars = true;
  double most = room;
  for (const RankPrediction& rank : one.prediction.ranks) most = std::max(most, memory_of(rank));
  for (std::size_t i = 0; i < one.prediction.ranks.size(); ++i) {
    const RankPrediction& rank = one.prediction.ranks[i];
    table.rows.push_back({fmt::format("{}", i),
                          room > 0 ? report::format_number(memory_of(rank) / room, Unit::share)
                                   : report::format_number(memory_of(rank), Unit::bytes),
                          report::draw_bar(tags_of(rank), most, Unit::bytes)});
  }
  return table;
}

// Forwards, backwards and weights' gradients of a step as bars, a row a rank.
std::string timeline(const PlanPage& page, const Candidate& one) {
  const parallel::StepModel model({.model = page.request.model,
                                   .machine = page.request.machine,
                                   .plan = one.plan,
                                   .run = one.run});
  const auto [schedule, simulation] = model.timeline();
  std::size_t bars = 0;
  for (const auto& actions : schedule.actions) bars += actions.size();
  const int ranks = std::min(schedule.ranks(), kMostRows);
  if (bars > kMostBars * static_cast<std::size_t>(schedule.ranks()) /
                 static_cast<std::size_t>(std::max(ranks, 1)))
    return fmt::format("<p class=\"note\">{} actions are too many to draw.</p>\n", bars);
  constexpr double kWidth = 1000, kRow = 22;
  std::string svg;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto& actions = schedule.actions[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (!parallel::computes(actions[i].kind)) continue;
      const auto& time = simulation.actions[static_cast<std::size_t>(rank)][i];
      const int colour = actions[i].kind == parallel::ActionKind::forward           ? 0
                         : actions[i].kind == parallel::ActionKind::weight_backward ? 2
                                                                                    : 1;
      svg += fmt::format(
          "<rect class=\"f{}\" x=\"{:.2f}\" y=\"{:.0f}\" width=\"{:.2f}\" height=\"{:.0f}\">"
          "<title>{}: {} to {}</title></rect>",
          colour, kWidth * time.begin / simulation.time, kRow * rank + 2,
          std::max(kWidth * (time.end - time.begin) / simulation.time, 0.3), kRow - 4,
          parallel::to_string(actions[i]), report::format_number(time.begin, Unit::seconds),
          report::format_number(time.end, Unit::seconds));
    }
  }
  return fmt::format(
      "<figure class=\"card both\"><figcaption><h3>A step of {}</h3><span>{}, bubble {}</span>"
      "</figcaption>\n<ul class=\"legend\"><li>{}forward</li><li>{}backward</li><li>{}weights' "
      "gradients</li></ul>\n<svg class=\"plot\" viewBox=\"0 0 {} {}\" role=\"img\" "
      "aria-label=\"timeline of a pipeline\">{}</svg>\n<p class=\"note\">A row for each pipeline "
      "rank{}. Gaps are idle time.</p></figure>\n",
      report::escape(layout_name(one)), report::format_number(simulation.time, Unit::seconds),
      report::format_number(simulation.bubble(), Unit::share), report::swatch(0, false, true),
      report::swatch(1, false, true), report::swatch(2, false, true), kWidth, kRow * ranks, svg,
      ranks < schedule.ranks() ? fmt::format(", the first {} of {}", ranks, schedule.ranks()) : "");
}

// The fastest layout's hours and dollars of a run, on 1, 2, 4 ... nodes with the same batch.
std::string curves(const PlanPage& page) {
  const double tokens = page.tokens > 0 ? page.tokens : 1e9;
  const Machine& machine = page.request.machine;
  const double steps =
      tokens / (static_cast<double>(page.request.batch) * static_cast<double>(page.request.length));
  const std::string of = fmt::format("a run of {:.3g} tokens", tokens);
  report::Plot hours{.title = "Hours of " + of, .y = {.from_zero = true}, .x_name = "nodes"};
  report::Plot dollars{.title = "Dollars of " + of,
                       .y = {.from_zero = true},
                       .x_name = "nodes",
                       .missing = "the machine has no price; give --price"};
  hours.curves.push_back({.name = "fastest layout", .colour = 0, .dots = true});
  dollars.curves.push_back({.name = "fastest layout", .colour = 1, .dots = true});
  parallel::SearchRequest request = page.request;
  request.keep = 1;
  const int here = page.request.ranks / machine.devices;
  const int last = std::min(std::max(16, 4 * here), kMostNodes);
  for (int nodes = 1; nodes <= last; nodes *= 2) {
    request.ranks = nodes * machine.devices;
    const SearchResult found = parallel::search(request);
    if (found.fastest.empty()) continue;
    const parallel::Prediction& best = found.fastest.front().prediction;
    hours.x_at.push_back(nodes);
    hours.curves[0].values.x.push_back(nodes);
    hours.curves[0].values.y.push_back(steps * best.seconds / 3600);
    if (machine.price.dollars_per_hour <= 0) continue;
    dollars.x_at.push_back(nodes);
    dollars.curves[0].values.x.push_back(nodes);
    dollars.curves[0].values.y.push_back(steps * best.dollars_per_step);
  }
  if (hours.x_at.size() < 2) hours.x_at.clear();
  if (dollars.x_at.size() < 2) dollars.x_at.clear();
  hours.note =
      "The samples of a step stay the same. Node counts at which no layout fits or divides "
      "the batch are left out.";
  return report::draw(hours) + report::draw(dollars);
}

std::string legend(const std::vector<report::Part>& parts) {
  std::string items;
  for (const report::Part& part : parts)
    items += fmt::format("<li>{}{}</li>", report::swatch(part.colour, false, true),
                         report::escape(part.name));
  return fmt::format("<ul class=\"legend\">{}</ul>\n", items);
}

}  // namespace

std::string layout_name(const Candidate& one) {
  const parallel::ParallelPlan& plan = one.plan;
  std::string text =
      fmt::format("{} x {} x {}", replicas(one), plan.mesh.pipeline, plan.mesh.tensor);
  if (plan.mesh.pipeline > 1) text += fmt::format(", {}", parallel::name(plan.pipeline.schedule));
  if (plan.pipeline.chunks > 1) text += fmt::format(" x{}", plan.pipeline.chunks);
  if (plan.sharding.level > 0) text += fmt::format(", ZeRO {}", plan.sharding.level);
  text += fmt::format(", microbatches of {}", one.run.batch / plan.pipeline.microbatches);
  if (plan.activations.checkpoint_group > 0) text += ", recomputation";
  return text;
}

std::string explained(const SearchResult& result, const Machine& machine, int number) {
  SHOAL_CHECK(number >= 1 && number <= std::ssize(result.fastest),
              "there is no layout {}: the table has {}", number, result.fastest.size());
  const Candidate& one = result.fastest[static_cast<std::size_t>(number - 1)];
  const parallel::Prediction& p = one.prediction;
  std::string text =
      fmt::format("layout {}: {} (data x pipeline x tensor)\n", number, layout_name(one));
  text += fmt::format("a step: {:.1f} ms, of these\n", p.seconds * 1e3);
  auto parts = parallel::named_parts(p.parts);
  std::ranges::stable_sort(parts, [](const auto& a, const auto& b) { return a.second > b.second; });
  for (const auto& [name, seconds] : parts)
    if (seconds > 0)
      text += fmt::format("  {:>9.2f} ms {:>5.1f} %  {}\n", seconds * 1e3,
                          100 * seconds / p.seconds, name);
  for (std::size_t stage = 0; stage < p.stages.size() && p.stages.size() > 1; ++stage)
    text += fmt::format("stage {}: {}; a microbatch takes {:.2f} ms forward, {:.2f} ms backward\n",
                        stage, p.stages[stage].units, p.stages[stage].forward * 1e3,
                        p.stages[stage].backward * 1e3);
  const auto fullest = std::ranges::max_element(p.ranks, {}, memory_of);
  text += fmt::format("the fullest rank: {:.2f} GB", memory_of(*fullest) / kGigabyte);
  if (machine.memory > 0) text += fmt::format(" of {:.1f}", machine.memory / kGigabyte);
  for (const char* separator = ": "; const auto& [name, bytes, colour] : tags_of(*fullest)) {
    text += fmt::format("{}{:.2f} {}", separator, bytes / kGigabyte, name);
    separator = ", ";
  }
  text += "\n" + beside(one, result.fastest.front(), "fastest");
  return text + beside(one, leanest(result), "leanest");
}

std::string plan_page(const PlanPage& page) {
  SHOAL_ASSERT(!page.result.fastest.empty());
  const Candidate& fastest = page.result.fastest.front();
  const auto piped = std::ranges::find_if(
      page.result.fastest, [](const Candidate& one) { return one.plan.mesh.pipeline > 1; });
  const Machine& machine = page.request.machine;
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
      "name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>{0}</title>\n"
      "<style>{1}</style>\n</head>\n<body>\n<main>\n<h1>{0}</h1>\n<p class=\"sub\">{2}</p>\n"
      "<h2>Layouts, the fastest first</h2>\n<section class=\"card\">{3}{4}</section>\n"
      "<h2>Memory of {5}</h2>\n<section class=\"card\">{9}{6}<p class=\"note\">A bar ends where "
      "the "
      "memory of a device ends.</p></section>\n<h2>Over time and nodes</h2>\n"
      "<div class=\"grid\">\n{7}{8}</div>\n</main>\n</body>\n</html>\n",
      report::escape(page.title), report::kStyle, report::escape(page.subtitle),
      legend(shown_parts({})), layouts_table(page).html(), report::escape(layout_name(fastest)),
      memory_table(fastest, machine.memory).html(),
      piped == page.result.fastest.end() ? "" : timeline(page, *piped), curves(page),
      legend(tags_of({})));
}

}  // namespace shoal::app
