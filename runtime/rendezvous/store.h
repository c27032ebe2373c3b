// Rendezvous: a small key-value store through which ranks find each other before any communicator
// exists. Values are arbitrary bytes, at most kMaxStoreValue of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/runtime/base/clock.h"

namespace shoal {

inline constexpr std::size_t kMaxStoreKey = 4096;                     // bytes
inline constexpr std::size_t kMaxStoreValue = std::size_t{16} << 20;  // bytes

// Thread-safe; a waiting call does not delay calls of other threads. Throws invalid_argument for a
// key or value over the limits, peer_lost if the store's server is gone, and timeout if a connected
// server does not answer.
class Store {
 public:
  virtual ~Store() = default;

  virtual void set(std::string_view key, std::string_view value) = 0;
  // The current value, if there is one; does not wait.
  virtual std::optional<std::string> try_get(std::string_view key) = 0;
  // Waits for the value. Throws timeout, naming the key, once the deadline has passed.
  virtual std::string get(std::string_view key, Deadline deadline) = 0;
  // Adds to a counter that starts at 0, atomically over all ranks, and returns the new value. The
  // value is stored as decimal text, so get() can read it. Throws corrupt_data if it is not a
  // number.
  virtual std::int64_t add(std::string_view key, std::int64_t amount) = 0;
  // Sets `desired` if the value is `expected` (nullopt: no value); returns true if it did.
  virtual bool compare_set(std::string_view key, const std::optional<std::string>& expected,
                           std::string_view desired) = 0;
  // Returns true if there was a value to remove.
  virtual bool remove(std::string_view key) = 0;
  virtual std::string name() const = 0;  // "tcp store at 10.0.0.1:29500"

  // Waits until every key has a value; timeout names the first key without one.
  void wait(std::span<const std::string> keys, Deadline deadline);
};

// In this process, for ranks that are threads, and for a single rank.
std::shared_ptr<Store> make_hash_store();

// A directory on a file system that all ranks share: <directory>/shoal-<job>. `job` must be new for
// each job, so that files of a killed job are never read. Values appear by atomic rename, counters
// use flock. If `world_size` > 0, the last of that many stores to close removes the directory.
// Waits poll (1 ms growing to 50 ms).
std::shared_ptr<Store> make_file_store(const std::string& directory, const std::string& job,
                                       int world_size = 0);

// The same for the ranks of one host, in a temporary directory. The last rank that leaves removes
// it; the next run removes those of killed ranks (runtime/io/shared_directory.h).
std::shared_ptr<Store> make_temporary_file_store(const std::string& directory,
                                                 const std::string& job, int rank, int world_size);

// One rank (is_server) serves on host:port, in its own thread, while its store lives. All ranks,
// including the server's, are clients and retry connecting until `deadline`. If `world_size` > 0,
// the call returns once that many stores have joined. timeout reports how many did, and which are
// missing if each gives its `rank`.
// The server's rank must outlive the other ranks' use: end with a barrier. `host`: name or address,
// IPv4 or IPv6. Waits for each answer at most SHOAL_DEADLINE_S.
std::shared_ptr<Store> make_tcp_store(const std::string& host, int port, bool is_server,
                                      int world_size, Deadline deadline, int rank = -1);

// The same store with every key under `prefix` + "/".
std::shared_ptr<Store> make_prefix_store(std::string prefix, std::shared_ptr<Store> store);

// Each rank gives a value and gets all ranks' values, in rank order. `label` must be new for each
// call.
std::vector<std::string> exchange(Store& store, std::string_view label, int rank, int size,
                                  std::string_view value, Deadline deadline);
// Returns once all `size` ranks have called it with this `label`, which must be new for each call.
// The timeout reports how many ranks came.
void barrier(Store& store, std::string_view label, int size, Deadline deadline);

}  // namespace shoal
