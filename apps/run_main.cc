#include "run_main.h"

#include "shoal/runtime/base/exit_status.h"
#include "shoal/runtime/base/report_error.h"
#include "shoal/runtime/base/terminal.h"

namespace shoal::app {

int run_main(const std::string& program, const std::function<int()>& body) {
  try {
    const int status = body();
    if (status == kDone) terminal::finish_output();
    return status;
  } catch (const std::exception& caught) {
    const Error error = error_of(caught);
    report_error(program, error.what());
    return exit_status(error.code());
  }
}

}  // namespace shoal::app
