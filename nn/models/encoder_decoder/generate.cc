#include "shoal/nn/models/encoder_decoder/generate.h"

#include <algorithm>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/autograd/device_values.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {

std::vector<std::vector<std::int32_t>> generate(Context& context, EncoderDecoder& model,
                                                const Tensor& ids, const Tensor& key_mask,
                                                const GenerationOptions& options,
                                                std::uint32_t first_sample) {
  const EncoderDecoderConfig& config = model.config();
  const std::int64_t samples = ids.shape()[0], most = options.max_new_tokens;
  SHOAL_CHECK(most >= 0, "max_new_tokens {} is negative", most);
  std::vector<std::vector<std::int32_t>> all(static_cast<std::size_t>(samples));
  std::vector<bool> ended(all.size(), false);
  const std::int64_t first_id = model.generation_id("forced_bos_token_id").value_or(-1),
                     last_id = model.generation_id("forced_eos_token_id").value_or(-1);
  const std::int64_t start =
      model.generation_id("decoder_start_token_id").value_or(config.start_id());
  std::vector<std::int32_t> next(all.size(), static_cast<std::int32_t>(start));
  if (most == 0 || samples == 0) return all;
  EncoderDecoderCache cache = model.encode(context, ids, key_mask, most);
  kernels::RandomSite site;
  site.seed = options.seed;
  site.site = hash_name("generate");
  const Tensor wide = context.empty({samples, config.vocab_size}, DType::f32);
  std::vector<float> values(static_cast<std::size_t>(wide.count()));
  const auto padding = static_cast<std::int32_t>(config.pad_token_id.value_or(0));
  for (std::int64_t step = 0; step < most && std::ranges::count(ended, false) > 0; ++step) {
    const Tensor logits =
        model.decode(context, context.upload(next.data(), {samples, 1}, DType::i32), cache);
    context.kernels().elementwise().cast(logits, wide.view(), context.stream);
    copy_to_host(values.data(), wide, context.stream);
    const std::int64_t forced = step + 1 == most ? last_id : step == 0 ? first_id : -1;
    for (std::size_t sample = 0; sample < all.size(); ++sample) {
      next[sample] = padding;
      if (ended[sample]) continue;
      const double uniform = kernels::uniform(
          kernels::random_bits(site, first_sample + static_cast<std::uint32_t>(sample),
                               static_cast<std::uint64_t>(step)));
      next[sample] =
          forced >= 0
              ? static_cast<std::int32_t>(forced)
              : pick_token(values.data() + static_cast<std::int64_t>(sample) * config.vocab_size,
                           config.vocab_size, options, uniform);
      all[sample].push_back(next[sample]);
      ended[sample] = std::ranges::count(options.stop_tokens, next[sample]) > 0;
    }
  }
  return all;
}

}  // namespace shoal::nn
