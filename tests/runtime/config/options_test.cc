#include "shoal/runtime/config/options.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

enum class Strategy { no, steps, epoch };

struct Arguments {
  std::int64_t max_steps = -1;
  int batch = 8;
  double learning_rate = 5e-5;
  std::optional<double> clip = 1.0;
  std::optional<std::int64_t> eval_steps;
  bool bf16 = false;
  bool shuffle = true;
  std::optional<bool> better;
  std::string output_dir = "out";
  std::string block;
  std::optional<std::string> resume;
  std::vector<std::string> report_to;
  std::vector<std::int64_t> sizes{1, 2};
  std::vector<std::string> prompts;
  Strategy eval = Strategy::no;
  json extra;
};

void declare(OptionSet& options, Arguments& a) {
  auto s = options.section("training", "How the model is trained");
  s.integer("max_steps", &a.max_steps, {.min = -1, .help = "stop after this many"});
  s.integer("per_device_train_batch_size", &a.batch,
            {.min = 1, .help = "samples a rank", .aliases = {"train_batch_size", "batch"}});
  s.real("learning_rate", &a.learning_rate, {.min = 0, .max = 1, .aliases = {"lr"}});
  s.real("max_grad_norm", &a.clip,
         {.min = 0, .open_min = true, .aliases = {"sdp_gradient_clipping"}});
  s.integer("eval_steps", &a.eval_steps, {.min = 1});
  s.boolean("bf16", &a.bf16).boolean("shuffle", &a.shuffle).boolean("greater_is_better", &a.better);
  s.choice("eval_strategy", &a.eval,
           {{"no", Strategy::no}, {"steps", Strategy::steps}, {"epoch", Strategy::epoch}},
           {.aliases = {"evaluation_strategy"}});
  auto out = options.section("output");
  out.string("output_dir", &a.output_dir).string("resume_from_checkpoint", &a.resume);
  out.string("block_size", &a.block);
  out.list("report_to", &a.report_to).list("sizes", &a.sizes, IntegerRules{.min = 1});
  out.texts("prompts", &a.prompts);
  out.object("lr_scheduler_kwargs", &a.extra);
  out.ignored("skip_tracing", "Shoal does not trace");
}

struct Parsed {
  Arguments arguments;
  OptionSet options;
  Parsed() { declare(options, arguments); }
  Parsed& file(const char* text) {
    options.add_json(json::parse(text), "run.json");
    return *this;
  }
  Parsed& line(const std::vector<std::string>& words) {
    options.add_arguments(words);
    return *this;
  }
  Arguments& done() {
    options.finish();
    return arguments;
  }
  std::string problem() {
    try {
      options.finish();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return error.what();
    }
    return "accepted";
  }
};

TEST(Options, DefaultsAreTheFieldsValues) {
  Parsed p;
  p.done();
  EXPECT_EQ(p.arguments.batch, 8);
  EXPECT_EQ(p.options.source_of("batch"), "default");
  EXPECT_FALSE(p.options.is_set("max_steps"));
}

TEST(Options, TheCommandLineOverridesFiles) {
  Parsed p;
  p.file(R"({"max_steps": 100, "training": {"lr": 0.1, "bf16": true}, "_comment": "x",
             "output_dir": "a", "report_to": ["tensorboard"], "eval_steps": 5})")
      .line({"--max-steps", "7", "--output_dir=b=c", "--no_shuffle", "--eval_strategy", "EPOCH"});
  const Arguments& a = p.done();
  EXPECT_EQ(a.max_steps, 7);
  EXPECT_EQ(a.learning_rate, 0.1);
  EXPECT_TRUE(a.bf16);
  EXPECT_FALSE(a.shuffle);
  EXPECT_EQ(a.output_dir, "b=c");
  EXPECT_EQ(a.eval, Strategy::epoch);
  EXPECT_EQ(a.eval_steps, 5);
  EXPECT_THAT(a.report_to, ElementsAre("tensorboard"));
  EXPECT_EQ(p.options.source_of("max_steps"), "command line --max_steps");
  EXPECT_EQ(p.options.source_of("learning_rate"), "run.json:/training/lr");
  EXPECT_TRUE(p.options.is_set("lr"));
}

