#include <optional>
#include <string>

#include "shoal/collectives/transport/operation.h"
#include "shoal/kernels/emulation.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/train/trainer/resolved_run.h"
#include "shoal/train/trainer/trainer_impl.h"

namespace shoal {
namespace {

enum Saved : std::int64_t { unknown, as_f32, as_bf16 };

// Dtype in which the checkpoint's run computed. `unknown` if the checkpoint is unreadable; resume()
// reports that problem.
Saved precision_of(const std::string& checkpoint) {
  if (checkpoint.empty() || !path_exists(checkpoint + "/trainer_state.json")) return unknown;
  try {
    const std::string dtype = read_trainer_state(checkpoint).compute_dtype;
    return dtype == to_string(DType::bf16)  ? as_bf16
           : dtype == to_string(DType::f32) ? as_f32
                                            : unknown;
  } catch (const Error& problem) {
    if (problem.code() == ErrorCode::io) throw;
    return unknown;
  }
}

}  // namespace

// Must be called before the engine is created, which holds the model in this precision. All ranks
// make the same decision.
void Trainer::Impl::settle_precision() {
  if (!args.bf16 && !args.bf16_auto) return;
  const std::string here = kernels::emulation(*parts.kernels, DType::bf16);
  const std::string continues = args.bf16_auto ? will_continue() : std::string();  // on rank 0
  std::int64_t all[] = {here.empty() ? 0 : 1, precision_of(continues)};
  if (ranks() > 1)
    parts.communicator->host()
        .all_reduce(all, all, 2, DType::i64, collectives::ReduceOp::sum)
        ->wait();
  const bool native = all[0] == 0;
  const std::string why_not =
      !here.empty() ? here
                    : fmt::format("{} of {} ranks have no instructions for it", all[0], ranks());
  if (args.bf16_auto) {
    const bool kept = all[1] != unknown, bf16 = kept ? all[1] == as_bf16 : native;
    settle_bf16(args, bf16);
    std::string line = bf16 ? "bf16 auto: bf16, " : "bf16 auto: f32, ";
    if (kept)
      line += fmt::format("as {} was trained", continues);
    else
      line += bf16 ? "for which there are instructions here" : why_not;
    if (kept && !bf16 && native)
      line += "; there are instructions for bf16 here, and --bf16 true takes them from here on";
    say(line);
  }
  if (args.bf16 && !native)
    say(
        fmt::format("warning: bf16 is emulated ({}): a step takes up to 1.2 times as long as in "
                    "f32, as measured; --bf16 false computes in f32",
                    why_not));
}

}  // namespace shoal
