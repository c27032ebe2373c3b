// Pages: their structure, what they report as missing, and limits that no file can exceed.
#include "shoal/train/report/page.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/train/report/html.h"
#include "shoal/train/report/plot.h"

namespace shoal::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::size_t count(const std::string& text, std::string_view word) {
  std::size_t found = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1))
    ++found;
  return found;
}

// "" if all tags are closed in order and all attributes quoted; otherwise the fault.
std::string malformed(const std::string& html) {
  static const std::set<std::string> alone = {"meta", "br"};
  std::vector<std::string> open;
  for (std::size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    if (html.compare(at, 9, "<!DOCTYPE") == 0) continue;
    const std::size_t end = html.find('>', at);
    if (end == std::string::npos) return "a tag has no end";
    const std::string tag = html.substr(at + 1, end - at - 1);
    const bool closes = tag.starts_with("/");
    const std::string name = tag.substr(closes, tag.find_first_of(" /", 1) - closes);
    if (std::ranges::count(tag, '"') % 2 != 0) return "quotes in <" + tag + ">";
    if (closes) {
      if (open.empty() || open.back() != name)
        return "</" + name + "> after <" + (open.empty() ? "" : open.back()) + ">";
      open.pop_back();
    } else if (!tag.ends_with("/") && !alone.contains(name)) {
      open.push_back(name);
    }
  }
  return open.empty() ? "" : "<" + open.back() + "> is not closed";
}

// -
void expect_sound(const std::string& html) {
  EXPECT_EQ(malformed(html), "");
  for (const char* word : {"http:", "https:", "src=", "href=", "url(", "@import", "<script",
                           "<link", "nan", "inf\"", "-inf"})
    EXPECT_THAT(html, Not(HasSubstr(word))) << word;
}

RunLog run_of(const std::string& name, const std::string& metrics) {
  RunLog run = parse_run(metrics);
  run.name = run.directory = name;
  return run;
}

// A complete run as shoal train leaves it.
RunLog usual(const std::string& name, int ranks, double seconds = 0.5) {
  std::string text;
  for (int step = 1; step <= 40; ++step) {
    text += fmt::format(
        R"({{"loss": {}, "grad_norm": {}, "learning_rate": {}, "epoch": {}, "step": {}, )"
        R"("tokens_seen": {}, "tokens_per_second": 200, "elapsed": {}, "step_seconds": {}, )"
        R"("data_seconds": 0.0625, "forward_seconds": 0.125, "backward_seconds": 0.1875, )"
        R"("optimizer_seconds": 0.03125, "memory_bytes": 1000000, "memory_peak_bytes": 3000000, )"
        R"("memory_peak_by_tag": {{"parameters": 600000, "activations": 2000000}}}})"
        "\n",
        4.0 / step + 1, 1.0 / step, 1e-3 * (40 - step) / 40, step / 20.0, step * 10, step * 1000,
        step * 5.5, seconds);
    if (step % 20 == 0)
      text += fmt::format(R"({{"eval_loss": {}, "eval_accuracy": {}, "eval_runtime": 1, )"
                          R"("eval_samples_per_second": 64, "epoch": {}, "step": {}}})"
                          "\n",
                          2.0 / step + 1, step / 50.0, step / 20.0, step * 10);
  }
  text += R"({"train_runtime": 220, "step": 400})"
          "\n";
  RunLog run = run_of(name, text);
  run.settings = {{"ranks", ranks},
                  {"global_batch_size", 8 * ranks},
                  {"total_steps", 400},
                  {"header", {"model: bert", "steps: 400"}},
                  {"machine", {{"processor", "a processor"}}},
                  {"given", {"max_steps"}},
                  {"options", {{"training", {{"max_steps", 400}, {"seed", 40 + ranks}}}}}};
  return run;
}

