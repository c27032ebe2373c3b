// Constructor arguments of an Engine, and objects made from its TrainingArguments.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shoal/nn/optim/loss_scaler.h"
#include "shoal/parallel/data/reducer.h"
#include "shoal/train/trainer/arguments.h"
#include "shoal/train/trainer/trainer.h"

namespace shoal {

// Constructor arguments of an Engine.
struct EngineParts {
  TrainingArguments arguments;  // resolved
  TrainerParts trainer;
  std::function<void(const std::string&)> say;  // tells the user; rank 0's lines are printed
  // The checkpoint that training will resume from, on rank 0; empty: none, or another rank.
  std::string continues = {};
};
parallel::ReducerOptions reducer_options(const EngineParts& parts);
DType compute_dtype(const TrainingArguments& arguments);
// For stochastic rounding; nullopt: there are masters, or parameters are f32.
std::optional<std::uint64_t> rounding_seed(const TrainingArguments& arguments);
// "native"; between devices also the transport, as in "native over CUDA IPC".
std::string carried_by(const collectives::Communicator& communicator);
// Reports missing and unused tensors. Refuses a new head that is not trained.
void note_loaded(const EngineParts& parts, const std::string& directory,
                 const nn::LoadReport& report);
// For fp16: mp_parameters' values, else the options given and torch.amp.GradScaler's defaults.
nn::LossScaler make_scaler(const TrainingArguments& arguments);

}  // namespace shoal
