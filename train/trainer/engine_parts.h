// Constructor arguments of an Engine, and objects made from its ResolvedRun.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shoal/nn/optim/loss_scaler.h"
#include "shoal/parallel/data/reducer.h"
#include "shoal/train/trainer/resolved_run.h"
#include "shoal/train/trainer/trainer.h"

namespace shoal {

// Constructor arguments of an Engine.
struct EngineParts {
  ResolvedRun arguments;
  TrainerParts trainer;
  // Reports a line to the user; only rank 0's are printed.
  std::function<void(const std::string&)> say;
  // On rank 0: the checkpoint that training will resume from. Empty: none. Always empty on other
  // ranks.
  std::string continues = {};
};
parallel::ReducerOptions reducer_options(const EngineParts& parts);
DType compute_dtype(const TrainingArguments& arguments);
// Seed for stochastic rounding; nullopt: there are f32 masters, or parameters are f32.
std::optional<std::uint64_t> rounding_seed(const TrainingArguments& arguments);
// For logs: the backend, "native"; between devices with the transport, "native over CUDA IPC".
std::string carried_by(const collectives::Communicator& communicator);
// Reports missing and unused tensors. Refuses a new head that is not trained.
void note_loaded(const EngineParts& parts, const std::string& directory,
                 const nn::LoadReport& report);
// Loss scaler for fp16: with mp_parameters' values if they set any, else with the grad_scaler
// options.
nn::LossScaler make_scaler(const ResolvedRun& run);

}  // namespace shoal
