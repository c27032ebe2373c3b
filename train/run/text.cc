#include "shoal/text.h"

#include "shoal/collectives/long_work.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/base/progress.h"
#include "shoal/train/data/prepare.h"
#include "shoal/train/data/token_file.h"
#include "shoal/train/data/tokenizer/load.h"
#include "shoal/train/run/job_parts.h"

namespace shoal {

Text::Text(Job& job, const std::string& file, const std::string& tokenizer,
           const TextOptions& options) {
  collectives::LongWork work(job.communicator().host());
  const progress::Listener listener([&] { work.beat(); });
  tokenizer_ = load_tokenizer(tokenizer);
  PrepareOptions prepare;
  prepare.inputs = {file};
  prepare.output_directory =
      options.cache_directory.empty() ? file + ".tokens" : options.cache_directory;
  prepare.progress = [&](std::int64_t, std::int64_t) { work.beat(); };
  prepare.waiting = [&] { work.beat(); };
  const PreparedData prepared = prepare_data(*tokenizer_, prepare);
  blocks_ = std::make_shared<CausalLmDataset>(TokenFile::open(prepared.train.path),
                                              options.block_size, tokenizer_->max_id() + 1);
  work.finish();
}

}  // namespace shoal
