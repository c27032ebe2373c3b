// Parsers of train/report and of the study file.
#include <string>
#include <vector>

#include "fuzz/frame.h"
#include "study/study.h"
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/json.h"
#include "shoal/train/report/page.h"
#include "shoal/train/report/run_log.h"

namespace shoal::fuzz {
namespace {

// metrics.jsonl and the files beside it; then the run's page.
FUZZ(run_log,
     "train/report/run_log.cc train/report/records.cc train/report/samples.cc train/report/html.cc "
     "train/report/page.cc") {
  for (const char* name : {"metrics.jsonl", "run_settings.json", "all_results.json",
                           "trainer_state.json", "samples.jsonl"})
    input.optional_file(name);
  const report::RunLog run = report::read_run(Input::folder());
  (void)report::remarks_of(run);
  (void)run.last_step();
  (void)run.option("max_steps");
  const std::string page = report::page(std::vector{run}, "shoal");
  expect(page.find("<script") == page.npos, "no name in a file becomes a script");
}

FUZZ(study, "apps/study/study.cc", .lists_problems = true) {
  const auto file = parse_ordered_json(input.rest(), "f");
  const app::StudyOptions options = app::read_study(file, "study", {1, 2});
  const app::Study study = app::plan_study(options);
  for (const app::StudyCell& cell : study.cells) {
    expect(cell.ranks > 0 && cell.batch > 0 && cell.steps > 1, "a run has steps");
    (void)app::options_of(cell).dump();
  }
}

}  // namespace
}  // namespace shoal::fuzz
