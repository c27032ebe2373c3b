#include "shoal/train/tensorboard/tensorboard_callback.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <filesystem>

#include <unistd.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/host_name.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/train/tensorboard/event_file.h"

namespace shoal {
namespace {

double now() {
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since_1970).count();
}

}  // namespace

bool reports_to_tensorboard(const TrainingArguments& arguments) {
  const auto& targets = arguments.report_to;
  return std::any_of(targets.begin(), targets.end(), [](const std::string& target) {
    return target == "tensorboard" || target == "all";
  });
}

std::string tensorboard_directory(const TrainingArguments& arguments) {
  if (arguments.logging_dir && !arguments.logging_dir->empty()) return *arguments.logging_dir;
  const std::time_t seconds = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&seconds, &local);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%b%d_%H-%M-%S", &local);
  return (std::filesystem::path(arguments.output_dir) / "runs" /
          fmt::format("{}_{}", text.data(), host_name()))
      .string();
}

std::string tensorboard_tag(const std::string& key) {
  for (const char* group : {"eval", "test"})
    if (key.starts_with(std::string(group) + "_"))
      return fmt::format("{}/{}", group, key.substr(5));
  return "train/" + key;
}

TensorBoardCallback::TensorBoardCallback(std::string directory)
    : directory_(std::move(directory)) {}
TensorBoardCallback::~TensorBoardCallback() = default;

void TensorBoardCallback::on_log(const nlohmann::ordered_json& record) {
  const double time = now();
  if (!file_) {
    make_directories(directory_);
    file_ = std::make_unique<EventFile>(
        fmt::format("{}/events.out.tfevents.{:010d}.{}.{}.0", directory_,
                    static_cast<std::int64_t>(time), host_name(), ::getpid()),
        time);
  }
  const auto step = field_or(record, "step", std::int64_t{0}, "a log record");
  for (const auto& [key, value] : record.items())
    if (key != "step" && value.is_number())
      file_->add_scalar(tensorboard_tag(key), value.get<float>(), step, time);
  file_->flush();
}

}  // namespace shoal