TEST(Options, LaterFilesOverrideEarlierOnes) {
  Parsed p;
  p.options.add_json(json{{"lr", 0.5}, {"max_steps", 3}}, "base.json");
  p.options.add_json(json{{"learning_rate", 0.25}}, "more.json");
  EXPECT_EQ(p.done().learning_rate, 0.25);
  EXPECT_EQ(p.arguments.max_steps, 3);
  EXPECT_EQ(p.options.source_of("lr"), "more.json:/learning_rate");
}

TEST(Options, SageMakerStringsParse) {
  Parsed p;
  p.file(R"({"learning_rate": "5e-5", "bf16": "true", "max_steps": "100", "batch": " 4 ",
             "max_grad_norm": "null", "shuffle": "False", "report_to": "a, b", "sizes": "[3,4]",
             "eval_steps": "None", "lr_scheduler_kwargs": "{\"power\": 2}",
             "greater_is_better": "1"})");
  const Arguments& a = p.done();
  EXPECT_EQ(a.learning_rate, 5e-5);
  EXPECT_TRUE(a.bf16);
  EXPECT_EQ(a.max_steps, 100);
  EXPECT_EQ(a.batch, 4);
  EXPECT_FALSE(a.clip.has_value());
  EXPECT_FALSE(a.shuffle);
  EXPECT_THAT(a.report_to, ElementsAre("a", "b"));
  EXPECT_THAT(a.sizes, ElementsAre(3, 4));
  EXPECT_FALSE(a.eval_steps.has_value());
  EXPECT_EQ(a.extra["power"], 2);
  EXPECT_EQ(a.better, true);
}

TEST(Options, IntegersAcceptOnlyWholeNumbers) {
  EXPECT_EQ(Parsed().file(R"({"max_steps": 5e8})").done().max_steps, 500'000'000);
  EXPECT_EQ(Parsed().file(R"({"max_steps": "3.0"})").done().max_steps, 3);
  EXPECT_EQ(Parsed().line({"--max_steps", "-1"}).done().max_steps, -1);
  EXPECT_EQ(Parsed().file(R"({"max_steps": 9223372036854775807})").done().max_steps, INT64_MAX);
  for (const char* bad :
       {R"({"max_steps": 3.5})", R"({"max_steps": "3.5"})", R"({"max_steps": true})",
        R"({"max_steps": null})", R"({"max_steps": ""})", R"({"max_steps": "5 6"})",
        R"({"max_steps": 9223372036854775808})", R"({"max_steps": 1e300})", R"({"max_steps": [1]})",
        R"({"max_steps": -2})", R"({"max_steps": "nan"})"})
    EXPECT_THAT(Parsed().file(bad).problem(), HasSubstr("it takes an integer of at least -1"))
        << bad;
  EXPECT_THAT(Parsed().file(R"({"batch": 4294967297})").problem(),
              HasSubstr("batch is 4294967297"));
}

TEST(Options, RealNumbersHaveRanges) {
  for (const char* bad : {R"({"lr": "inf"})", R"({"lr": "nan"})", R"({"lr": 1.01})",
                          R"({"lr": -0.1})", R"({"lr": "0.1x"})", R"({"lr": false})"})
    EXPECT_THAT(Parsed().file(bad).problem(),
                HasSubstr("it takes a number of at least 0 and at most 1"))
        << bad;
  EXPECT_THAT(Parsed().file(R"({"max_grad_norm": 0})").problem(),
              HasSubstr("it takes a number above 0 or null"));
  EXPECT_EQ(Parsed().file(R"({"lr": 1})").done().learning_rate, 1.0);
}

TEST(Options, BooleansWorkOnTheCommandLine) {
  EXPECT_TRUE(Parsed().line({"--bf16"}).done().bf16);
  EXPECT_TRUE(Parsed().line({"--bf16", "--max_steps", "1"}).done().bf16);
  EXPECT_FALSE(Parsed().line({"--bf16", "--bf16", "false"}).done().bf16);
  EXPECT_FALSE(Parsed().line({"--no-shuffle"}).done().shuffle);
  EXPECT_TRUE(Parsed().line({"--bf16=YES"}).done().bf16);
  EXPECT_THAT(Parsed().line({"--bf16=2"}).problem(), HasSubstr("it takes true or false"));
  EXPECT_THAT(Parsed().line({"--bf16", "maybe"}).problem(), HasSubstr("'maybe'"));
}

