// Runs a kernel's blocks, one after another on the calling thread. The threads of a block are
// fibers; where they meet (a barrier, a warp's operation) they wait for each other, and a meeting
// that cannot happen ends the process with one line that says who waits where.
//
// SHOAL_EMULATED_GPU_ORDER says in which order blocks, and the threads of a block, have their
// turns, and when cp.async copies: forward, and when the copy is waited for; reverse, and at once;
// mixed (default: each launch has either of each, by coins that fall alike in every process); or a
// number, the seed of shuffles. A kernel's results must not depend on it: one that lacks a barrier
// often does.
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

// A launch's blocks, and the line of the sources that launched it.
struct Grid {
  dim3 blocks;
  Where from;
  Grid(dim3 blocks_in, Where from_in = Where::current())  // NOLINT: stands where a dim3 does
      : blocks(blocks_in), from(from_in) {}
  Grid(unsigned x, Where from_in = Where::current()) : Grid(dim3(x), from_in) {}  // NOLINT
};

// "kernel launched at FILE:LINE (FUNCTION)"
std::string name_of(Where launch);

// Calls thread_body in every thread of every block; threadIdx and the like say which one it is. The
// sizes are within check_launch's.
void run_grid(dim3 grid, dim3 block, std::size_t dynamic_shared,
              const std::function<void()>& thread_body, Where launch = Where::current());

// What CUDA says of such a launch: cudaErrorInvalidConfiguration of sizes of 0 and beyond the
// device's limits, cudaErrorInvalidValue of more dynamic shared memory than `kernel` may have.
cudaError_t check_launch(const void* kernel, dim3 grid, dim3 block, std::size_t dynamic_shared);

// check_launch, then `work` on the stream. `words` are the parameters' bytes.
cudaError_t queue_launch(const void* kernel, const Grid& grid, dim3 block,
                         std::size_t dynamic_shared, cudaStream_t stream,
                         std::function<void()> thread_body, std::span<const std::uintptr_t> words);
// How many times that was called: what a step costs before anything is computed. Any thread.
std::uint64_t launches();

// What a kernel's thread calls.

// The kernel, block and thread that is running here; empty outside kernels.
std::string position();

unsigned lane();  // within the warp

enum class Vote { none, any, all, count };
// Waits for all threads of the block, at the same line; the votes of all.
int block_barrier(Vote vote, bool mine, Where where);

// A lane's part in an operation of its warp, by lane; null: the lane takes no part.
using Lanes = void* const (&)[32];
// Waits for the lanes of `mask`, but those that have ended, at the same line with the same mask;
// the last calls finish with all their parts. `whole`: none of the 32 may be missing.
void in_warp(unsigned mask, bool whole, void (*finish)(Lanes lanes), void* part, Where where);

// cp.async: a copy is made at once, or as late as it may be: when it is waited for, or the thread
// ends.
void copy_later(void* to, const void* from, bool inside);
void end_group_of_copies();
void wait_for_groups_of_copies(int but_the_last);

unsigned char* dynamic_shared_memory();

}  // namespace shoal::emulated_gpu
