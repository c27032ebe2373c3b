// Writes the outputs of a job: the model, or the reason of its failure.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::sagemaker {

// Copies the files of the finished model from the run's output_dir to `model`, without checkpoints
// and other folders. All or nothing: files are written to a staging folder and renamed when all are
// complete. Returns their names. Throws io if a file cannot be written, and not_found without a
// model.
std::vector<std::string> export_model(const std::string& output_dir, const std::string& model);

// True if a finished model was written to `output_dir` at or after `time`.
bool has_model_since(const std::string& output_dir, std::filesystem::file_time_type time);

// Returns the most informative line of standard error: the last line written by a Shoal program
// ("shoal train: ..."), otherwise the last line. mpirun's marks are removed.
std::string reason_of(std::string_view error, int status);

// The same for a Python script: the end of the traceback of the rank that failed. That is the rank
// that mpirun names, otherwise the first one with a traceback. Without a traceback: the line of
// `train rank`, otherwise the last line. At most 1,024 bytes, unless the exception is longer.
std::string reason_of_script(const std::string& script, std::string_view error, int status);

// Writes at most 1,024 characters, the limit that SageMaker shows. An existing reason is kept.
// Never throws, since callers handle a failure already.
void write_failure(const std::string& output, std::string_view reason) noexcept;

}  // namespace shoal::sagemaker
