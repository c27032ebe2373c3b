// The published sizes of GPT-2.
#pragma once

#include <string_view>

#include "shoal/nn/models/decoder/config.h"

namespace shoal::nn {

// "gpt2" (124M), "gpt2-medium" (355M), "gpt2-large" (774M), "gpt2-xl" (1.5B).
DecoderConfig gpt2_preset(std::string_view name);

}  // namespace shoal::nn
