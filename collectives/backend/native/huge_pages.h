// Moves ordinary buffers that peers copy from and to again and again into huge pages.
//
// process_vm_readv(2) and process_vm_writev(2) look up every page, so pages of 2 MiB double their
// rate (docs/lab/2026-11-measurements.md, "Huge pages"). Moving a buffer costs about what eight
// all_reduces of it gain, so only its eighth use begins to move it, and each use moves a piece
// only. The move keeps addresses, contents and the memory's size, and other threads may use the
// buffer meanwhile. If the kernel refuses, later uses try again, and after some tries the piece
// stays as it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace shoal::collectives::native {

class HugePages {
 public:
  // Does nothing if the system's transparent huge pages are switched off.
  HugePages();
  // One more call uses this buffer of the process. Blocks for some milliseconds if it moves a
  // piece.
  void used(const void* buffer, std::int64_t bytes);

 private:
  struct Use {
    std::int64_t bytes = 0;
    int times = 0, refused = 0;
    std::uintptr_t moved_to = 0;  // the end of the part that has been moved
  };
  bool enabled_;
  std::unordered_map<const void*, Use> uses_;
};

}  // namespace shoal::collectives::native
