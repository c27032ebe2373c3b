// Runs a kernel's blocks one after another on the calling thread. The threads of a block are fibers
// that wait for each other at barriers and in a warp's operations. If a meeting cannot happen, the
// process ends with one line that names the waiting threads and where they wait.
//
// SHOAL_EMULATED_GPU_ORDER chooses the order in which blocks, and the threads of a block, take
// turns, and when cp.async copies. `forward`: ascending, and copies are made when they are waited
// for. `reverse`: descending, and copies are made at once. `mixed` (default): each launch picks
// either order and either time at random, with the same random numbers in every process. A number:
// the seed of a shuffle. A correct kernel's results do not depend on the order; those of a kernel
// that lacks a barrier often do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <span>
#include <string>

#include "cuda_runtime_api.h"

namespace shoal::emulated_gpu {

using Where = std::source_location;

// A launch's grid, and the source line that launched it.
struct Grid {
  dim3 blocks;
  Where from;
  Grid(dim3 blocks_in, Where from_in = Where::current())  // NOLINT: replaces a dim3
      : blocks(blocks_in), from(from_in) {}
  Grid(unsigned x, Where from_in = Where::current()) : Grid(dim3(x), from_in) {}  // NOLINT
};

// "kernel launched at FILE:LINE (FUNCTION)"
std::string name_of(Where launch);

// Calls thread_body in every thread of every block, with threadIdx and similar variables set. The
// caller has checked the sizes with check_launch.
void run_grid(dim3 grid, dim3 block, std::size_t dynamic_shared,
              const std::function<void()>& thread_body, Where launch = Where::current());

// Returns CUDA's answer to such a launch: cudaErrorInvalidConfiguration if a size is 0 or beyond
// the device's limits, and cudaErrorInvalidValue if `kernel` may not have that much dynamic shared
// memory.
cudaError_t check_launch(const void* kernel, dim3 grid, dim3 block, std::size_t dynamic_shared);

// Calls check_launch, then queues the work on the stream. `words` are the parameters' bytes.
cudaError_t queue_launch(const void* kernel, const Grid& grid, dim3 block,
                         std::size_t dynamic_shared, cudaStream_t stream,
                         std::function<void()> thread_body, std::span<const std::uintptr_t> words);
// Number of queue_launch calls so far. Any thread may call it.
std::uint64_t launches();

// The functions below are called by a kernel's threads.

// The kernel, block and thread that run on this host thread; empty outside kernels.
std::string position();

unsigned lane();  // lane index within the warp

enum class Vote { none, any, all, count };
// Waits until all threads of the block are at the same line. Returns the combined votes.
int block_barrier(Vote vote, bool mine, Where where);

// Each lane's part of a warp operation; null: the lane does not take part.
using Lanes = void* const (&)[32];
// Waits until the lanes of `mask` that have not ended are at the same line with the same mask. The
// last lane calls `finish` with all parts. `whole`: all 32 lanes must take part.
void in_warp(unsigned mask, bool whole, void (*finish)(Lanes lanes), void* part, Where where);

// cp.async: copies at once, or as late as allowed, that is, when the copy is waited for or the
// thread ends.
void copy_later(void* to, const void* from, bool inside);
void end_group_of_copies();
void wait_for_groups_of_copies(int but_the_last);

unsigned char* dynamic_shared_memory();

}  // namespace shoal::emulated_gpu
