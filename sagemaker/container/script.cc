#include "shoal/sagemaker/container/script.h"

#include <sstream>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/sagemaker/process/process.h"

namespace shoal::sagemaker {
namespace {

constexpr std::size_t kMostOfPip = 500;  // characters of pip's error

// pip's first line that begins with "ERROR:", else its last line.
std::string pip_error(const std::string& text) {
  std::string last;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("ERROR: ")) return line.substr(7);
    if (!line.empty()) last = line;
  }
  return last.empty() ? "pip said nothing" : last;
}

}  // namespace

bool is_script(std::string_view program) { return program.ends_with(".py"); }

Variables script_variables(const Contract& c, const std::string& code,
                           const VariableReader& variables) {
  const std::string own = variables("PYTHONPATH").value_or("");
  Variables made = {{"PYTHONPATH", own.empty() ? code : code + ":" + own}};
  constexpr const char* kDevice = "ACCELERATE_TORCH_DEVICE";
  if (c.is_on("sagemaker_distributed_dataparallel_enabled") && c.hardware.gpus == 0 &&
      !variables(kDevice))
    made.emplace_back(kDevice, "cpu");
  return made;
}

void prepare_script(const std::string& script, const std::string& code, const std::string& python,
                    const std::atomic<int>& stop) {
  if (!is_program(python))
    throw Error(ErrorCode::unavailable,
                fmt::format("entry_point is {}, but this image has no Python ({})",
                            shortened(script), python),
                "use Shoal's image of the target pytorch (docker/), or give a JSON file with "
                "options of `shoal train`");
  if (!is_regular_file(code + "/requirements.txt")) return;
  const ProcessResult installed = run_process(
      {python, "-m", "pip", "install", "--disable-pip-version-check", "-r", "requirements.txt"},
      {.directory = code,
       .passes_on_errors = true,
       .stop = &stop,
       .grace_seconds = deadlines::kGivenUp});
  if (installed.status != 0 && stop == 0)
    throw Error(ErrorCode::unavailable,
                fmt::format("requirements.txt cannot be installed: {} (exit status {})",
                            shortened(pip_error(installed.error), kMostOfPip), installed.status),
                "the log has pip's output");
}

}  // namespace shoal::sagemaker
