// Rejects names of several files, or of remote objects, in options that take one file.
#include <utility>

#include <fmt/format.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/train/command/stream.h"

namespace shoal::command {
namespace {

bool names_several(const std::string& name, const SourceRegistry& sources) {
  if (!sources.is_one(name)) return true;
  const bool is_list = name.starts_with('@') || name.find(',') != name.npos;
  return is_list && !(is_local(name) && path_exists(name));
}

}  // namespace

void check_one_file(const RunArguments& a, TaskKind kind, const SourceRegistry& sources) {
  const DataArguments& data = a.data;
  const bool is_text = reads_text(kind);
  for (const auto& [option, name] :
       {std::pair{"train_file", &data.train_file},
        {"validation_file", &data.validation_file},
        {"test_file", &data.test_file},
        {"validation_mismatched_file", &data.validation_mismatched_file},
        {"test_mismatched_file", &data.test_mismatched_file}}) {
    const bool trains = name == &data.train_file;
    if (name->empty() || is_pipe(*name) || (trains && data.streaming)) continue;
    std::string remedy = trains ? "give --streaming true and max_steps, which read its files one "
                                  "by one, or "
                                : "";
    if (names_several(*name, sources))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} is {}, which names several files, and takes one", option, *name),
                  remedy + (is_text ? fmt::format("make one of them: shoal data prepare {} "
                                                  "--tokenizer DIRECTORY --output DIRECTORY",
                                                  *name)
                                    : "join them into one"));
    if (!is_text && !is_local(*name))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} is {}, but {} reads files of this machine", option, *name,
                              to_string(kind)),
                  remedy + "copy it to this machine");
  }
}

}  // namespace shoal::command
