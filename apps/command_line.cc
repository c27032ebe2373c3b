#include "command_line.h"

#include <limits>
#include <memory>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "shoal/runtime/base/numbers.h"

namespace shoal::app {
namespace {

constexpr const char* kMore = "More options";

class HelpStyle final : public CLI::Formatter {
 public:
  // As Formatter's, without the options of kMore unless all are asked for, and always without the
  // help of subcommands.
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    return make_description(app) + make_usage(app, std::move(name)) + make_positionals(app) +
           groups(*app, mode == CLI::AppFormatMode::All) +
           make_subcommands(app, CLI::AppFormatMode::Normal) + "\n" + make_footer(app);
  }

 private:
  std::string groups(const CLI::App& app, bool all) const {
    const bool has_more =
        !app.get_options([](const CLI::Option* option) { return option->get_group() == kMore; })
             .empty();
    std::string text;
    for (const std::string& group : app.get_groups()) {
      if (group.empty() || (group == kMore && !all)) continue;
      const auto options = app.get_options([&](const CLI::Option* option) {
        return option->get_group() == group && option->nonpositional() &&
               (has_more || option != app.get_help_all_ptr());
      });
      if (!options.empty()) text += make_group(group, false, options);
    }
    return text;
  }
};

CLI::Validator limited(double least, double most, const std::string& limits) {
  return {[=](std::string& given) {
            const auto number = parse_number<double>(given);
            if (number && *number >= least && *number <= most) return std::string();
            return fmt::format("{} is out of range; give a number {}", given, limits);
          },
          limits};
}

}  // namespace

void set_help_style(CLI::App& app) {
  app.formatter(std::make_shared<HelpStyle>());
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.set_help_all_flag("--help-all", "Print all options and exit");
}

void rarely(CLI::App& command, std::initializer_list<const char*> options) {
  for (const char* name : options) command.get_option(name)->group(kMore);
}

CLI::Validator from_to(double least, double most) {
  return limited(least, most, fmt::format("from {} to {}", least, most));
}

CLI::Validator at_least(double least) {
  return limited(least, std::numeric_limits<double>::infinity(),
                 fmt::format("of at least {}", least));
}

}  // namespace shoal::app
