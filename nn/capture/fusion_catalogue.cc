#include "shoal/nn/capture/fusion_catalogue.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shoal::nn {
namespace {

struct Fusion {
  std::string_view first, second, name;
  // Of what passes between them: alone, that nobody else reads it and so it need not be written;
  // passes over it that are saved.
  bool alone;
  int passes;
};

constexpr std::array kCatalogue{
    // The sum goes on as the residual, but the norm need not read it.
    Fusion{"dropout_add", "layer_norm", "residual_layer_norm", false, 1},
    Fusion{"dropout", "dropout_add", "dropout_add", true, 2},
    Fusion{"dropout_add", "residual_layer_norm", "residual_layer_norm", true, 2},
    // dx is the residual's gradient, and dropped once more the branch's.
    Fusion{"layer_norm.backward", "dropout.backward", "layer_norm.backward with its branch", false,
           1},
    Fusion{"layer_norm.backward", "gradient_sum", "layer_norm.backward of a fork", true, 2},
    Fusion{"linear.backward_input", "gradient_sum", "linear.backward_input that adds", true, 2},
    Fusion{"linear.backward_input", "activation.backward",
           "linear.backward_input through the activation", true, 2},
};

bool has(const std::vector<int>& list, int storage) {
  return std::ranges::find(list, storage) != list.end();
}

// Who reads what operation `at` left in `storage`: up to the next that writes there.
std::vector<int> readers_of(const std::vector<RecordedOperation>& operations, int at, int storage) {
  std::vector<int> readers;
  for (int i = at + 1; i < static_cast<int>(operations.size()); ++i) {
    const RecordedOperation& operation = operations[static_cast<std::size_t>(i)];
    if (has(operation.inputs, storage)) readers.push_back(i);
    if (has(operation.outputs, storage)) break;
  }
  return readers;
}

// Nothing else that `second` reads was written from `first` on.
bool could_have_been_one(const std::vector<RecordedOperation>& operations, int first, int second) {
  for (int i = first + 1; i < second; ++i)
    for (const int storage : operations[static_cast<std::size_t>(i)].outputs)
      if (has(operations[static_cast<std::size_t>(second)].inputs, storage)) return false;
  return true;
}

}  // namespace

std::vector<FoundChain> find_chains(const RecordingDispatcher& record) {
  const std::vector<RecordedOperation>& operations = record.operations();
  std::vector<FoundChain> found;
  for (int at = 0; at < static_cast<int>(operations.size()); ++at) {
    const RecordedOperation& operation = operations[static_cast<std::size_t>(at)];
    for (const int storage : operation.outputs) {
      const std::vector<int> readers = readers_of(operations, at, storage);
      if (readers.empty()) continue;
      const int next = readers.front();
      for (const Fusion& fusion : kCatalogue) {
        if (operation.name != fusion.first ||
            operations[static_cast<std::size_t>(next)].name != fusion.second)
          continue;
        if ((fusion.alone && readers.size() > 1) || !could_have_been_one(operations, at, next))
          continue;
        const std::int64_t bytes = record.lifetimes()[static_cast<std::size_t>(storage)].bytes;
        found.push_back({at, next, std::string(fusion.name), fusion.passes * bytes});
      }
    }
  }
  return found;
}

std::string describe(const RecordingDispatcher& record, const std::vector<FoundChain>& chains) {
  struct Kind {
    int count = 0;
    std::int64_t bytes = 0;
  };
  std::map<std::string, Kind> kinds;
  for (const FoundChain& chain : chains) {
    const auto name = [&](int at) {
      return record.operations()[static_cast<std::size_t>(at)].name;
    };
    Kind& kind =
        kinds[fmt::format("{}: {}, {}", chain.fusion, name(chain.first), name(chain.second))];
    ++kind.count;
    kind.bytes += chain.bytes_saved;
  }
  std::vector<std::string> texts;
  for (const auto& [name, kind] : kinds)
    texts.push_back(fmt::format("{} x {} ({} bytes a step)", kind.count, name, kind.bytes));
  return fmt::format("{}", fmt::join(texts, "; "));
}

}  // namespace shoal::nn
