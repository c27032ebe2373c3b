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
#include "shoal/runtime/rendezvous/job_token.h"

namespace shoal {

inline constexpr std::size_t kMaxStoreKey = 4096;                     // bytes
inline constexpr std::size_t kMaxStoreValue = std::size_t{16} << 20;  // bytes

// Thread-safe; a waiting call does not delay calls of other threads. Throws invalid_argument for a
// key or value over the limits, peer_lost if the store's server is gone, and timeout if the server
// is connected but does not answer.
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
  // Stores `desired` if the current value is `expected` (nullopt: no value). Returns true if it was
  // stored.
  virtual bool compare_set(std::string_view key, const std::optional<std::string>& expected,
                           std::string_view desired) = 0;
  // Returns true if there was a value to remove.
  virtual bool remove(std::string_view key) = 0;
  virtual std::string name() const = 0;  // "tcp store at 10.0.0.1:29500"

  // Waits until every key has a value; timeout names the first key without one.
  void wait(std::span<const std::string> keys, Deadline deadline);
};

// A store in this process, for a single rank or for ranks that are threads.
std::shared_ptr<Store> make_hash_store();

// A store in the directory <directory>/shoal-<job>, on a file system that all ranks share. `job`
// must be new for each job, so that files of a killed job are never read. Values appear by atomic
// rename; counters use flock. If `world_size` > 0, the last of that many stores to close removes
// the directory. Waits poll at intervals from 1 ms to 50 ms.
std::shared_ptr<Store> make_file_store(const std::string& directory, const std::string& job,
                                       int world_size = 0);

// The same for ranks on one host, in a temporary directory. The last rank to leave removes it. If
// ranks are killed, the next run removes it (runtime/io/shared_directory.h).
std::shared_ptr<Store> make_temporary_file_store(const std::string& directory,
                                                 const std::string& job, int rank, int world_size);

// A store over TCP. One rank (is_server) serves on host:port, in its own thread, while its store
// exists. All ranks, including that one, are clients and retry connecting until `deadline`. If
// `world_size` > 0, the call returns once that many stores have joined; the timeout error reports
// how many did, and which ranks are missing if each gives its `rank`. The server's rank must keep
// its store until the other ranks are done, so end with a barrier. `host`: name or address, IPv4 or
// IPv6. The server listens on that address alone if it is one of its host's own, else on every
// address. Each request waits at most SHOAL_DEADLINE_S for its answer. A process without the
// `token` can neither read nor write.
std::shared_ptr<Store> make_tcp_store(const std::string& host, int port, bool is_server,
                                      int world_size, Deadline deadline, int rank = -1,
                                      const JobToken& token = {});

// The same store, with `prefix` + "/" in front of every key.
std::shared_ptr<Store> make_prefix_store(std::string prefix, std::shared_ptr<Store> store);

// Each rank gives a value and gets all ranks' values, in rank order. `label` must be new for each
// call.
std::vector<std::string> exchange(Store& store, std::string_view label, int rank, int size,
                                  std::string_view value, Deadline deadline);
// Returns once all `size` ranks have called it with this `label`, which must be new for each call.
// The timeout error reports how many ranks did.
void barrier(Store& store, std::string_view label, int size, Deadline deadline);

}  // namespace shoal
