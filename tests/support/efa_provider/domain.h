// An open card: its registered memory, its endpoints and the lock that protects them.
//
// Lock order: the domain's mutex is the only lock.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "card.h"
#include "options.h"
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>

namespace shoal::test::efa {

class Endpoint;
struct Domain;

// fi_close refuses it (-FI_EBUSY) while an object that was opened from it is open.
struct Fabric : fid_fabric {
  int domains = 0;
};
int open_fabric(fi_fabric_attr* attributes, fid_fabric** fabric, void* context);

struct Memory : fid_mr {
  Domain* domain = nullptr;
  std::uint64_t start = 0, bytes = 0;
  std::uint64_t access = 0;
  bool of_gpu = false;
};

// A descriptor and its key are the same number. Numbers are never reused, so a closed registration
// is always recognised.
class MemoryTable {
 public:
  std::uint64_t add(Memory* memory);
  void remove(std::uint64_t key) { by_key_.erase(key); }
  // True if the whole range is registered under `key` for that access.
  bool covers(std::uint64_t key, std::uint64_t start, std::uint64_t bytes,
              std::uint64_t access) const;
  const Memory* find(std::uint64_t key) const;
  // True if any part of the range is registered as GPU memory.
  bool touches_gpu(std::uint64_t start, std::uint64_t bytes) const;

 private:
  std::unordered_map<std::uint64_t, Memory*> by_key_;
  std::uint32_t next_ = 0x1000;
};

struct Domain : fid_domain {
  Domain(Fabric& its_fabric, const Card& its_card, const fi_info& info);
  ~Domain();  // ends the card's thread

  // Access registered memory of any endpoint. `room` is the buffer for bytes that come from a GPU.
  std::span<const std::byte> read(std::uint64_t key, const std::byte* start, std::size_t bytes,
                                  std::vector<std::byte>& room) const;
  void write(std::uint64_t key, void* to, std::span<const std::byte> bytes) const;
  bool is_of_gpu(const void* start, std::size_t bytes) const;

  // Starts a thread that makes progress every millisecond. Called with the mutex locked.
  void start_card();

  Fabric& fabric;
  Card card;
  Options options;
  bool direct;
  bool registers_locally;  // FI_MR_LOCAL
  bool hmem;               // the user asked for FI_HMEM
  std::mutex mutex;
  MemoryTable memory;
  int children = 0;                  // queues, address vectors, endpoints, memory regions
  std::vector<Endpoint*> endpoints;  // only enabled ones

 private:
  void run_card();

  std::condition_variable stop_;
  bool stopping_ = false;
  std::thread thread_;
};

// Fills entries of libfabric's call tables that this provider does not implement.
template <typename Result, typename... Arguments>
Result not_offered(Arguments...) {
  return static_cast<Result>(-FI_ENOSYS);
}
int no_bind(fid*, fid*, std::uint64_t);
int no_control(fid*, int, void*);
int no_ops_open(fid*, const char*, std::uint64_t, void**, void*);

// The fi_ops of an object that supports only fi_close.
fi_ops only_close(int (*close)(fid*));

}  // namespace shoal::test::efa