TEST(Options, ListsWorkOnTheCommandLine) {
  EXPECT_THAT(Parsed().line({"--report_to", "a", "b", "--bf16"}).done().report_to,
              ElementsAre("a", "b"));
  EXPECT_THAT(Parsed().line({"--report_to", "a,b"}).done().report_to, ElementsAre("a", "b"));
  // Texts may have commas and brackets.
  const std::string text = "Once, upon a time";
  EXPECT_THAT(Parsed().line({"--prompts", text}).done().prompts, ElementsAre(text));
  EXPECT_THAT(Parsed().line({"--prompts", text, "[INST] b"}).done().prompts,
              ElementsAre(text, "[INST] b"));
  EXPECT_THAT(Parsed().line({"--prompts=[INST] b"}).done().prompts, ElementsAre("[INST] b"));
  EXPECT_THAT(Parsed().file(R"({"prompts": "[\"a, b\", \"c\"]"})").done().prompts,
              ElementsAre("a, b", "c"));
  EXPECT_THAT(Parsed().file(R"({"prompts": ["a, b", 3]})").done().prompts,
              ElementsAre("a, b", "3"));
  EXPECT_THAT(Parsed().file(R"({"prompts": null})").done().prompts, IsEmpty());
  EXPECT_THAT(Parsed().file(R"({"prompts": [["a"]]})").problem(), HasSubstr("it takes texts"));
  EXPECT_THAT(Parsed().line({"--report_to="}).done().report_to, IsEmpty());
  EXPECT_THAT(Parsed().line({"--sizes", "3"}).done().sizes, ElementsAre(3));
  EXPECT_THAT(Parsed().file(R"({"sizes": [1, "2", 3.0]})").done().sizes, ElementsAre(1, 2, 3));
  EXPECT_THAT(Parsed().file(R"({"sizes": [1, 0]})").problem(),
              HasSubstr("it takes a list of integers of at least 1"));
}

TEST(Options, UnknownNamesSuggestTheNearest) {
  EXPECT_EQ(Parsed().file(R"({"training": {"lerning_rate": 1}})").problem(),
            "there is no option 'lerning_rate' (run.json:/training/lerning_rate); did you mean "
            "learning_rate?");
  EXPECT_EQ(Parsed().line({"--trian_batch_size", "3"}).problem(),
            "there is no option 'trian_batch_size' (command line --trian_batch_size); did you mean "
            "train_batch_size?");
  EXPECT_THAT(Parsed().line({"--no_max_steps"}).problem(), HasSubstr("did you mean max_steps?"));
  // A longer name that ends with the whole words is preferred to one with similar spelling.
  EXPECT_THAT(Parsed().line({"--batch_size", "3"}).problem(),
              EndsWith("did you mean per_device_train_batch_size?"));
  EXPECT_THAT(Parsed().line({"--steps", "3"}).problem(),
              EndsWith("did you mean max_steps or eval_steps?"));
  EXPECT_THAT(Parsed().line({"stray"}).problem(), HasSubstr("'stray' on the command line"));
  EXPECT_EQ(Parsed().line({"--bf16", "maybe"}).problem(),
            "'maybe' on the command line belongs to no option; --bf16 takes true or false");
  EXPECT_EQ(Parsed().line({"--bf16", "--max_steps", "3", "stray"}).problem(),
            "'stray' on the command line belongs to no option");
  EXPECT_EQ(Parsed().line({"--json"}).problem(),
            "there is no option 'json' (command line --json); --help-all lists all")
      << "names with little in common must not be suggested";
  // The suggestion ignores case, and never is a name that is itself refused.
  EXPECT_THAT(Parsed().line({"--MAX_STEP", "3"}).problem(), HasSubstr("did you mean max_steps?"));
  OptionSet options;
  std::string refused, config;
  options.section("later").string("fsdp_config", &refused).refused();
  options.section("model").string("plan_config", &config);
  options.add_json({{"peft_config", "x"}, {"config", "y"}}, "test");
  try {
    options.finish();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("fsdp_config")));
    EXPECT_THAT(error.what(), HasSubstr("'config' (test:/config); did you mean plan_config?"));
  }
  EXPECT_THAT(Parsed().line({"--Batch-Size", "3"}).problem(),
              EndsWith("did you mean per_device_train_batch_size?"));
  EXPECT_THAT(Parsed().line({"--max_steps"}).problem(), HasSubstr("--max_steps needs a value"));
  EXPECT_THAT(Parsed().line({"--max_steps", "--bf16"}).problem(), HasSubstr("needs a value"));
}

