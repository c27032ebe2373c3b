// What a job leaves behind: the model, or the reason of its failure.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::sagemaker {

// Copies the finished model from the run's output_dir to `model`: its files, without checkpoints
// and other folders. All or nothing: they are written beside their places first, and renamed when
// all are there. Returns their names; io where something cannot be written, not_found where there
// is no model.
std::vector<std::string> export_model(const std::string& output_dir, const std::string& model);

// Whether a finished model was put into `output_dir` at this time or later.
bool has_model_since(const std::string& output_dir, std::filesystem::file_time_type time);

// The line that says most about why: of what was written to standard error, the last that a program
// of Shoal's wrote ("shoal train: ..."), else the last; without the marks of mpirun.
std::string reason_of(std::string_view error, int status);

// At most 1,024 characters, which is what SageMaker shows. A reason that stands there already
// stays. Never throws: it is called when things went wrong.
void write_failure(const std::string& output, std::string_view reason) noexcept;

}  // namespace shoal::sagemaker