TEST(Escape, NoTextBreaksOutOfItsElement) {
  EXPECT_EQ(escape("<b a=\"1\" b='2'>&amp;"), "&lt;b a=&quot;1&quot; b=&#39;2&#39;&gt;&amp;amp;");
  EXPECT_EQ(escape("größer 数 😀"), "größer 数 😀");
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(escape("a\xff"
                   "b"),
            "a" + bad + "b");
  EXPECT_EQ(escape("\xc3"), bad);                      // truncated
  EXPECT_EQ(escape("\xc0\xaf"), bad + bad);            // overlong
  EXPECT_EQ(escape("\xed\xa0\x80"), bad + bad + bad);  // half of a surrogate pair
  EXPECT_EQ(escape(std::string_view("\0\x1b\n", 3)), bad + bad + "\n");
}

TEST(Page, ShowsAPredictionBesideTheMeasurements) {
  RunLog run = usual("bert", 1);
  EXPECT_THAT(page({&run, 1}, "shoal 1"), Not(HasSubstr("Predicted and measured")));
  run.settings["predicted"] = {{"step_seconds", 0.25},
                               {"forward_seconds", 0.11},
                               {"memory_peak_by_tag", {{"parameters", 600000}}}};
  const std::string html = page({&run, 1}, "shoal 1");
  expect_sound(html);
  EXPECT_THAT(html, HasSubstr("<h2>Predicted and measured</h2>"));
  const auto row = [](const char* name, const char* predicted, const char* measured,
                      const char* error) {
    std::string text = fmt::format("<tr><td>{}</td>", name);
    for (const char* cell : {predicted, measured, error})
      text += fmt::format("<td class=\"n\">{}</td>", cell);
    return text + "</tr>";
  };
  EXPECT_THAT(html, HasSubstr(row("<b>step</b>", "250.0 ms", "500.0 ms", "-50.0 %")));
  EXPECT_THAT(html, HasSubstr(row("forward", "110.0 ms", "125.0 ms", "-12.0 %")));
  EXPECT_THAT(html,
              HasSubstr("step: 250.0 ms predicted, 500.0 ms measured (-50 %); most of it is other: "
                        "140.0 ms predicted, 375.0 ms measured"));
  EXPECT_THAT(html, Not(HasSubstr("memory: ")));  // exact
}

TEST(Page, ShowsAWholeRun) {
  const RunLog run = usual("bert", 1);
  const std::string html = page({&run, 1}, "shoal 1");
  expect_sound(html);
  for (const char* title : {"Loss", "Learning rate", "Gradient norm", "Accuracy",
                            "Where a step's time goes", "Throughput", "Memory of rank 0"})
    EXPECT_THAT(html, HasSubstr(fmt::format("<figcaption><h3>{}</h3>", escape(title)))) << title;
  EXPECT_EQ(count(html, "<figure"), 7U);
  EXPECT_EQ(count(html, "class=\"missing\""), 0U);
  EXPECT_EQ(count(html, "class=\"remark\""), 1U);  // data takes 12.5 % of a step
  EXPECT_THAT(html, HasSubstr("Steps wait 12.5 % of their time for the loader"));
  EXPECT_THAT(html, HasSubstr(">finished</span> step 400 of 400"));
  EXPECT_THAT(html, HasSubstr("<title>step 10\ntraining: 5.000"));  // hover
  EXPECT_THAT(html, HasSubstr("<span class=\"best\">0.8000</span>"));
  EXPECT_THAT(html, HasSubstr("prefers-color-scheme:dark"));
  EXPECT_THAT(html, HasSubstr("<code>max_steps</code></td><td>400"));
  EXPECT_THAT(html, HasSubstr("a processor"));
  EXPECT_THAT(html, Not(HasSubstr("Scaling")));
  EXPECT_EQ(html, page({&run, 1}, "shoal 1"));  // to the byte
}

