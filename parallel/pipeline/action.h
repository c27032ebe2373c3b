// One step of a pipeline rank, and its text form: "2F0" is stage 2's forward of microbatch 0. The
// syntax is that of PyTorch's torch.distributed.pipelining.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace shoal::parallel {

enum class ActionKind : std::uint8_t {
  forward,          // F
  backward,         // B: the gradients of the input and the weights
  input_backward,   // I: only the input's gradient; W computes the weights' gradient later (zero
                    // bubble)
  weight_backward,  // W
  send_forward,     // SEND_F: this stage's output goes to the next stage
  recv_forward,     // RECV_F: this stage's input comes from the previous stage
  send_backward,    // SEND_B: the gradient of this stage's input goes to the previous stage
  recv_backward,    // RECV_B: the gradient of this stage's output comes from the next stage
};
constexpr std::size_t kActionKinds = 8;

struct Action {
  ActionKind kind = ActionKind::forward;
  int stage = 0;  // numbered over the whole pipeline, virtual stages included
  int microbatch = -1;
  bool operator==(const Action&) const = default;
};

bool computes(ActionKind kind);          // F, B, I, W
bool sends(ActionKind kind);             // SEND_F, SEND_B
bool receives(ActionKind kind);          // RECV_F, RECV_B
std::string_view name(ActionKind kind);  // "SEND_F"

std::string to_string(const Action& action);

}  // namespace shoal::parallel
