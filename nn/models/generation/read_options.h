// Reads GenerationOptions from the fields of a generation_config.json.
#pragma once

#include <cstdint>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "shoal/nn/models/generation/options.h"

namespace shoal::nn {

// Sets what `fields` have, under transformers' names, and keeps the rest of `options`. `context`:
// number of ids before the first new token, of which max_length counts; max_new_tokens and
// min_new_tokens take precedence over max_length and min_length. Errors name `source`. Refuses
// fields that would change the text and that Shoal does not implement. Ignores fields of speed and
// of other outputs, and stop_strings, which need a tokenizer.
void read_options(const nlohmann::json& fields, std::string_view source, std::int64_t context,
                  GenerationOptions& options);

}  // namespace shoal::nn
