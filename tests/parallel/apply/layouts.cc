#include "layouts.h"

#include <array>
#include <cctype>
#include <numeric>
#include <random>

namespace shoal::parallel {
namespace {

constexpr int kMostRanks = 8;
constexpr std::array kSchedules = {ScheduleKind::simple,      ScheduleKind::interleaved,
                                   ScheduleKind::one_f_one_b, ScheduleKind::virtual_interleaved,
                                   ScheduleKind::zero_bubble, ScheduleKind::zero_bubble_v};

// GPT-NeoX's layouts are listed in equivalence_test.cc.
constexpr std::array kDrawn = {Model::gpt2,   Model::bert,  Model::llama,
                               Model::qwen3,  Model::gemma, Model::gemma2,
                               Model::gemma3, Model::t5,    Model::bart};

// Sizes that the degrees divide, although not every size is divisible by every degree.
Task task_for(Model model, int rdp, int tp) {
  const auto odd = [](int degree) {
    while (degree % 2 == 0) degree /= 2;
    return degree;
  };
  Task task{.model = model};
  const int rows = odd(rdp * tp), heads = odd(tp);
  if (rows > 1) task.rows = rows == 3 ? 24 : 4 * rows;
  if (heads > 1) {
    task.heads = heads == 3 ? 6 : heads;
    // The decoder of an encoder-decoder has half as many positions.
    const int unit = is_encoder_decoder(model) ? 2 * task.heads : task.heads;
    task.length = task.length / unit * unit + unit;
  }
  return task;
}

// "12 heads" -> "# heads"
std::string without_numbers(const std::string& text) {
  std::string out;
  for (const char c : text)
    if (std::isdigit(static_cast<unsigned char>(c)) == 0)
      out += c;
    else if (out.empty() || out.back() != '#')
      out += '#';
  return out;
}

// Adds the layouts that differ from `layout` only in options other than the schedule and the batch.
void add_options(Layout layout, std::vector<Layout>& all) {
  const int cut = (layout.rdp > 1) + (layout.pp > 1) + (layout.tp > 1);
  for (const char* placement : {"cluster", "spread", "TDP"}) {
    if (cut < 2 && std::string_view(placement) != "cluster") continue;
    layout.placement = placement;
    for (int level = 0; level <= (layout.rdp > 1 ? 3 : 0); ++level)
      for (const int degree : {0, layout.rdp / 2}) {
        const bool half = degree > 1 && layout.rdp % 2 == 0 && level > 0;
        if (degree > 0 && !half) continue;
        layout.sharding = level;
        layout.degree = degree;
        for (const int group : {0, 1, 2})
          for (const bool offload : {false, true}) {
            if (offload && group == 0) continue;
            layout.checkpoint_group = group;
            layout.offload = offload;
            all.push_back(layout);
          }
      }
  }
}

constexpr std::size_t kAxes = 11, kMicrobatches = 4, kPlacement = 8, kMesh = 10;
using Values = std::array<int, kAxes>;

Values values_of(const Layout& layout) {
  const int held = layout.prescaled ? (layout.speed ? 2 : 1) : 0;
  const int placement = layout.placement == "cluster" ? 0 : layout.placement == "spread" ? 1 : 2;
  return {layout.rdp,
          layout.pp,
          layout.tp,
          static_cast<int>(layout.schedule),
          layout.microbatches,
          held,
          layout.sharding + (layout.degree > 0 ? 3 : 0),
          2 * layout.checkpoint_group + static_cast<int>(layout.offload),
          placement,
          static_cast<int>(layout.task.model),
          layout.rdp * 100 + layout.pp * 10 + layout.tp};
}

std::vector<std::vector<std::size_t>> sets_of_axes(int strength) {
  std::vector<std::vector<std::size_t>> sets;
  const auto in_three = [=](std::size_t axis) {
    return strength == 3 && axis != kMicrobatches && axis != kPlacement;
  };
  for (std::size_t a = 0; a < kMesh; ++a)
    for (std::size_t b = a + 1; b < kMesh; ++b) {
      if (!in_three(a) || !in_three(b)) sets.push_back({a, b});
      for (std::size_t c = b + 1; c < kMesh; ++c)
        if (in_three(a) && in_three(b) && in_three(c)) sets.push_back({a, b, c});
    }
  for (std::size_t a = 3; strength == 3 && a < kMesh; ++a) sets.push_back({kMesh, a});
  return sets;
}

// The combinations of values that each set of axes has covered so far.
class Coverage {
 public:
  explicit Coverage(int strength) : sets_(sets_of_axes(strength)), met_(sets_.size()) {
    for (auto& met : met_) met.resize(kMostValues * 10);
  }
  int sets() const { return static_cast<int>(sets_.size()); }
  // The number of sets of axes for which `values` is a new combination. If `meet`,
  // records them as covered.
  int gain(const Values& values, bool meet) {
    int gained = 0;
    for (std::size_t i = 0; i < sets_.size(); ++i) {
      std::size_t key = 0;
      for (const std::size_t axis : sets_[i])
        key = key * 10 + static_cast<std::size_t>(values[axis]);
      gained += !met_[i][key];
      if (meet) met_[i][key] = true;
    }
    return gained;
  }

