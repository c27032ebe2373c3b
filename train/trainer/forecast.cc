#include "shoal/train/trainer/forecast.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "shoal/runtime/io/ordered_fields.h"
#include "shoal/train/trainer/log_format.h"

namespace shoal {
namespace {

constexpr double kTolerance = 0.1;

std::optional<double> number_of(const nlohmann::json& record, const std::string& name) {
  const auto found = record.find(name);
  if (found == record.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

}  // namespace

std::vector<ForecastPart> forecast_parts(const nlohmann::json& predicted,
                                         const nlohmann::json& measured) {
  std::vector<ForecastPart> parts;
  for (const char* name :
       {"step", "data", "forward", "backward", "communication", "pipeline_wait", "optimizer"}) {
    const std::string key = fmt::format("{}_seconds", name);
    const auto expected = number_of(predicted, key), took = number_of(measured, key);
    if (expected && took)
      parts.push_back({.name = name, .predicted = *expected, .measured = *took});
  }
  if (parts.size() > 1 && parts.front().name == "step") {
    parts.front().whole = true;
    ForecastPart rest = parts.front();  // what the phases leave
    rest.name = "other", rest.whole = false;
    for (std::size_t i = 1; i < parts.size(); ++i)
      rest.predicted -= parts[i].predicted, rest.measured -= parts[i].measured;
    rest.predicted = std::max(rest.predicted, 0.0), rest.measured = std::max(rest.measured, 0.0);
    parts.push_back(rest);
  }
  const auto tags = predicted.find("memory_peak_by_tag"), had = measured.find("memory_peak_by_tag");
  if (tags == predicted.end() || had == measured.end()) return parts;
  const std::size_t all = parts.size();
  parts.push_back({.name = "memory", .bytes = true, .whole = true});
  for (const auto& [tag, bytes] : tags->items())
    if (const auto took = number_of(*had, tag); took && bytes.is_number()) {
      const double expected = bytes.get<double>();
      parts[all].predicted += expected, parts[all].measured += *took;
      parts.push_back({.name = tag, .predicted = expected, .measured = *took, .bytes = true});
    }
  if (parts[all].measured <= 0) parts.resize(all);
  return parts;
}

std::vector<std::string> forecast_misses(const std::vector<ForecastPart>& parts) {
  std::vector<std::string> misses;
  for (auto whole = parts.begin(); whole != parts.end();) {
    const auto end = std::find_if(whole + 1, parts.end(), [](const auto& p) { return p.whole; });
    const auto miss = [](const ForecastPart& part) {
      return std::abs(part.predicted - part.measured);
    };
    if (whole->whole && whole->measured > 0 && std::abs(whole->error()) > kTolerance) {
      const auto text = [](const ForecastPart& part) {
        return fmt::format("{} predicted, {} measured", format_part(part, part.predicted),
                           format_part(part, part.measured));
      };
      std::string line =
          fmt::format("{}: {} ({:+.0f} %)", whole->name, text(*whole), 100 * whole->error());
      const auto most = std::ranges::max_element(whole + 1, end, {}, miss);
      if (most != end) line += fmt::format("; most of it is {}: {}", most->name, text(*most));
      misses.push_back(std::move(line));
    }
    whole = end;
  }
  return misses;
}

std::vector<std::string> add_forecast(const nlohmann::json& predicted,
                                      nlohmann::ordered_json& record) {
  const std::vector<ForecastPart> parts = forecast_parts(predicted, nlohmann::json(record));
  OrderedFields fields(std::move(record));
  for (const ForecastPart& part : parts)
    if (part.whole)
      fields[part.bytes ? "predicted_memory_bytes" : "predicted_step_seconds"] = part.predicted;
  std::vector<std::string> misses = forecast_misses(parts);
  if (!misses.empty()) fields["predictions_missed"] = misses;
  record = std::move(fields).json();
  return misses;
}

std::string format_part(const ForecastPart& part, double value) {
  return part.bytes ? format_bytes(static_cast<std::int64_t>(value))
                    : fmt::format("{:.1f} ms", value * 1e3);
}

}  // namespace shoal
