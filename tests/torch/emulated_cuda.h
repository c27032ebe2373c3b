// PyTorch's device type CUDA on Shoal's emulated GPUs: streams, events, memory and copies. All
// other tensor operations run on the CPU. For programs that link only PyTorch's CPU library, where
// this device type is not used.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Stream.h>

#include "shoal/runtime/device/device.h"

namespace shoal::test {

// The stream on which this thread queues its work for the device.
c10::Stream current_stream(c10::Device device);
Stream handle_of(c10::Stream stream);

// Queues a write of each byte of a contiguous tensor. It runs as late as the emulated GPU may.
void queue_fill(const at::Tensor& tensor, int byte);
// Queues a copy between contiguous tensors of one size and dtype.
void queue_copy(const at::Tensor& to, const at::Tensor& from);

}  // namespace shoal::test