TEST(Options, KnowOtherWordsForThem) {
  double rate = 0;
  std::string refused;
  OptionSet options;
  options.section("training").real("learning_rate", &rate);
  options.section("later").string("fsdp", &refused).refused();
  using Pair = std::pair<const char*, const char*>;
  options.add_synonyms(std::vector<Pair>{{"lr", "learning_rate"}});
  for (const auto& wrong :
       {Pair{"zero", "fsdp"}, {"x", "none"}, {"learning_rate", "learning_rate"}})
    EXPECT_THROW(options.add_synonyms(std::vector<Pair>{wrong}), Error) << wrong.first;
  options.add_json({{"LR", 1}}, "test");
  try {
    options.finish();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "there is no option 'LR' (test:/LR); did you mean learning_rate?");
  }
  EXPECT_THAT(options.help(), HasSubstr("--fsdp"));
  const std::vector<std::string_view> some = {"learning_rate"};
  EXPECT_THAT(options.help(some), HasSubstr("--learning_rate"));
  EXPECT_THAT(options.help(some), ::testing::Not(HasSubstr("later")));
}

TEST(Options, WrongValueIsOneLineWithItsSource) {
  EXPECT_EQ(Parsed().file(R"({"training": {"batch": "many"}})").problem(),
            R"(batch is "many" (run.json:/training/batch); it takes an integer of at least 1)");
  EXPECT_EQ(
      Parsed().line({"--eval_strategy", "daily"}).problem(),
      R"(eval_strategy is "daily" (command line --eval_strategy); it takes one of no, steps, epoch)");
  EXPECT_THAT(Parsed().line({"--eval_strategy", "epochs"}).problem(),
              EndsWith("it takes one of no, steps, epoch; did you mean epoch?"));
}

TEST(Options, AllProblemsInOneReportAndNothingChanges) {
  Parsed p;
  p.file(R"({"bf16": 7, "max_steps": 3, "nonsense": 1})").line({"--lr", "x"});
  p.options.add_problem("eval_steps needs eval_strategy=steps");
  const std::string text = p.problem();
  EXPECT_THAT(text, HasSubstr("4 options are wrong:\n"));
  EXPECT_THAT(text, HasSubstr("\n  bf16 is 7 (run.json:/bf16)"));
  EXPECT_THAT(text, HasSubstr("\n  there is no option 'nonsense'"));
  EXPECT_THAT(text, HasSubstr("\n  lr is \"x\" (command line --lr)"));
  EXPECT_THAT(text, HasSubstr("\n  eval_steps needs"));
  EXPECT_EQ(p.arguments.max_steps, -1) << "no field changes when anything is wrong";
}

TEST(Options, TwoNamesOfOneOptionMustAgree) {
  EXPECT_EQ(Parsed().file(R"({"max_grad_norm": 2, "sdp_gradient_clipping": "2.0"})").done().clip,
            2.0);
  EXPECT_EQ(Parsed().file(R"({"max_grad_norm": 2, "sdp_gradient_clipping": 1})").problem(),
            "max_grad_norm is 2.0 (run.json:/max_grad_norm) and sdp_gradient_clipping is 1.0 "
            "(run.json:/sdp_gradient_clipping): they are one option and must be equal");
  EXPECT_THAT(Parsed().line({"--lr", "0.1", "--learning_rate", "0.2"}).problem(),
              HasSubstr("must be equal"));
  EXPECT_EQ(Parsed().line({"--lr", "0.1", "--lr", "0.2"}).done().learning_rate, 0.2);
  // A command line overrides a file under either name.
  EXPECT_EQ(Parsed().file(R"({"lr": 0.1})").line({"--learning_rate", "0.2"}).done().learning_rate,
            0.2);
}

