// PyTorch's device type CUDA over Shoal's emulated GPUs: its streams and events, memory, copies
// and, by way of the CPU, all other operations on tensors. For programs that link PyTorch's CPU
// library only, where the type is free.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Stream.h>

#include "shoal/runtime/device/device.h"

namespace shoal::test {

// The stream of the device that this thread's work is queued on.
c10::Stream current_stream(c10::Device device);
Stream handle_of(c10::Stream stream);

// Queues a write of each byte of a contiguous tensor. It runs as late as the emulated GPU may.
void queue_fill(const at::Tensor& tensor, int byte);
// Queues a copy between contiguous tensors of one size and dtype.
void queue_copy(const at::Tensor& to, const at::Tensor& from);

}  // namespace shoal::test
