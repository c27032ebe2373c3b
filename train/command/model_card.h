// README.md of a trained model, in the form of transformers' model card.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "shoal/train/checkpoint/trainer_state.h"
#include "shoal/train/command/setup.h"

namespace shoal::command {

// The card's text. `state` after training; `results`: of all_results.json, whose "eval_" numbers
// are the model's. The model is called as the last part of output_dir. `adapted`: the directory or
// name of the model that the trained adapters are for, as PEFT's card has it; empty: no adapters.
// Pure.
std::string model_card(const RunArguments& arguments, int ranks, const TrainerState& state,
                       const nlohmann::ordered_json& results, const std::string& adapted = {});

// Whether the card may replace this README.md: a text without the comment of generated cards was
// written by a person, and stays.
bool is_generated_card(const std::string& text);

}  // namespace shoal::command
