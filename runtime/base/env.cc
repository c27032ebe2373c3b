#include "shoal/runtime/base/env.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/numbers.h"
#include "shoal/runtime/base/shortened.h"

extern char** environ;

namespace shoal::env {
namespace {

constexpr std::array kVariables{kLog,
                                kThreads,
                                kDeadline,
                                kBackend,
                                kStoreDir,
                                kStorePort,
                                kJobToken,
                                kInsecure,
                                kFabricProvider,
                                kFabricInterfaces,
                                kGpuDirect,
                                kHostName,
                                kCollectives,
                                kFlightDir,
                                kGoodput,
                                kCudaAttention,
                                kCudaAttentionWorkspace,
                                kCudaBiasGradient,
                                kStreamGates,
                                kCaptureBranches,
                                kTorchSymmetric};

[[noreturn]] void refuse(const Variable& variable, std::string_view value, std::string_view wants) {
  throw_error(ErrorCode::invalid_argument, "{}='{}' is not {}; {}", variable.name, shortened(value),
              wants, variable.help);
}

template <typename Number>
Number number_of(const Variable& variable, std::string_view wants) {
  const std::string text = get_string(variable);
  const auto value = parse_number<Number>(text);
  if (!value) refuse(variable, text, wants);
  const auto number = static_cast<double>(*value);
  if (number < variable.min || number > variable.max)
    throw_error(ErrorCode::invalid_argument, "{}='{}' is outside {}{}; {}", variable.name,
                shortened(text), variable.min,
                variable.max < std::numeric_limits<double>::max()
                    ? fmt::format(" to {}", variable.max)
                    : " and above",
                variable.help);
  return *value;
}

}  // namespace

std::span<const Variable> variables() { return kVariables; }

bool is_set(const Variable& variable) {
  return std::getenv(std::string(variable.name).c_str()) != nullptr;
}

std::string get_string(const Variable& variable) {
  const char* value = std::getenv(std::string(variable.name).c_str());
  return value ? value : std::string(variable.default_value);
}

std::int64_t get_integer(const Variable& variable) {
  return number_of<std::int64_t>(variable, "an integer");
}

double get_real(const Variable& variable) {
  const auto value = number_of<double>(variable, "a number");
  if (std::isnan(value)) refuse(variable, get_string(variable), "a number");
  return value;
}

bool get_boolean(const Variable& variable) {
  const std::string text = get_string(variable);
  if (text == "1" || text == "true" || text == "yes" || text == "on") return true;
  if (text == "0" || text == "false" || text == "no" || text == "off" || text.empty()) return false;
  refuse(variable, text, "true or false");
}

void check(const Variable& variable) {
  switch (variable.kind) {
    case Kind::integer:
      static_cast<void>(get_integer(variable));
      return;
    case Kind::real:
      static_cast<void>(get_real(variable));
      return;
    case Kind::boolean:
      static_cast<void>(get_boolean(variable));
      return;
    case Kind::string:
      break;
  }
  if (variable.words.empty()) return;
  const std::string value = get_string(variable);
  for (std::string_view rest = variable.words; !rest.empty();) {
    const std::string_view word = rest.substr(0, rest.find(' '));
    if (word == value) return;
    rest.remove_prefix(std::min(word.size() + 1, rest.size()));
  }
  refuse(variable, value, "one of its words");
}

std::vector<std::string> problems() {
  std::vector<std::string> found;
  for (const Variable& variable : kVariables) try {
      check(variable);
    } catch (const Error& problem) {
      found.emplace_back(problem.what());
    }
  return found;
}

std::span<const std::string> unknown() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> found;
    for (char** entry = environ; *entry; ++entry) {
      const std::string_view text(*entry);
      if (!text.starts_with("SHOAL_")) continue;
      const std::string_view name = text.substr(0, text.find('='));
      if (std::ranges::none_of(kVariables, [&](const Variable& v) { return v.name == name; }))
        found.emplace_back(name);
    }
    return found;
  }();
  return names;
}

}  // namespace shoal::env
