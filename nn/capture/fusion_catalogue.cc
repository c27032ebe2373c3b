#include "shoal/nn/capture/fusion_catalogue.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shoal::nn {
namespace {

struct Fusion {
  std::string_view first, second, name;
  // `alone`: the fusion applies only if the second operation is the only reader, since the
  // intermediate result is then not written. `passes`: memory passes over it that the fusion saves.
  bool alone;
  int passes;
};

constexpr std::array kCatalogue{
    // The sum is still written as the residual, but the norm need not read it again.
    Fusion{"dropout_add", "layer_norm", "residual_layer_norm", false, 1},
    Fusion{"dropout", "dropout_add", "dropout_add", true, 2},
    Fusion{"dropout_add", "residual_layer_norm", "residual_layer_norm", true, 2},
    // dx is the gradient of the residual and, after dropout, that of the branch.
    Fusion{"layer_norm.backward", "dropout.backward", "layer_norm.backward with its branch", false,
           1},
    Fusion{"layer_norm.backward", "gradient_sum", "layer_norm.backward of a fork", true, 2},
    Fusion{"linear.backward_input", "gradient_sum", "linear.backward_input that adds", true, 2},
    Fusion{"linear.backward_input", "activation.backward",
           "linear.backward_input through the activation", true, 2},
};

// Readers and writers of each storage, in order. Records of meshes with many microbatches have tens
// of thousands of operations.
class Uses {
 public:
  explicit Uses(const RecordingDispatcher& record)
      : readers_(record.lifetimes().size()), writers_(record.lifetimes().size()) {
    int at = 0;
    for (const RecordedOperation& operation : record.operations()) {
      for (const int storage : operation.inputs) readers_[index(storage)].push_back(at);
      for (const int storage : operation.outputs) writers_[index(storage)].push_back(at);
      ++at;
    }
  }

  // Operations that read what operation `at` wrote to `storage`, up to the next write.
  std::span<const int> readers_after(int at, int storage) const {
    const std::vector<int>& writers = writers_[index(storage)];
    const auto next = std::ranges::upper_bound(writers, at);
    const std::vector<int>& readers = readers_[index(storage)];
    const auto first = std::ranges::upper_bound(readers, at);
    const auto last =
        next == writers.end() ? readers.end() : std::ranges::upper_bound(readers, *next);
    return {first, last};
  }
  bool written_between(int first, int second, int storage) const {
    const std::vector<int>& writers = writers_[index(storage)];
    const auto next = std::ranges::upper_bound(writers, first);
    return next != writers.end() && *next < second;
  }

 private:
  static std::size_t index(int storage) { return static_cast<std::size_t>(storage); }
  std::vector<std::vector<int>> readers_, writers_;
};

}  // namespace

std::vector<FoundChain> find_chains(const RecordingDispatcher& record) {
  const std::vector<RecordedOperation>& operations = record.operations();
  const Uses uses(record);
  std::vector<FoundChain> found;
  for (int at = 0; at < static_cast<int>(operations.size()); ++at) {
    const RecordedOperation& operation = operations[static_cast<std::size_t>(at)];
    for (const int storage : operation.outputs) {
      const std::span<const int> readers = uses.readers_after(at, storage);
      if (readers.empty()) continue;
      const int next = readers.front();
      const RecordedOperation& reader = operations[static_cast<std::size_t>(next)];
      // True if none of the reader's inputs was written in between.
      const bool could_have_been_one = std::ranges::none_of(
          reader.inputs, [&](int input) { return uses.written_between(at, next, input); });
      for (const Fusion& fusion : kCatalogue) {
        if (operation.name != fusion.first || reader.name != fusion.second) continue;
        if ((fusion.alone && readers.size() > 1) || !could_have_been_one) continue;
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
