#include "shoal/collectives/select/choices.h"

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"

namespace shoal::collectives {

Choices::Choices(const AlgorithmSelector& selector, int ranks, int nodes, MemoryKind memory,
                 Offers offers) {
  const std::vector<std::int64_t> borders = selector.borders();
  for (std::size_t o = 0; o < stretches_.size(); ++o) {
    const auto operation = static_cast<Operation>(o);
    const auto offered = offers(operation);
    if (offered.empty()) continue;
    for (const std::int64_t begin : borders) {
      Selection selection{Algorithm::automatic, 0, ""};
      try {
        selection = selector.select({operation, begin, memory, ranks, nodes}, offered);
      } catch (const Error& nothing_left) {
        selection.why = nothing_left.message();
      }
      auto& stretches = stretches_[o];
      if (stretches.empty() || stretches.back().selection != selection) {
        const std::string text =
            fmt::format("{} of {} ranks on {} from {} bytes: {} ({})", to_string(operation), ranks,
                        nodes == 1 ? "one host" : fmt::format("{} hosts", nodes), begin,
                        to_string(selection.algorithm), selection.why);
        log::once(log::Level::debug, text, text);
        stretches.push_back({begin, std::move(selection)});
      }
    }
  }
}

const Selection& Choices::at(Operation operation, std::int64_t bytes) const {
  static const Selection kNothing{Algorithm::automatic, 0, "nothing is offered"};
  const auto& stretches = stretches_[static_cast<std::size_t>(operation)];
  if (stretches.empty()) return kNothing;
  std::size_t i = stretches.size() - 1;
  while (stretches[i].begin > bytes) --i;  // the first begins at 0
  return stretches[i].selection;
}

}  // namespace shoal::collectives
