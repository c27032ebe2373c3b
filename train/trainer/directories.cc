#include "shoal/train/trainer/directories.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using collectives::Communicator;
using collectives::ReduceOp;

constexpr std::int64_t kChunk = std::int64_t{8} << 20U;  // bytes of a broadcast
constexpr int kLooks = 10;                               // a network's disk may be late
constexpr std::chrono::milliseconds kBetweenLooks{20};

std::int64_t told(Communicator& c, std::int64_t value, int root) {
  c.broadcast(&value, 1, DType::i64, root)->wait();
  return value;
}

bool anybody(Communicator& c, bool mine) {
  std::int64_t flag = mine;
  c.all_reduce(&flag, &flag, 1, DType::i64, ReduceOp::max)->wait();
  return flag != 0;
}

bool appears(const std::string& path) {
  std::error_code ignored;
  for (int look = 0; look < kLooks; ++look) {
    if (fs::exists(path, ignored)) return true;
    std::this_thread::sleep_for(kBetweenLooks);
  }
  return false;
}

// [{"name": "shard-00001-of-00002.safetensors", "bytes": 1234}, ...] of the root's directory.
nlohmann::json listed(Communicator& c, int root, const std::string& path) {
  std::string text;
  if (c.rank() == root) {
    nlohmann::json files = nlohmann::json::array();
    std::error_code error;
    for (fs::recursive_directory_iterator it(path, error), end; !error && it != end;
         it.increment(error))
      if (it->is_regular_file(error))
        files.push_back({{"name", fs::relative(it->path(), path).generic_string()},
                         {"bytes", it->file_size()}});
    text = files.dump();
  }
  text.resize(static_cast<std::size_t>(told(c, std::ssize(text), root)));
  c.broadcast(text.data(), std::ssize(text), DType::u8, root)->wait();
  return parse_json(text, "the list of a checkpoint's files");
}

// One file, from the root to those that lack it.
void spread(Communicator& c, int root, const std::string& file, std::int64_t bytes, bool lacks) {
  std::shared_ptr<ByteSource> source;
  std::optional<AtomicFile> copy;
  if (c.rank() == root) source = open_file(file);
  if (lacks) {
    fs::create_directories(fs::path(file).parent_path());
    copy.emplace(file, bytes);
  }
  std::vector<std::byte> chunk;
  for (std::int64_t at = 0; at < bytes; at += kChunk) {
    chunk.resize(static_cast<std::size_t>(std::min(kChunk, bytes - at)));
    if (source) source->read(at, chunk);
    c.broadcast(chunk.data(), std::ssize(chunk), DType::u8, root)->wait();
    if (copy) copy->write(chunk);
  }
  if (copy) copy->commit();
}

}  // namespace

bool DirectoryOwners::is_shared() const {
  return std::ranges::all_of(of_rank, [](int owner) { return owner == 0; });
}

DirectoryOwners find_owners(Communicator& c, const std::string& path) {
  const auto size = static_cast<std::size_t>(c.size());
  DirectoryOwners owners;
  owners.of_rank.assign(size, c.size() == 1 ? 0 : -1);
  for (int owner = 0; owner < c.size(); ++owner) {
    if (owners.of_rank[static_cast<std::size_t>(owner)] >= 0) continue;
    // A name that was never looked for: some file systems remember what was not there. Should it
    // be left behind, the next run clears it away.
    const auto now = std::chrono::system_clock::now().time_since_epoch().count();
    const std::string probe = fmt::format("{}/tmp-checkpoint-seen-by-rank-{}-{}", path, owner,
                                          told(c, static_cast<std::int64_t>(now), owner));
    std::error_code ignored;
    if (c.rank() == owner) {
      fs::create_directories(path, ignored);
      std::ofstream(probe) << owner;
    }
    c.barrier()->wait();
    const bool is_open = owners.of_rank[static_cast<std::size_t>(c.rank())] < 0;
    std::vector<std::int64_t> sees(size, 0);
    sees[static_cast<std::size_t>(c.rank())] = c.rank() == owner || (is_open && appears(probe));
    c.all_reduce(sees.data(), sees.data(), c.size(), DType::i64, ReduceOp::sum)->wait();
    if (c.rank() == owner) fs::remove(probe, ignored);
    for (std::size_t rank = 0; rank < size; ++rank)
      if (sees[rank] != 0 && owners.of_rank[rank] < 0) owners.of_rank[rank] = owner;
  }
  return owners;
}

void gather_files(Communicator& c, const DirectoryOwners& owners, const std::string& path,
                  bool to_first) {
  if (owners.is_shared()) return;
  const bool takes = to_first ? c.rank() == 0 : owners.is_owner(c.rank());
  for (int owner = 0; owner < c.size(); ++owner) {
    if (!owners.is_owner(owner) || (to_first && owner == 0)) continue;
    for (const nlohmann::json& entry : listed(c, owner, path)) {
      const std::string file = path + "/" + entry.at("name").get<std::string>();
      const auto bytes = entry.at("bytes").get<std::int64_t>();
      std::error_code absent;
      const bool lacks =
          takes && c.rank() != owner &&
          (!fs::exists(file, absent) || static_cast<std::int64_t>(fs::file_size(file)) != bytes);
      if (anybody(c, lacks)) spread(c, owner, file, bytes, lacks);
    }
  }
}

}  // namespace shoal
