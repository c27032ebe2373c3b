// Fields of a Hugging Face config.json, for the configurations of this room.
#pragma once

#include "shoal/runtime/io/json_fields.h"

namespace shoal::nn {

// More would take memory and time that no file of a few bytes should ask for.
inline constexpr std::int64_t kMostLayers = 10'000, kMostLabels = 32'768;

// JsonFields, and fields that this build of a model has to refuse.
class ConfigReader : public JsonFields {
 public:
  using JsonFields::JsonFields;

  // Fields whose every value but these is something this model does not compute.
  void refuse_true(const char* key) const {
    bool value = false;
    boolean(key, value);
    if (value) fail(fmt::format("has {}: true, which is not supported", key));
  }
  void refuse_filled(const char* key) const {
    if (const nlohmann::json* value = find(key); value && !value->empty())
      fail(fmt::format("has {}, which is not supported", key));
  }
};

}  // namespace shoal::nn