TEST(Options, DumpRoundTrips) {
  Parsed p;
  p.file(
       R"({"lr": 0.1, "report_to": ["x"], "max_grad_norm": null, "lr_scheduler_kwargs": {"a": [1]}})")
      .line({"--eval_strategy=steps", "--bf16"});
  p.done();
  const auto dump = p.options.dump();
  EXPECT_EQ(dump["training"]["learning_rate"], 0.1);
  EXPECT_EQ(dump["_sources"]["learning_rate"], "run.json:/lr");
  EXPECT_EQ(dump["_sources"]["max_steps"], "default");
  EXPECT_TRUE(dump["training"]["max_grad_norm"].is_null());

  Parsed again;
  again.options.add_json(json::parse(dump.dump()), "effective.json");
  again.done();
  auto second = again.options.dump();
  EXPECT_EQ(second["_sources"]["lr_scheduler_kwargs"],
            "effective.json:/output/lr_scheduler_kwargs");
  second.erase("_sources");
  auto first = dump;
  first.erase("_sources");
  EXPECT_EQ(first.dump(), second.dump());
}

TEST(Options, HelpHasEveryOptionByLibrary) {
  Parsed p;
  const std::string help = p.options.help();
  EXPECT_THAT(help, HasSubstr("training: How the model is trained\n"));
  EXPECT_THAT(help, HasSubstr("--max_steps INTEGER"));
  EXPECT_THAT(help, HasSubstr("stop after this many (an integer of at least -1; default -1)"));
  EXPECT_THAT(help, HasSubstr("--sdp_gradient_clipping)"));
  EXPECT_LT(help.find("training:"), help.find("\noutput\n"));
  EXPECT_THAT(help, Not(HasSubstr("skip_tracing")));
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

TEST(Options, IgnoredNamesAreLogged) {
  Parsed p;
  p.file(R"({"skip_tracing": true})").line({"--skip_tracing"}).done();
  EXPECT_THAT(p.options.notices(), ElementsAre(HasSubstr("has no effect: Shoal does not trace")));
  EXPECT_THAT(Parsed().options.notices(), IsEmpty());
}

TEST(Options, BadFilesAreProblems) {
  const std::string path =
      ::testing::TempDir() + "/options-" + std::to_string(::getpid()) + ".json";
  const auto problem_of = [&path](const std::string& text) {
    std::ofstream(path) << text;
    Parsed p;
    p.options.add_file(path);
    return p.problem();
  };
  EXPECT_THAT(problem_of("{\"bf16\": true"), HasSubstr(path));
  EXPECT_THAT(problem_of("{\"bf16\": true, \"bf16\": false}"), HasSubstr("'bf16' stands twice"));
  EXPECT_THAT(problem_of("[1]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(problem_of(""), HasSubstr(path));
  EXPECT_THAT(problem_of(std::string(100'000, '[')), HasSubstr("nested deeper"));
  EXPECT_THAT(problem_of("{\"lr\": 1e999}"), HasSubstr(path));
  EXPECT_EQ(problem_of("{\"bf16\": true}"), "accepted");
  std::filesystem::remove(path);
  Parsed p;
  p.options.add_file(path);
  EXPECT_THAT(p.problem(), HasSubstr("No such file"));
}

TEST(Options, DeclaringANameTwiceIsAnInternalError) {
  Arguments a;
  OptionSet options;
  auto section = options.section("x");
  section.integer("one", &a.max_steps, {.aliases = {"two"}});
  EXPECT_THROW(section.boolean("two", &a.bf16), Error);
}

TEST(Options, SurvivesAMove) {
  Arguments a;
  OptionSet first;
  auto section = first.section("x");
  OptionSet second = std::move(first);
  section.integer("one", &a.max_steps);
  second.add_arguments(std::vector<std::string>{"--one", "9"});
  second.finish();
  EXPECT_EQ(a.max_steps, 9);
}

}  // namespace
}  // namespace shoal