 private:
  static constexpr std::size_t kMostValues = 1000;
  std::vector<std::vector<std::size_t>> sets_;
  std::vector<std::vector<bool>> met_;
};

}  // namespace

LayoutModel model_of(const Task& task) {
  if (is_encoder_decoder(task.model))
    return {kUnits, task.heads, tiny_encoder_decoder(task).encoder_inner};
  if (task.model == Model::gpt2) return {kUnits, task.heads, tiny(task).inner()};
  if (task.model == Model::llama || task.model == Model::qwen3 || is_gemma(task.model)) {
    const nn::DecoderConfig config = tiny_llama(task);
    return {kUnits, config.num_key_value_heads, config.intermediate_size};
  }
  if (task.model == Model::gpt_neox) return {kUnits, task.heads, tiny_neox(task).intermediate_size};
  return {kUnits, task.heads, tiny_encoder("bert", task.heads, kUnits - 2).intermediate_size};
}

RunShape run_of(const Layout& layout) {
  return {.ranks = layout.ranks(),
          .batch = layout.task.rows / layout.rdp / (layout.prescaled ? 1 : layout.tp),
          .length = layout.task.length};
}

LayoutSpace every_layout(bool small) {
  LayoutSpace space;
  // Each kind of schedule is generated and checked once. Then a short one stands in for it.
  std::map<std::array<int, 3>, std::vector<LayoutProblem>> schedules;
  const auto add = [&](const Layout& layout) {
    const bool all = layout.rdp > 1 && layout.pp > 1 && layout.tp > 1;
    const bool few = layout.microbatches == 2 || layout.microbatches == 4;
    if (small && (!few || layout.ranks() == 3 || (layout.ranks() > 4 && !all))) return;
    const LayoutModel model = model_of(layout.task);
    ParallelPlan plan = plan_of(layout);
    const std::array schedule{layout.pp, static_cast<int>(layout.schedule), layout.microbatches};
    const auto [found, fresh] = schedules.try_emplace(schedule);
    if (fresh)
      found->second = find_problems({.mesh = {.pipeline = layout.pp}, .pipeline = plan.pipeline},
                                    {.ranks = layout.pp, .batch = layout.microbatches}, model);
    plan.pipeline.schedule = ScheduleKind::simple;
    plan.pipeline.chunks = 1;
    std::vector<LayoutProblem> problems = find_problems(plan, run_of(layout), model);
    problems.insert(problems.end(), found->second.begin(), found->second.end());
    for (const LayoutProblem& problem : problems) ++space.refused[without_numbers(problem.what)];
    if (problems.empty()) add_options(layout, space.legal);
  };
  const auto add_all = [&](int rdp, int pp, int tp, Model model) {
    for (const ScheduleKind kind : kSchedules)
      for (const int microbatches : {1, 2, 4, 8})
        for (int held = 0; held <= (tp > 1 ? 2 : 0); ++held) {
          const bool two =
              kind == ScheduleKind::virtual_interleaved || kind == ScheduleKind::zero_bubble_v;
          add({.task = task_for(model, rdp, tp),
               .rdp = rdp,
               .pp = pp,
               .tp = tp,
               .schedule = kind,
               .chunks = two ? 2 : 1,
               .microbatches = microbatches,
               .prescaled = held > 0,
               .speed = held == 2});
        }
  };
  for (int rdp = 1; rdp <= kMostRanks; ++rdp)
    for (int pp = 1; rdp * pp <= kMostRanks; ++pp)
      for (int tp = 1; rdp * pp * tp <= kMostRanks; ++tp)
        for (const Model model : kDrawn) add_all(rdp, pp, tp, model);
  return space;
}

// Greedy: selects layouts with many new combinations first, then those with fewer.
std::vector<Layout> covering_layouts(const LayoutSpace& space, int strength) {
  std::vector<Values> values;
  for (const Layout& layout : space.legal) values.push_back(values_of(layout));
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random(1);  // NOLINT: the same in every run
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  Coverage coverage(strength);
  std::vector<Layout> chosen;
  for (int least = coverage.sets(); least > 0; least = least * 3 / 4)
    for (const std::size_t at : order)
      if (coverage.gain(values[at], false) >= least) {
        coverage.gain(values[at], true);
        chosen.push_back(space.legal[at]);
      }
  return chosen;
}

}  // namespace shoal::parallel