TEST(Page, ShowsTheMachinesByRank) {
  std::string metrics;
  for (int step = 10; step <= 30; step += 10)
    metrics += fmt::format(R"({{"loss": 1.5, "step": {}, "processor_cores_rank0": 0.5,)"
                           R"( "processor_cores_rank1": 1.5, "resident_bytes_rank0": 1e6,)"
                           R"( "resident_bytes_rank1": 2e6}})"
                           "\n",
                           step);
  const RunLog run = run_of("two", metrics);
  const std::string html = page({&run, 1}, "shoal 1");
  expect_sound(html);
  EXPECT_THAT(html, HasSubstr("<h2>Machines</h2>"));
  EXPECT_THAT(html, HasSubstr("<h3>Processor cores in use</h3>"));
  EXPECT_THAT(html, HasSubstr("<title>step 10\nrank 0: 0.5000\nrank 1: 1.500"));
  EXPECT_THAT(html, Not(HasSubstr("Network of the hosts")));
  // A network that carried nothing has no plot.
  for (const double rate : {0.0, 7.0}) {
    RunLog silent = run;
    silent.training.add({{"loss", 1}, {"step", 40}, {"network_rate_rank0", rate}});
    const std::string shown = page({&silent, 1}, "shoal 1");
    expect_sound(shown);
    EXPECT_EQ(count(shown, "<h3>Network of the hosts</h3>"), rate == 0 ? 0U : 1U);
  }
  // Beside another run, each has one curve: its rank with most.
  const std::vector<RunLog> both = {run, run_of("other", metrics)};
  const std::string beside = page(both, "shoal 1");
  EXPECT_THAT(beside, HasSubstr("the rank with most"));
  EXPECT_THAT(beside, Not(HasSubstr("rank 0: 0.5")));
}

// A line of samples.jsonl.
std::string line_of(int step, const std::string& prompt, const std::string& text) {
  return nlohmann::json({{"step", step}, {"index", 0}, {"prompt", prompt}, {"text", text}})
             .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
         "\n";
}

