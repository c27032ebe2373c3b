#include "shoal/parallel/pipeline/action.h"

#include <array>

#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

// In the order of ActionKind.
constexpr std::array<std::string_view, kActionKinds> kNames = {
    "F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B"};

}  // namespace

bool computes(ActionKind kind) { return kind <= ActionKind::weight_backward; }
bool sends(ActionKind kind) {
  return kind == ActionKind::send_forward || kind == ActionKind::send_backward;
}
bool receives(ActionKind kind) {
  return kind == ActionKind::recv_forward || kind == ActionKind::recv_backward;
}

std::string_view name(ActionKind kind) { return kNames[static_cast<std::size_t>(kind)]; }

std::string to_string(const Action& action) {
  return fmt::format("{}{}{}", action.stage, name(action.kind), action.microbatch);
}

}  // namespace shoal::parallel
