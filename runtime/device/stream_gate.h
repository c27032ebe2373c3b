// A point that a stream does not pass before the host says so, and at which no thread waits.
//
// CUDA's stream memory operations (driver API, "Stream Memory Operations"): the stream looks at a
// word of pinned memory. CUDA does not see that order, so whoever is to open a gate may not depend
// on what is queued behind one, nor call what waits for the whole device (cudaFree, a kernel's
// first launch) before it has opened; and what it queues itself belongs on streams of another
// priority than those that wait, since streams of one priority may share a hardware queue.
#pragma once

#include <memory>
#include <string>

#include "shoal/runtime/device/device.h"

namespace shoal {

// Closed when made; once open, it stays so. Thread-safe. Whoever holds it owns it: streams that
// stand at it do not, and go on when it is destroyed.
class StreamGate {
 public:
  // Opens it. Streams that come to it later pass: the word they look at belongs to the process.
  virtual ~StreamGate() = default;
  // Later work on `stream`, of any device of the gate's kind, waits for open(); the caller goes on.
  // On host streams, whose work is the caller's, the caller blocks. Throws internal where `stream`
  // is being captured (a graph would keep this one gate) or the driver refuses.
  virtual void block_stream(Stream stream) = 0;
  // Does not block, and asks no driver. What the calling thread has written or seen done is there
  // for the streams that pass.
  virtual void open() noexcept = 0;
};

// Takes a word that other gates have used before. When none is left it asks the driver for pinned
// memory, which may block until the whole device has come to an end: not with a lock that somebody
// needs who is to open a gate. Throws unavailable where why_no_stream_gates() says something, and
// out_of_memory.
std::unique_ptr<StreamGate> make_stream_gate(Device device);

// Empty where streams of `device` can wait at gates (CUDA 12's driver or newer); otherwise why not.
// Until that was found it is tried on a stream of its own, for which the caller blocks. Throws what
// making that stream throws; nothing is remembered of a trial that failed.
std::string why_no_stream_gates(Device device);

// Behind the two, for CUDA.
std::unique_ptr<StreamGate> make_cuda_stream_gate(Device device);
std::string why_no_cuda_stream_gates(Device device);

}  // namespace shoal