TEST(Page, ShowsTheTextsOfEachPromptByStep) {
  RunLog run = usual("gpt", 1);
  EXPECT_THAT(page({&run, 1}, "shoal 1"), Not(HasSubstr("Generated texts")));
  run.samples = parse_samples(
      R"({"step": 100, "index": 0, "prompt": "In the beginning", "reference": "God created", "text": ""}
{"step": 100, "index": 1, "source": "Der Hund", "reference": "The dog", "text": "le <b>\nchien"}
half a l
{"step": 200, "index": 0, "prompt": "In the beginning", "reference": "God created", "text": " was"}
{"step": 200, "index": 1, "source": "Der Hund", "reference": "The dog", "text": "A dog"}
{"step": 200, "index": 1, "source": "Der Hund", "reference": "The dog", "text": "The dog"}
{"step": 300, "ind)");
  const std::string html = page({&run, 1}, "shoal 1");
  expect_sound(html);
  EXPECT_THAT(html, HasSubstr("<h2>Generated texts</h2>"));
  EXPECT_THAT(html, HasSubstr("<h3>In the beginning</h3>"));
  EXPECT_THAT(html, HasSubstr("<tr><td>100</td><td><i>nothing</i></td></tr>\n<tr><td>200</td><td> "
                              "was</td></tr>\n<tr><td>reference</td><td>God created</td></tr>"));
  EXPECT_THAT(html, HasSubstr("<h3>Text 2</h3>\n<p class=\"sub\">Der Hund</p>"));
  EXPECT_THAT(html, HasSubstr("<td>le &lt;b&gt;↵ chien</td>"));
  EXPECT_THAT(html, HasSubstr("<tr><td>200</td><td>The dog</td></tr>"));
  EXPECT_THAT(html, Not(HasSubstr("A dog")));  // a later line of the same step replaces it
  EXPECT_THAT(html, Not(HasSubstr("has all of them")));
  // A few steps are all shown, however near to each other.
  RunLog few = usual("few", 1);
  few.samples =
      parse_samples(line_of(1, "p", "a") + line_of(99, "p", "b") + line_of(100, "p", "c"));
  EXPECT_THAT(page({&few, 1}, "shoal 1"), HasSubstr("<tr><td>99</td><td>b</td></tr>"));
  // Beside another run: the newest text of each prompt.
  const std::vector<RunLog> both = {run, usual("other", 1)};
  const std::string beside = page(both, "shoal 1");
  expect_sound(beside);
  EXPECT_THAT(beside, HasSubstr("<tr><td>In the beginning</td><td>200</td><td> was</td></tr>"));
  EXPECT_THAT(beside, Not(HasSubstr("nothing</i>")));
}

TEST(Page, ManyAndLongTextsMakeNoLargePage) {
  std::string lines;
  const std::string long_text = "<" + std::string(5'000, 'x') + "\xff";
  for (int step = 1; step <= 3'000; ++step)
    for (int prompt = 0; prompt < 3; ++prompt)
      lines +=
          line_of(step, fmt::format("prompt {}", prompt), fmt::format("{} {}", step, long_text));
  for (int prompt = 3; prompt < 400; ++prompt)
    lines += line_of(1, fmt::format("prompt {}", prompt), std::string(1'000, '"'));
  RunLog run = usual("texts", 1);
  const std::size_t without = page({&run, 1}, "shoal 1").size();
  run.samples = parse_samples(lines);
  EXPECT_EQ(run.samples.size(), kMostPrompts);
  const std::string html = page({&run, 1}, "shoal 1");
  expect_sound(html);
  EXPECT_LT(html.size() - without, 60'000U);
  // The first and the last step, and steps between them.
  EXPECT_THAT(html, HasSubstr("<tr><td>1</td><td>1 &lt;xxx"));
  EXPECT_THAT(html, HasSubstr("<tr><td>3,000</td><td>3000 &lt;xxx"));
  EXPECT_THAT(html, HasSubstr("xxx…</td>"));
  EXPECT_THAT(html, HasSubstr("8 steps; <code>samples.jsonl</code> has all of them."));
  const std::vector<SampledText>& texts = run.samples[0].texts;
  EXPECT_LE(texts.size(), 128U);
  EXPECT_EQ(texts.front().step, 1);
  EXPECT_TRUE(std::ranges::is_sorted(texts, {}, &SampledText::step));
  for (std::size_t i = 1; i < texts.size(); ++i)
    EXPECT_LE(texts[i].step - texts[i - 1].step, 3 * 3'000 / 128) << i;
}

// Texts are cut between characters.
TEST(Samples, CutTextsStayUtf8) {
  for (int before = 0; before < 4; ++before) {
    std::string text(static_cast<std::size_t>(before), 'a');
    for (int i = 0; i < 400; ++i) text += "größe数😀";
    const auto samples = parse_samples(line_of(1, "p", text));
    const std::string& shown = samples.at(0).texts.at(0).text;
    EXPECT_TRUE(shown.ends_with("…"));
    EXPECT_EQ(escape(shown), shown);
    EXPECT_LE(shown.size(), 603U);
  }
}

TEST(Page, PinnedMemoryHasItsOwnTable) {
  RunLog run = usual("gpu", 1);
  EXPECT_THAT(page({&run, 1}, "shoal 1"), Not(HasSubstr("Pinned on the host")));
  run.pinned_memory_peak_by_tag = {{"activations", 3 << 20}, {"data", 1 << 20}};
  const std::string html = page({&run, 1}, "shoal 1");
  expect_sound(html);
  EXPECT_THAT(html, HasSubstr("Pinned on the host"));
  EXPECT_THAT(html, HasSubstr("<td>activations</td><td class=\"n\">3.00 MiB</td>"));
}

TEST(Page, ComparesTwoRuns) {
  const std::vector<RunLog> runs = {usual("a", 1), usual("b", 2, 0.625)};
  const std::string html = page(runs, "shoal 1");
  expect_sound(html);
  EXPECT_THAT(html, HasSubstr("<h1>a and b</h1>"));
  // On a phone the table of runs has no head, but a name before each number.
  EXPECT_THAT(html, HasSubstr("<span class=\"label\">global batch: </span>16</td>"));
  EXPECT_THAT(html, HasSubstr("<td>step time (median)</td><td class=\"n\"><span class=\"best\">"
                              "500 ms</span></td><td class=\"n\">625 ms</td><td "
                              "class=\"n\">+125 ms</td><td class=\"n\">+25.0 %</td>"));
  EXPECT_THAT(html, HasSubstr("a, training"));
  EXPECT_THAT(html, HasSubstr("b, evaluation"));
  EXPECT_THAT(html, HasSubstr("<code>seed</code></td><td>41</td><td>42"));
  EXPECT_THAT(html, Not(HasSubstr("<code>max_steps</code>")));  // both runs have the same value
  // 200 tokens/s on one rank, 160 on two: T(2) / (2 T(1)).
  EXPECT_THAT(html, HasSubstr("<h3>Scaling efficiency</h3>"));
  EXPECT_THAT(html, HasSubstr("<td>2</td><td class=\"n\">160.0</td><td class=\"n\">0.80</td><td "
                              "class=\"n\">40.0 %</td>"));
  EXPECT_THAT(html, HasSubstr("Weak scaling: every run has 8 samples a rank"));
}

TEST(Page, ManyRunsOnTheSameRanksHaveNoScaling) {
  std::vector<RunLog> runs;
  for (int i = 0; i < 9; ++i) runs.push_back(usual(fmt::format("run {}", i), 2));
  const std::string html = page(runs, "shoal 1");
  expect_sound(html);
  EXPECT_THAT(html, HasSubstr("<h1>9 runs</h1>"));
  EXPECT_THAT(html, Not(HasSubstr("Scaling")));
  EXPECT_LT(html.size(), 1'500'000U);
}

TEST(Page, SaysWhatIsMissingInsteadOfEmptyPlots) {
  const RunLog empty = run_of("empty", "");
  const std::string html = page({&empty, 1}, "shoal 1");
  expect_sound(html);
  EXPECT_EQ(count(html, "<figure"), 0U);
  EXPECT_EQ(count(html, "<svg"), 0U);
  for (const char* line :
       {"<b>Loss</b>: no record of metrics.jsonl has a finite loss",
        "<b>Learning rate</b>: no record", "<b>Gradient norm</b>: no record",
        "<b>Where a step&#39;s time goes</b>: metrics.jsonl has no step_seconds",
        "<b>Throughput</b>: no record", "<b>Memory of rank 0</b>: no record",
        "<b>Evaluations</b>: nothing was evaluated", "<b>Options</b>: not known",
        "<b>Machine</b>: not known", "metrics.jsonl has no record", "no run_settings.json"})
    EXPECT_THAT(html, HasSubstr(line));
  EXPECT_THAT(html, HasSubstr("nothing logged yet"));
}

TEST(Page, ShowsARunOfOnePoint) {
  const RunLog run = run_of("one", "{\"loss\": 2.5, \"grad_norm\": 0, \"step\": 7}\n");
  const std::string html = page({&run, 1}, "shoal 1");
  expect_sound(html);
  EXPECT_EQ(count(html, "<figure"), 2U);
  EXPECT_GE(count(html, "<circle"), 2U);
  EXPECT_THAT(html, HasSubstr("<title>step 7\ntraining: 2.500"));
  EXPECT_THAT(html, HasSubstr("no end recorded"));
}

TEST(Page, LossesThatAreNotFiniteAreMarked) {
  const RunLog run = run_of("bad",
                            "{\"loss\": 3, \"step\": 1}\n{\"loss\": null, \"step\": 2}\n"
                            "{\"loss\": null, \"step\": 3}\n{\"loss\": 1e30, \"step\": 4}\n");
  const std::string html = page({&run, 1}, "shoal 1");
  expect_sound(html);
  EXPECT_THAT(html, HasSubstr("× training: 2 records are not finite, first at step 2."));
  EXPECT_THAT(html, HasSubstr("training: not finite"));
  EXPECT_GE(count(html, " bad\""), 2U);
  const RunLog all = run_of("all", "{\"loss\": null, \"step\": 1}\n");
  expect_sound(page({&all, 1}, "shoal 1"));
}

TEST(Page, DamageIsReported) {
  const RunLog run = run_of("torn", "{\"loss\": 3, \"step\": 1}\nxyz\n{\"loss\": 2, \"st");
  const std::string html = page({&run, 1}, "shoal 1");
  expect_sound(html);
  EXPECT_THAT(html, HasSubstr("last line of metrics.jsonl is cut off"));
  EXPECT_THAT(html, HasSubstr("1 line of metrics.jsonl is no JSON object and is left out, the "
                              "first line 2."));
}

TEST(Page, NamesCannotScriptIt) {
  const std::string evil = "<img onerror=x>\"'&\xff";
  RunLog run = usual(evil, 2);
  run.settings["host"] = evil;
  run.settings["header"] = {"model: " + evil, evil};
  run.settings["machine"][evil] = evil;
  run.settings["options"][evil][evil] = evil;
  run.settings["given"].push_back(evil);
  run.memory_peak_by_tag[evil] = 5;
  run.evaluations.add({{"eval_" + evil, 0.5}, {"step", 999}});
  run.samples = {{.prompt = evil, .reference = evil, .texts = {{1, evil}}},
                 {.is_source = true, .prompt = evil, .reference = evil, .texts = {{1, evil}}}};
  const std::vector<RunLog> two = {run, usual("b", 1)};
  for (const std::string& html : {page({&run, 1}, evil), page(two, evil)}) {
    expect_sound(html);
    EXPECT_THAT(html, Not(HasSubstr("<img")));
    EXPECT_THAT(html, HasSubstr("&lt;img onerror=x&gt;"));
  }
}

TEST(Page, AMillionRecordsMakeNoLargerPage) {
  RunLog run = usual("long", 1);
  Records records;
  for (int i = 1; i <= 100'000; ++i)
    records.add({{"loss", std::sin(i) + 2}, {"step", i}, {"grad_norm", 1.0 / i}});
  run.training = records;
  const std::string html = page({&run, 1}, "shoal 1");
  expect_sound(html);
  EXPECT_LT(html.size(), 300'000U);
  // A plot of a million points is no larger than one of a thousand.
  const auto size_of = [](std::size_t points) {
    Plot plot{.title = "Loss"};
    Curve curve{.name = "training", .smooth = true};
    for (std::size_t i = 0; i < points; ++i) {
      curve.values.x.push_back(static_cast<double>(i));
      curve.values.y.push_back(std::sin(static_cast<double>(i)));
    }
    plot.curves.push_back(std::move(curve));
    return draw(plot).size();
  };
  EXPECT_LT(size_of(1'000'000), 45'000U);
  EXPECT_LT(size_of(1'000'000), 1.3 * static_cast<double>(size_of(1'000)));
}

TEST(Page, EvaluationsAreShownInPart) {
  std::string text;
  for (int i = 1; i <= 5000; ++i)
    text += fmt::format("{{\"eval_loss\": {}, \"step\": {}}}\n", 1.0 / i, i);
  const RunLog run = run_of("often", text);
  const std::string html = page({&run, 1}, "shoal 1");
  expect_sound(html);
  EXPECT_THAT(html, HasSubstr("The last 12 of 5,000."));
  EXPECT_THAT(html, HasSubstr("Every 13th"));
  EXPECT_LT(html.size(), 200'000U);
}

TEST(Page, NeedsARun) { EXPECT_THROW(page({}, "shoal 1"), Error); }

TEST(Draw, StacksAreOnEachOther) {
  Plot plot{.title = "T", .y = {.unit = Unit::seconds, .from_zero = true}, .stacked = true};
  plot.curves = {{.name = "a", .colour = 0, .values = {{0, 10}, {1, 1}}},
                 {.name = "b", .colour = 1, .values = {{0, 10}, {2, 2}}}};
  const std::string svg = draw(plot);
  EXPECT_EQ(malformed(svg), "");
  EXPECT_EQ(count(svg, "class=\"area"), 2U);
  EXPECT_THAT(svg, HasSubstr("<title>step 0\na: 1.00 s\nb: 2.00 s</title>"));
}

TEST(DrawBar, PartsDoNotLeaveTheBar) {
  const std::string bar = draw_bar(
      {{"a", 1, 0}, {"b", 9, 1}, {"none", 0, 2}, {"bad", std::nan(""), 3}}, 4, Unit::seconds);
  EXPECT_EQ(malformed(bar), "");
  EXPECT_THAT(bar, HasSubstr("x=\"0.00\" width=\"250.00\""));
  EXPECT_THAT(bar, HasSubstr("x=\"250.00\" width=\"750.00\""));
  EXPECT_EQ(count(bar, "<title>"), 2U);
  EXPECT_EQ(count(draw_bar({{"a", 1, 0}}, 0, Unit::seconds), "<title>"), 0U);
}

}  // namespace
}  // namespace shoal::report
