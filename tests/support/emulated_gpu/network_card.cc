// Device memory as a network card reaches it (GPUDirect RDMA). A provider that the program loads
// finds these functions by name (../efa_provider). No stream waits for the card. Device work sees
// its writes only after cudaDeviceFlushGPUDirectRDMAWrites, as on a GPU that does not order such
// writes.
#include <mutex>
#include <vector>

#include "arena.h"
#include "memory.h"
#include "stream.h"
#include <fmt/format.h>
#include <unistd.h>

using namespace shoal::emulated_gpu;

namespace {

struct Written {
  std::byte* to;
  std::vector<std::byte> bytes;
};
struct Card {
  std::mutex mutex;
  std::vector<Written> written;  // in order; not yet visible to device work
};
Card& card() {
  static auto& one = *new Card;
  return one;
}

struct InFile {
  int file;
  off_t offset;
};
InFile place_in_file(const void* begin) {
  const Arena& arena = Arena::get();
  const int device = arena.device_of(begin);
  if (device < 0) fail(fmt::format("a card was given {}, which is on no device", begin));
  return {arena.file(device), static_cast<const std::byte*>(begin) - arena.begin(device)};
}

// Writes through the memory's file, because the host's addresses must stay closed.
void store_all(Card& of) {
  for (const Written& one : of.written) {
    const InFile at = place_in_file(one.to);
    if (pwrite(at.file, one.bytes.data(), one.bytes.size(), at.offset) !=
        static_cast<ssize_t>(one.bytes.size()))
      fail(fmt::format("a card could not write {} bytes", one.bytes.size()));
  }
  of.written.clear();
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int shoal_emulated_gpu_device_of(const void* begin,
                                                                        std::size_t bytes) {
  const Lock lock(Streams::get().mutex);
  const Place place = place_of(begin, bytes);
  return place.kind == Kind::device && place.inside && place.opened_on == 0 ? place.device : -1;
}

__attribute__((visibility("default"))) int shoal_emulated_gpu_current_device() {
  int device = -1;
  (void)cudaGetDevice(&device);
  return device;
}

__attribute__((visibility("default"))) void shoal_emulated_gpu_card_reads(void* to,
                                                                          const void* from,
                                                                          std::size_t bytes) {
  const std::lock_guard lock(card().mutex);
  store_all(card());
  const InFile at = place_in_file(from);
  if (pread(at.file, to, bytes, at.offset) != static_cast<ssize_t>(bytes))
    fail(fmt::format("a card could not read {} bytes", bytes));
}

__attribute__((visibility("default"))) void shoal_emulated_gpu_card_writes(void* to,
                                                                           const void* from,
                                                                           std::size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(from);
  const std::lock_guard lock(card().mutex);
  card().written.push_back({static_cast<std::byte*>(to), {begin, begin + bytes}});
}
}

cudaError_t cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTarget,
                                               cudaFlushGPUDirectRDMAWritesScope) {
  return call("cudaDeviceFlushGPUDirectRDMAWrites", [&](Lock&) {
    const std::lock_guard lock(card().mutex);
    store_all(card());
    return cudaSuccess;
  });
}
