// A job whose entry point is a Python script: what the host does before its ranks start.
#pragma once

#include <atomic>
#include <string>
#include <string_view>

#include "shoal/sagemaker/container/contract.h"
#include "shoal/sagemaker/container/environment.h"

namespace shoal::sagemaker {

// True for "train.py".
bool is_script(std::string_view program);

// A script's variables other than those that begin with SM_. `code`, the folder of the script's
// code, goes first in PYTHONPATH. If the job enables smdistributed's dataparallel on hosts without
// GPUs, ACCELERATE_TORCH_DEVICE is cpu unless it is set: Hugging Face's Trainer expects a GPU for
// each rank then.
Variables script_variables(const Contract& contract, const std::string& code,
                           const VariableReader& variables);

// Prepares this host for `script`, a file below `code`. Runs `python -m pip install -r
// requirements.txt` in `code` if that file exists, and passes pip's errors on. Returns early if
// `stop` becomes non-zero. Throws unavailable, with pip's own error, if pip fails, and if there is
// no such Python.
void prepare_script(const std::string& script, const std::string& code, const std::string& python,
                    const std::atomic<int>& stop);

}  // namespace shoal::sagemaker
