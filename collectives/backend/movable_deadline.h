// Additional interface of Communicators whose deadline can change. PyTorch's backend needs it for
// the timeout of a process group, which may change after the group was made.
#pragma once

namespace shoal::collectives {

class MovableDeadline {
 public:
  virtual ~MovableDeadline() = default;
  // The deadline of every later wait, and of operations in flight. Call from any thread.
  virtual void set_deadline_seconds(double seconds) = 0;
};

}  // namespace shoal::collectives
